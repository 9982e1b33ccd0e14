"""A peer process for tests: `python serving_peer.py STATE_DIR LISTEN [BOOTSTRAP]`, up to the moment that it prints its address.

It serves `echo`, `hold` (never answers) and `die` (a large answer in whose middle the process kills itself).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from swarm.carrier import Message
from swarm.libp2p import LibP2PCarrier


async def main(state: Path, listen: str, bootstrap: list[str]) -> None:
    carrier = await LibP2PCarrier.create(state / "peer.key", bootstrap=bootstrap, listen=[listen], state_dir=state)

    async def echo(peer_id: str, request: Message) -> Message:
        return request

    async def hold(peer_id: str, request: Message) -> Message:
        await asyncio.Event().wait()
        return request

    async def die(peer_id: str, request: Message) -> Message:
        dying.append(asyncio.create_task(kill_in_the_middle()))
        return Message(b"", [bytes(200 << 20)])

    async def kill_in_the_middle() -> None:
        while carrier.traffic.answers["die"] < 20 << 20:
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGKILL)

    dying: list[asyncio.Task[None]] = []
    for protocol, handler in (("echo", echo), ("hold", hold), ("die", die)):
        await carrier.serve(protocol, handler, max_request_bytes=16 << 20)
    told = {"multiaddrs": list(carrier.multiaddrs), "daemon_pid": carrier.daemon_pid, "state": str(state)}
    print(json.dumps(told), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
