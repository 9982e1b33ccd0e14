"""Two carriers of one kind, on which what every carrier promises is checked."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from common.errors import Code, HocketError
from swarm.carrier import Message
from swarm.frames import encode
from swarm.libp2p import LibP2PCarrier
from swarm.memory import MemoryCarrier, MemoryNetwork
from swarm.pool import StreamCarrier

T = TypeVar("T")
LIMIT = 64 << 20
TIMES: dict[str, Any] = {"silence_s": 10.0, "deadline_s": 30.0}


class World:
    """Two carriers and a loop that live as long as the module's tests."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._runner = asyncio.Runner()
        self._network = MemoryNetwork()
        self._carriers: list[StreamCarrier] = []
        self.server = self.run(self.another("server"))
        self.client = self.run(self.another("client"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def another(self, name: str) -> StreamCarrier:
        """One more carrier, on the same network; it is closed at the end."""
        if self.kind == "memory":
            carrier: StreamCarrier = MemoryCarrier(self._network, name)
        else:
            state = self._folder / name
            bootstrap = self._carriers[0].multiaddrs if self._carriers else ()
            carrier = await LibP2PCarrier.create(state / "peer.key", bootstrap=bootstrap, state_dir=state)
        self._carriers.append(carrier)
        return carrier

    async def serve_cut(self, protocol: str, answer: Message, after_bytes: int) -> None:
        """Serve `protocol` with `answer`, but end the stream after so many bytes of it, as a dying peer does."""
        if isinstance(self.server, MemoryCarrier):

            async def handle(peer_id: str, request: Message) -> Message:
                return answer

            await self.server.serve(protocol, handle, max_request_bytes=LIMIT)
            self._network.cut_next_answer(self.server.peer_id, protocol, after_bytes=after_bytes)
            return

        async def accept(info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(5)
            writer.write(b"".join(encode(answer))[:after_bytes])
            await writer.drain()
            writer.close()

        assert isinstance(self.server, LibP2PCarrier)
        await self.server._daemon.p2p.add_binary_stream_handler(protocol, accept)

    def close(self) -> None:
        for carrier in self._carriers:
            self.run(carrier.close())
        self._runner.close()


def pattern(size: int) -> bytes:
    return hashlib.shake_128(str(size).encode()).digest(size)


async def echo(peer_id: str, request: Message) -> Message:
    return Message(b"re:" + request.head, request.body)


async def code_of(call: Coroutine[Any, Any, Message]) -> tuple[Code, float]:
    """The number of the error that `call` ends with, and after how many seconds."""
    start = time.monotonic()
    with pytest.raises(HocketError) as caught:
        await call
    return caught.value.code, time.monotonic() - start
