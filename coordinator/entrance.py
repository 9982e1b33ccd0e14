"""What every call passes before it is acted upon, the cheap checks before the expensive ones.

In this order: how often the address calls; how large the message is; who says to have sent it, and whether that one may call at
all; what the header was signed for; the signature; the digest of the payload; whether it was received before; how often the
member calls. Nothing of a message is remembered before it has passed them all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from common.errors import Code, HocketError
from coordinator.core import Core, Nonce
from coordinator.nonce_file import NonceFile
from coordinator.rate_limits import Buckets, Limits, source
from coordinator.run import Member
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, member_id
from protocol.messages import NonceWindow, make_signed, open_signed, peek

logger = logging.getLogger(__name__)

# Of the payload, by method. gRPC itself takes no message above 4 MiB.
MOST_BYTES = {
    "join": 64 << 10, "watch": 1 << 20, "lease": 4 << 10, "leave": 4 << 10, "submit_update": 4 << 20,
    "commit": 2 << 20, "submit_opening": 4 << 10, "manage": 64 << 10,
}  # fmt: skip
PUSHBACK_KEY = "grpc-retry-pushback-ms"

_STATUS_OF_CODE = {
    Code.SIGNATURE_INVALID: grpc.StatusCode.UNAUTHENTICATED,
    Code.JOIN_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    Code.QUARANTINED: grpc.StatusCode.PERMISSION_DENIED,
    Code.BANNED: grpc.StatusCode.PERMISSION_DENIED,
    Code.INVITATION_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    Code.PEER_REFUSED: grpc.StatusCode.NOT_FOUND,
    Code.STREAM_BROKEN: grpc.StatusCode.ABORTED,
    Code.DISK_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.MESSAGE_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
}

Request = TypeVar("Request", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Message, Message]"


class RateLimited(HocketError):
    """RATE_LIMITED, with the seconds after which the call may come again."""

    def __init__(self, who: str, wait_s: float) -> None:
        super().__init__(Code.RATE_LIMITED, f"of this {who}; again in {wait_s:.1f} s")
        self.wait_s = wait_s


class Entrance:
    """What all calls share: how often who called, and which messages came before.

    Args:
        core: the run.
        key: the coordinator's, signs every answer.
        limits: how often one may call.
        nonce_file: keeps the nonces of all messages over restarts; the journal's are those of messages that changed something.
        wall: the system's clock, by which messages are dated, in seconds since the epoch.
    """

    def __init__(
        self, core: Core, key: MemberKey, *, limits: Limits | None = None, nonce_file: NonceFile | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.core = core
        self.key = key
        self.limits = Limits() if limits is None else limits
        self._wall = wall
        self.nonce_file = nonce_file
        # Messages that were acted upon before a restart stay refused after it.
        journalled = [(bytes.fromhex(public), bytes.fromhex(nonce), time_ms) for public, nonce, time_ms in core.state.nonces]
        kept = [*journalled, *(nonce_file.rows() if nonce_file is not None else ())]
        self.nonces = NonceWindow.from_rows(sorted(kept, key=lambda row: row[2]))
        # Keys cost nothing: those of strangers must not crowd out what is remembered of members.
        self.strangers = NonceWindow()

    def call(self, context: Context, method: str) -> Call:
        """A call that has just come in. `method`: as its messages are signed for."""
        return Call(self, context, method)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._wall() * 1000)


class Call:
    """One call on its way in and out; use `Entrance.call`.

    Once `open` has returned, `header` is the request's and `sender` the member id that signed it.
    """

    def __init__(self, entrance: Entrance, context: Context, method: str) -> None:
        self._entrance = entrance
        self._core = entrance.core
        self._context = context
        self._method = method
        self.address = address_of(context)
        self._source = source(self.address)
        self._claims = ""
        self.header = pb.SignedHeader()
        self.sender = ""

    def knock(self, kind: Buckets) -> None:
        """For calls that are dear as such (a join, a status, a stream), before anything is read: RATE_LIMITED by address."""
        self._wait(kind.take(self._source, self._core.clock()), "address")

    def open(self, signed: pb.Signed, kind: type[Request], may_call: Callable[[str], None]) -> Request:
        """Check the request up to the digest of its payload; whether it came before is for `fresh` or `known` to check.

        Args:
            may_call: raises for a member id that may not call at all. It is asked before the signature is looked at: what it
                says must be no secret, and it must change nothing.

        Raises:
            HocketError: RATE_LIMITED, MESSAGE_TOO_LARGE, SIGNATURE_INVALID; those of `may_call`.
        """
        limits, most_bytes = self._entrance.limits, MOST_BYTES[self._method]
        self._claims = self._home_member(signed)
        self._wait(limits.of_address(self._source, self._claims, self._core.clock()), "address")
        if len(signed.payload) > most_bytes:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"{len(signed.payload)} bytes; {self._method} has {most_bytes} at most")
        self.sender = member_id(peek(signed).public_key)
        may_call(self.sender)
        self.header, payload = open_signed(
            signed, method=self._method, run_id=self._core.state.run_id, receiver=self._entrance.key.member_id,
            now_ms=self._entrance.now_ms(), nonces=None,
        )  # fmt: skip
        try:
            return kind.FromString(payload)
        except DecodeError as error:
            raise HocketError(Code.SIGNATURE_INVALID, f"the payload is no {kind.DESCRIPTOR.name}") from error

    def joined(self, sender: str) -> None:
        """For `open`: PEER_REFUSED for one that has not joined, BANNED, QUARANTINED."""
        if sender not in self._core.state.members:
            raise HocketError(Code.PEER_REFUSED, "you have not joined", remedy="join first")
        self._core.check_shut_out(sender)

    def fresh(self) -> None:
        """SIGNATURE_INVALID for a request that was received before; RATE_LIMITED for one too many of its member."""
        header, entrance = self.header, self._entrance
        entrance.nonces.check(header.public_key, header.nonce, header.time_ms, entrance.now_ms())
        if entrance.nonce_file is not None:
            entrance.nonce_file.add((header.public_key, header.nonce, header.time_ms), entrance.now_ms())
        self._wait(entrance.limits.of_member(self.sender, self._method, self._core.clock()), "member")

    def fresh_of_stranger(self) -> None:
        """SIGNATURE_INVALID for a stranger's request that was received before."""
        header, entrance = self.header, self._entrance
        entrance.strangers.check(header.public_key, header.nonce, header.time_ms, entrance.now_ms())

    def known(self) -> Member:
        """The member that sent a request which was not received before. SIGNATURE_INVALID, RATE_LIMITED."""
        self.fresh()
        member = self._core.seen(self.sender)
        assert member is not None
        return member

    @property
    def nonce(self) -> Nonce:
        """The nonce of the request as the journal keeps it."""
        return self.header.public_key.hex(), self.header.nonce.hex(), self.header.time_ms

    def sign(self, payload: Message) -> pb.Signed:
        """Sign the answer, for the request's sender and with its nonce."""
        state = self._core.state
        return make_signed(
            self._entrance.key, method=self._method, payload=payload, run_id=state.run_id, receiver=self.sender,
            round=state.round, base_cid=state.base_cid, now_ms=self._entrance.now_ms(), nonce=self.header.nonce,
        )  # fmt: skip

    async def refuse(self, error: HocketError) -> NoReturn:
        """End the call with its numbered error, which counts against whoever called."""
        logger.warning("a call was refused: %s", error.line())
        metadata: tuple[tuple[str, str], ...] = ()
        if isinstance(error, RateLimited):
            metadata = ((PUSHBACK_KEY, str(int(error.wait_s * 1000) + 1)),)
        else:
            self._entrance.limits.refused(self._source, self._claims, self._core.clock())
        await self._context.abort(_STATUS_OF_CODE.get(error.code, grpc.StatusCode.FAILED_PRECONDITION), error.line(), metadata)
        raise AssertionError("abort raises")

    def _home_member(self, signed: pb.Signed) -> str:
        """The member that a request says to be of, where that joined from this address; else, and for garbage, empty."""
        try:
            sender = member_id(peek(signed).public_key)
        except HocketError:
            return ""
        known = self._core.state.members.get(sender)
        return sender if known is not None and known.address and source(known.address) == self._source else ""

    def _wait(self, wait_s: float, who: str) -> None:
        if wait_s > 0:
            raise RateLimited(who, wait_s)


def address_of(context: Context) -> str:
    """The IP address that a call came from, as gRPC sees it; of anything else than IP, the whole name."""
    peer = unquote(context.peer())
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
