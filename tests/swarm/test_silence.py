"""A caller judges its peer by silence, but never by a time in which the caller itself did not run."""

from __future__ import annotations

import asyncio
import time

import pytest

from common.errors import Code, HocketError
from swarm.carrier import Message
from swarm.memory import MemoryCarrier, MemoryNetwork


async def _pair(network: MemoryNetwork, answer: asyncio.Event) -> tuple[MemoryCarrier, MemoryCarrier]:
    server, client = MemoryCarrier(network, "server"), MemoryCarrier(network, "client")
    server.waiting_every_s = 0.05

    async def handle(peer_id: str, request: Message) -> Message:
        await answer.wait()
        return request

    await server.serve("echo", handle, max_request_bytes=1 << 20)
    return server, client


@pytest.mark.parametrize("held_up_s", [0.5, 1.0])
def test_a_process_that_was_held_up_reads_first_and_judges_then(held_up_s: float) -> None:
    async def body() -> None:
        network, answer = MemoryNetwork(), asyncio.Event()
        server, client = await _pair(network, answer)
        gaps: list[float] = []
        try:
            call = asyncio.create_task(
                client.call("server", "echo", Message(b"x"), silence_s=0.3, deadline_s=20.0, heard=gaps.append)
            )
            while len(gaps) < 2:
                await asyncio.sleep(0.01)
            time.sleep(held_up_s)  # nothing of this process runs: neither end of the call
            await asyncio.sleep(0.2)
            assert not call.done()
            answer.set()
            assert (await call).head == b"x"
        finally:
            await client.close()
            await server.close()
        assert gaps and max(gaps) < held_up_s

    asyncio.run(body())


def test_a_peer_that_is_silent_after_the_caller_was_held_up_is_left_all_the_same() -> None:
    async def body() -> None:
        network, answer = MemoryNetwork(), asyncio.Event()
        server, client = await _pair(network, answer)
        gaps: list[float] = []
        try:
            call = asyncio.create_task(
                client.call("server", "echo", Message(b"x"), silence_s=0.3, deadline_s=60.0, heard=gaps.append)
            )
            while not gaps:
                await asyncio.sleep(0.01)
            network.freeze("server")
            time.sleep(0.8)
            began = time.monotonic()
            with pytest.raises(HocketError, match="sent nothing for") as caught:
                await call
            assert caught.value.code is Code.PEER_SILENT and time.monotonic() - began < 5.0
        finally:
            await client.close()
            await server.close()

    asyncio.run(body())
