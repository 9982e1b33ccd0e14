"""What both carriers share: kept-open streams, pooled by peer and protocol, and the serving of those that others open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from common.errors import Code, HocketError
from swarm.carrier import DEFAULT_MAX_ANSWER_BYTES, WAITING_EVERY_S, Carrier, Handler, Message, PeerAddress, address_of
from swarm.exchange import FrameStream, call_over, serve_over, within
from swarm.frames import check_head

logger = logging.getLogger(__name__)

MAX_STREAMS = 32
MAX_INBOUND_STREAMS = 128
KEEP_IDLE_S = 300.0

Key = tuple[str, str]


@dataclass
class _Streams:
    """The streams to one peer for one protocol."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_STREAMS))
    idle: list[tuple[float, FrameStream]] = field(default_factory=list)  # with the time it was put back, oldest first
    users: int = 0


class StreamCarrier(Carrier):
    """A carrier whose calls go over byte streams. What is left to the subclass is where a new stream comes from.

    At most 32 streams are open to a peer for a protocol; a call beyond that waits for one, within its deadline. A peer
    may open at most 128 streams to us.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting_every_s = WAITING_EVERY_S
        self._services: dict[str, tuple[Handler, int]] = {}
        self._streams: dict[Key, _Streams] = {}
        self._dialled: dict[str, tuple[str, ...]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._inbound: Counter[str] = Counter()
        self._swept = 0.0
        self._closed = False

    @abstractmethod
    async def _open_stream(self, address: PeerAddress, protocol: str) -> FrameStream:
        """A new stream to a peer. PEER_UNREACHABLE, PEER_REFUSED if it does not serve the protocol, CARRIER_FAILED."""

    @abstractmethod
    async def _listen(self, protocol: str) -> None:
        """Have `_serve_stream` called for each stream that a peer opens for `protocol`, once for each protocol."""

    async def serve(self, protocol: str, handler: Handler, *, max_request_bytes: int) -> None:
        self._check_open()
        known = protocol in self._services
        self._services[protocol] = (handler, max_request_bytes)
        if not known:
            await self._listen(protocol)

    async def call(
        self,
        peer: PeerAddress | str,
        protocol: str,
        request: Message,
        *,
        silence_s: float,
        deadline_s: float,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
        heard: Callable[[float], None] | None = None,
    ) -> Message:
        check_head(request)
        address = address_of(peer)
        deadline = asyncio.get_running_loop().time() + deadline_s
        async with self._stream(address, protocol, silence_s, deadline) as stream:
            return await call_over(
                stream,
                address.peer_id,
                request,
                silence_s=silence_s,
                deadline=deadline,
                max_answer_bytes=max_answer_bytes,
                heard=heard,
            )

    @contextlib.asynccontextmanager
    async def _stream(self, address: PeerAddress, protocol: str, silence_s: float, deadline: float) -> AsyncIterator[FrameStream]:
        """A stream for one call: kept for the next if the call ends well, closed if it does not."""
        self._check_open()
        self._sweep()
        if self._has_moved(address):
            self._drop_idle(address.peer_id)
        key = (address.peer_id, protocol)
        streams = self._streams.setdefault(key, _Streams())
        streams.users += 1
        try:
            await within(deadline, streams.free.acquire(), f"{address.peer_id} left no stream free within the call's deadline")
            try:
                stream = self._take_idle(streams)
                if stream is None:
                    silent_at = asyncio.get_running_loop().time() + silence_s
                    opening = self._open_stream(address, protocol)
                    stream = await within(min(silent_at, deadline), opening, f"{address.peer_id} opened no stream in time")
                kept = False
                try:
                    yield stream
                    kept = stream.usable and not self._closed
                finally:
                    if kept:
                        streams.idle.append((asyncio.get_running_loop().time(), stream))
                    else:
                        stream.abort()
            finally:
                streams.free.release()
        finally:
            streams.users -= 1

    def _has_moved(self, address: PeerAddress) -> bool:
        """Whether none of a peer's addresses is among those at which we dialled it: the connection may be to nobody."""
        dialled = self._dialled.get(address.peer_id)
        return bool(dialled) and bool(address.multiaddrs) and not set(dialled or ()) & set(address.multiaddrs)

    def _drop_idle(self, peer_id: str) -> None:
        for (owner, _), streams in self._streams.items():
            if owner == peer_id:
                for _, stream in streams.idle:
                    stream.abort()
                streams.idle.clear()

    def _forget_connections(self) -> None:
        """Every connection is gone, and with it all streams; those in use break by themselves."""
        for streams in self._streams.values():
            for _, stream in streams.idle:
                stream.abort()
            streams.idle.clear()
        self._dialled.clear()

    def _take_idle(self, streams: _Streams) -> FrameStream | None:
        while streams.idle:
            _, stream = streams.idle.pop()
            if stream.usable:
                return stream
            stream.close()
        return None

    def _sweep(self) -> None:
        """Once a minute, close what has not been used for five, and what the other side closed."""
        now = asyncio.get_running_loop().time()
        if now < self._swept + 60.0:
            return
        self._swept = now
        for key, streams in list(self._streams.items()):
            for entry in list(streams.idle):
                if entry[0] < now - KEEP_IDLE_S or not entry[1].usable:
                    streams.idle.remove(entry)
                    entry[1].close()
            if not streams.idle and not streams.users:
                del self._streams[key]

    async def _serve_stream(self, stream: FrameStream, peer_id: str, protocol: str) -> None:
        """Answer the calls of one inbound stream until it ends; refuse it if the peer has too many."""

        def service() -> tuple[Handler, int]:
            return self._services[protocol]

        if self._closed or self._inbound[peer_id] >= MAX_INBOUND_STREAMS:
            logger.warning("a stream of %s is refused: it has %d open", peer_id, self._inbound[peer_id])
            stream.close()
            return
        serving = asyncio.create_task(serve_over(stream, peer_id, service, waiting_every_s=self.waiting_every_s))
        self._serving.add(serving)
        self._inbound[peer_id] += 1
        try:
            await asyncio.wait({serving})
        finally:
            serving.cancel()
            self._serving.discard(serving)
            self._inbound[peer_id] -= 1
            if not self._inbound[peer_id]:
                del self._inbound[peer_id]
        if not serving.cancelled():
            serving.result()

    def _check_open(self) -> None:
        if self._closed:
            raise HocketError(Code.CARRIER_FAILED, "the carrier is closed")

    async def _close_streams(self) -> None:
        self._closed = True
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)
        for streams in self._streams.values():
            for _, stream in streams.idle:
                stream.close()
        self._streams.clear()
