"""The carrier between peers: one request, one answer, both with a small head and a body of any size.

A carrier knows peers by their libp2p id and protocols by their name. It promises that an answer is whole or an error,
that a peer which goes quiet is noticed after `silence_s`, and that nothing larger than its limit is ever allocated.
Who the peer is, as a member of a run, is not its business: services verify signatures themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from common.errors import Code, HocketError

MEBIBYTE = 1 << 20
DEFAULT_MAX_ANSWER_BYTES = 256 * MEBIBYTE
WAITING_EVERY_S = 0.25

Part = bytes | bytearray | memoryview


@dataclass(frozen=True)
class PeerAddress:
    """Where a peer is: its libp2p id (base58) and the multiaddresses it may be dialled at; none: it must be known already."""

    peer_id: str
    multiaddrs: tuple[str, ...] = ()

    @classmethod
    def from_multiaddrs(cls, multiaddrs: Iterable[str]) -> PeerAddress:
        """The address named by multiaddresses that end in `/p2p/<peer id>`, all of one peer; OPTION_INVALID otherwise."""
        addresses = tuple(multiaddrs)
        ids = {address.rpartition("/p2p/")[2] if "/p2p/" in address else "" for address in addresses}
        if len(ids) != 1 or "" in ids:
            named = ", ".join(addresses) or "no multiaddress"
            raise HocketError(Code.OPTION_INVALID, f"{named} does not end in the /p2p/<peer id> of one peer")
        return cls(ids.pop(), addresses)


@dataclass
class Message:
    """A request or an answer.

    Args:
        head: a serialized protobuf message, at most 255 KiB.
        body: bulk bytes: the parts in the order sent. On receipt there is one part, or none for an empty body.
    """

    head: bytes
    body: list[Part] = field(default_factory=list)

    @property
    def body_bytes(self) -> memoryview:
        """The whole body; joined (copied) only if it has several parts."""
        if len(self.body) == 1:
            return memoryview(self.body[0]).cast("B")
        return memoryview(b"".join(self.body))

    @property
    def body_size_bytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.body)


class PeerRefused(HocketError):
    """PEER_REFUSED: the peer's handler, or its carrier, answered with a numbered error.

    Args:
        peer_id: who refused.
        remote_code: the error's number at the peer; 0 for a fault of the peer's own.
        remote_detail: the peer's words. Text from a stranger: shown, never interpreted.
    """

    def __init__(self, peer_id: str, remote_code: int, remote_detail: str) -> None:
        self.peer_id = peer_id
        self.remote_code = remote_code
        self.remote_detail = remote_detail
        number = f"H{remote_code}" if remote_code else "a fault of its own"
        super().__init__(Code.PEER_REFUSED, f"{peer_id} answered {number}: {remote_detail}")


Handler = Callable[[str, Message], Awaitable[Message]]
"""Answers a request of the peer with the given id. A HocketError that it raises reaches the caller as PEER_REFUSED. It is
cancelled when the caller closes the stream, when the caller's connection breaks, and when the carrier closes."""


@dataclass
class Traffic:
    """Bytes handed to the network, frames included, by protocol: what was sent as a caller and what as a server."""

    requests: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)


class Carrier(ABC):
    """What every carrier can do. All methods belong to one event loop."""

    def __init__(self) -> None:
        self.traffic = Traffic()

    @property
    @abstractmethod
    def peer_id(self) -> str:
        """Our own libp2p id, base58."""

    @property
    @abstractmethod
    def multiaddrs(self) -> tuple[str, ...]:
        """Where others can dial us, each ending in `/p2p/<our id>`."""

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(self.peer_id, self.multiaddrs)

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Bytes sent since the start by protocol, requests and answers together."""
        return dict(self.traffic.requests + self.traffic.answers)

    @abstractmethod
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
        """Send `request` and await the answer. Cancelling the call closes its stream, which cancels the peer's handler.

        Args:
            peer: its address, or the id of a peer that is connected or can be found.
            protocol: name of the service, such as `hocket/blocks/1`.
            request: is read, not copied: leave its parts alone until the call returns.
            silence_s: the longest time without any frame from the peer, which sends one every 0.25 s while it works.
            deadline_s: the longest time for the whole call.
            max_answer_bytes: limit of the answer's head and body; a larger one is refused before it is allocated.
            heard: is told of each frame how many seconds after the one before it came; of the first, after the request began
                to be sent. Time in which this process itself did not run is left out.

        Raises:
            HocketError: PEER_UNREACHABLE: it could not be dialled. PEER_SILENT: no frame for `silence_s`, or no answer
                within `deadline_s`. STREAM_BROKEN: the stream ended before the answer's end frame, or what came does not
                fit it. MESSAGE_TOO_LARGE: the answer, or the request's head. PEER_REFUSED (`PeerRefused`): the peer
                answered with an error, does not serve the protocol, or finds the request too large. CARRIER_FAILED: we are
                closed, or our daemon died too often.
        """

    @abstractmethod
    async def serve(self, protocol: str, handler: Handler, *, max_request_bytes: int) -> None:
        """Answer calls of `protocol` with `handler`; a request whose head and body exceed the limit is refused unread.

        Serving a protocol again replaces its handler for the calls that begin from then on.
        """

    @abstractmethod
    async def close(self) -> None:
        """Break off all calls and handlers, and stop. Calling it twice does no harm."""


def address_of(peer: PeerAddress | str) -> PeerAddress:
    return PeerAddress(peer) if isinstance(peer, str) else peer
