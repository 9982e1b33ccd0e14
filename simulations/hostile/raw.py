"""Streams without the manners of a caller: any bytes, in any pieces, and left open."""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from common.errors import Code, HocketError
from simulations.hostile.mutations import blind
from swarm.carrier import Message, PeerAddress
from swarm.exchange import FrameStream
from swarm.frames import FRAME, SIZE, FrameType, encode, read_error
from swarm.libp2p import LibP2PCarrier
from swarm.memory import MemoryCarrier
from swarm.pool import StreamCarrier


class RawStreams(StreamCarrier):
    """A carrier that also opens streams for bytes of one's own."""

    @abstractmethod
    async def raw(self, address: PeerAddress, protocol: str) -> FrameStream:
        """A stream to a service, on which nothing has been said."""


class RawMemory(MemoryCarrier, RawStreams):
    """Within one process."""

    async def raw(self, address: PeerAddress, protocol: str) -> FrameStream:
        return await self._open_stream(address, protocol)


class RawLibP2P(LibP2PCarrier, RawStreams):
    """Over libp2p."""

    async def raw(self, address: PeerAddress, protocol: str) -> FrameStream:
        return await self._open_stream(address, protocol)


@asynccontextmanager
async def half_open(carrier: RawStreams, services: Sequence[tuple[PeerAddress, str]], count: int) -> AsyncIterator[None]:
    """Meanwhile: streams on which a message begins and does not go on, shared out over the services."""
    streams: list[FrameStream] = []
    try:
        for number in range(count):
            streams.append(await carrier.raw(*services[number % len(services)]))
            streams[-1].send_now(b"\0\0\0\x10\1half")
        yield
    finally:
        for stream in streams:
            stream.abort()


def odd_frames(draw: random.Random, message: Message) -> tuple[str, bytes]:
    """What a hostile peer sends instead of the frames of `message`."""
    good = b"".join(bytes(piece) for piece in encode(message))
    head = FRAME.pack(SIZE.size + len(message.head), FrameType.HEAD)
    ways = {
        "a frame of 4 GiB": FRAME.pack(2**32 - 1, FrameType.HEAD) + b"x",
        "a body of 2^63 bytes announced": head + SIZE.pack(2**63) + message.head,
        "a body of 200 MiB announced and not sent": head + SIZE.pack(200 << 20) + message.head,
        "an unknown frame": FRAME.pack(4, 77) + b"abcd",
        "an error instead of a request": FRAME.pack(2, FrameType.ERROR) + b"\0\7",
        "signs of life without end": FRAME.pack(0, FrameType.WAITING) * 2000,
        "an end without a beginning": FRAME.pack(40, FrameType.END) + bytes(40),
        "two heads": head + SIZE.pack(10) + message.head + head + SIZE.pack(10) + message.head,
        "more body than announced": head + SIZE.pack(1) + message.head + FRAME.pack(9, FrameType.BODY) + bytes(9),
        "empty frames": FRAME.pack(0, FrameType.BODY) * 500,
        "no frames but a protocol of the web": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    if draw.random() < 0.5:
        name, data = blind(draw, good)
        return f"frames: {name}", data
    name = draw.choice(sorted(ways))
    return name, ways[name]


async def throw(stream: FrameStream, data: bytes, *, pieces: int = 1, within_s: float) -> str:
    """Write `data`, close our half, and say how it ended: `closed`, `answered`, or the number of the error.

    Args:
        pieces: in which it is written, the loop's other work in between.
        within_s: for how long an answer is waited for; what is not whole gets none.
    """
    step = max(1, -(-len(data) // pieces))
    try:
        for start in range(0, len(data), step):
            await stream.send(data[start : start + step])
            await asyncio.sleep(0)
        async with asyncio.timeout(within_s):
            while True:
                kind, payload = await stream.receive()
                if kind is FrameType.ERROR:
                    return f"H{read_error(payload)[0]}"
                if kind is not FrameType.WAITING:
                    return "answered"
    except HocketError as error:
        if error.code is not Code.STREAM_BROKEN:
            raise
        return "closed"
    except TimeoutError:
        return "left open"  # a message that is not whole is waited for
    finally:
        stream.abort()
