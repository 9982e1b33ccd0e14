"""Asks a coordinator for its status again and again: `python -m simulations.hostile.asker TICKET PAUSE_S`.

A process of its own, so that what it measures is how long the coordinator takes, not how long a storm of messages in the same
process lets it wait.
"""

from __future__ import annotations

import asyncio
import sys

from common.errors import HocketError
from protocol.ticket import Ticket
from simulations.hostile.helper import input_closed, say
from simulations.status_client import StatusClient


async def _ask(line: str, pause_s: float) -> None:
    client, loop = StatusClient(Ticket.decode(line)), asyncio.get_running_loop()
    await client.status()
    say({"up": True})
    over = asyncio.create_task(input_closed())
    slowest_s, asked, faults = 0.0, 0, list[str]()
    while not over.done():
        start = loop.time()
        try:
            await client.status()
        except HocketError as error:
            faults.append(error.line())
        slowest_s, asked = max(slowest_s, loop.time() - start), asked + 1
        await asyncio.wait({over}, timeout=pause_s)
    await client.close()
    say({"slowest_s": slowest_s, "asked": asked, "faults": faults[:5]})


if __name__ == "__main__":
    asyncio.run(_ask(sys.argv[1], float(sys.argv[2])))
