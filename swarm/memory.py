"""A network inside one process: the same frames, calls and errors as over libp2p, and faults at the moment of one's choice.

Bytes go from a writer straight into the reader at the other end, in order and at once; no clock is involved but for the
callers' own deadlines. For tests of services and for the simulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from common.errors import Code, HocketError
from swarm.carrier import Message, Part, PeerAddress, PeerRefused
from swarm.directory import Directory, MemoryDirectory
from swarm.exchange import FrameStream
from swarm.frames import broken, encode
from swarm.pool import StreamCarrier


class _Wire:
    """One direction of a stream: what is written here is read there. While an end is frozen, bytes wait on the way."""

    def __init__(self, network: MemoryNetwork, source: str, target: str, reader: asyncio.StreamReader) -> None:
        self._network = network
        self._ends = (source, target)
        self._reader = reader
        self._waiting: list[bytes | None] = []  # None: the end
        self._ended = False
        network._wires.add(self)

    def write(self, data: Part) -> None:
        if self._ended:
            raise ConnectionResetError("the stream is closed")
        self._put(bytes(data))

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if self._ended:
            raise ConnectionResetError("the stream is closed")

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._put(None)
            self._network._ended(self)

    def touches(self, peer_id: str) -> bool:
        return peer_id in self._ends

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._put(data)

    def _put(self, data: bytes | None) -> None:
        if any(end in self._network._frozen for end in self._ends):
            self._waiting.append(data)
        elif data is None:
            self._reader.feed_eof()
        else:
            self._reader.feed_data(data)


class _MemoryStream(FrameStream):
    """A stream whose two wires close together, as a socket's do."""

    def __init__(self, reader: asyncio.StreamReader, out: _Wire, back: _Wire, on_sent: Callable[[int], None]) -> None:
        super().__init__(reader, out, on_sent)
        self._back = back

    def close(self) -> None:
        super().close()
        self._back.close()


class _ServerStream(_MemoryStream):
    """The server's end, which can lose or cut an answer."""

    take_fault: Callable[[], int | None]

    async def send_answer(self, message: Message) -> None:
        after_bytes = self.take_fault()
        if after_bytes is None:
            await self.send_message(message)
            return
        left = after_bytes
        for piece in encode(message):
            await self.send(memoryview(piece)[:left])
            left -= min(left, memoryview(piece).nbytes)
        raise broken("the answer is cut by a fault of the network")


@dataclass
class _Fault:
    """What happens to the next answer of a peer to a protocol: it ends after so many bytes of its frames."""

    after_bytes: int
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryNetwork:
    """Connects the `MemoryCarrier`s that are made with it; holds the directory that they share."""

    def __init__(self, directory: Directory | None = None) -> None:
        self.directory = directory or MemoryDirectory()
        self._carriers: dict[str, MemoryCarrier] = {}
        self._wires: set[_Wire] = set()
        self._frozen: set[str] = set()
        self._faults: dict[tuple[str, str], list[_Fault]] = {}

    def drop_next_answer(self, server: str, protocol: str) -> asyncio.Event:
        """The next answer of `server` is computed and lost: its stream breaks. The event returned is set when that happens."""
        return self.cut_next_answer(server, protocol, after_bytes=0)

    def cut_next_answer(self, server: str, protocol: str, *, after_bytes: int) -> asyncio.Event:
        """The next answer of `server` ends after `after_bytes` of its frames, as if the peer died while it was sending.

        Several cuts of the same service act one after the other. The event returned is set when this one has acted.
        """
        fault = _Fault(after_bytes)
        self._faults.setdefault((server, protocol), []).append(fault)
        return fault.happened

    def freeze(self, peer_id: str) -> None:
        """From now on nothing leaves or reaches a peer, and no stream ends: a suspended machine. Its own code runs on."""
        self._frozen.add(peer_id)

    def thaw(self, peer_id: str) -> None:
        """Undo `freeze`: what waited arrives, in order."""
        self._frozen.discard(peer_id)
        for wire in [wire for wire in self._wires if wire.touches(peer_id)]:
            wire.flush()

    def cut_off(self, peer_id: str) -> None:
        """A peer dies: its streams end at once, in the middle of what they carry, and it cannot be reached any more.

        Its own code runs on; a new `MemoryCarrier` of the same id is the peer restarted.
        """
        self._carriers.pop(peer_id, None)
        for wire in [wire for wire in self._wires if wire.touches(peer_id)]:
            wire.close()

    def _take_fault(self, server: str, protocol: str) -> int | None:
        faults = self._faults.get((server, protocol))
        if not faults:
            return None
        fault = faults.pop(0)
        fault.happened.set()
        return fault.after_bytes

    def _ended(self, wire: _Wire) -> None:
        if not wire._waiting:
            self._wires.discard(wire)


class MemoryCarrier(StreamCarrier):
    """See `Carrier`. The constructor connects it to the network.

    Args:
        peer_id: any text, unique in the network.
    """

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        super().__init__()
        if peer_id in network._carriers:
            raise ValueError(f"peer {peer_id!r} is in this network already")
        self._network = network
        self._peer_id = peer_id
        self._accepting: set[asyncio.Task[None]] = set()
        network._carriers[peer_id] = self

    @property
    def peer_id(self) -> str:
        return self._peer_id

    @property
    def multiaddrs(self) -> tuple[str, ...]:
        return (f"/memory/{self._peer_id}/p2p/{self._peer_id}",)

    @property
    def dht(self) -> Directory:
        return self._network.directory

    async def _listen(self, protocol: str) -> None:
        pass  # whoever opens a stream looks among our services

    async def _open_stream(self, address: PeerAddress, protocol: str) -> FrameStream:
        network = self._network
        server = network._carriers.get(address.peer_id)
        if server is None or network._carriers.get(self._peer_id) is not self:
            raise HocketError(Code.PEER_UNREACHABLE, address.peer_id)
        if protocol not in server._services:
            raise PeerRefused(address.peer_id, 0, f"it does not serve {protocol}")
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        out = _Wire(network, self._peer_id, address.peer_id, there)
        back = _Wire(network, address.peer_id, self._peer_id, here)
        serving = _ServerStream(there, back, out, partial(_count, server.traffic.answers, protocol))
        serving.take_fault = partial(network._take_fault, address.peer_id, protocol)
        accepting = asyncio.create_task(server._serve_stream(serving, self._peer_id, protocol))
        server._accepting.add(accepting)
        accepting.add_done_callback(server._accepting.discard)
        return _MemoryStream(here, out, back, partial(_count, self.traffic.requests, protocol))

    async def close(self) -> None:
        if self._network._carriers.get(self._peer_id) is self:
            del self._network._carriers[self._peer_id]
        await self._close_streams()
        if self._accepting:
            await asyncio.wait(self._accepting)


def _count(counter: dict[str, int], protocol: str, size_bytes: int) -> None:
    counter[protocol] += size_bytes
