"""A worker's talk with the coordinator: join, watch, lease, submit, leave; every message signed both ways.

The run view is level-triggered: each answer to a watch is the whole wanted state, so a lost or repeated answer does no
harm. A worker outlives its coordinator: calls are tried again with growing pauses for as long as the worker lives, and
a coordinator that no longer knows the member is joined again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from common.errors import Code, HocketError, error_of_line
from common.faults import NO_FAULTS, Faults
from common.files import disk_error
from node.finder import Finder
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey, member_id
from protocol.messages import LEAST_UPLINK_BYTES_PER_S, make_signed, new_nonce, open_signed
from protocol.ticket import Ticket
from swarm.directory import Directory

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 17   # a stream is judged by its silences between two of them, on whatever line
CALL_TIMEOUT_S = 15.0
WATCH_WAIT_S = 5.0
SUBMIT_TIMEOUT_S = 120.0    # of a file, besides what a slow line needs for its bytes
PAUSE_S = 0.25
PAUSE_LIMIT_S = 4.0
PUSHBACK_LIMIT_S = 30.0

_FOR_GOOD = (Code.COMMIT_REFUSED, Code.OPENING_INVALID)  # sent again, it would be refused again

Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")


class NotAMember(HocketError):
    """The coordinator does not know this member, as after a restart: join again."""


class Pushback(HocketError):
    """The coordinator wants no call of ours before `wait_s` seconds have passed."""

    def __init__(self, detail: str, wait_s: float) -> None:
        super().__init__(Code.RATE_LIMITED, detail)
        self.wait_s = min(max(wait_s, 0.0), PUSHBACK_LIMIT_S)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _from_status(error: grpc.aio.AioRpcError) -> HocketError:
    """The numbered error for a failed call."""
    details = (error.details() or "").strip()
    told = error_of_line(details)
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return NotAMember(Code.JOIN_REFUSED, details)
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return told if told is not None else HocketError(Code.JOIN_REFUSED, details)
    if told is not None and told.code is Code.RATE_LIMITED:
        hint = dict(error.trailing_metadata() or ()).get("grpc-retry-pushback-ms", "")
        return Pushback(told.detail, int(hint) / 1000 if isinstance(hint, str) and hint.isdigit() else 0.0)
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return HocketError(Code.SIGNATURE_INVALID, f"the coordinator says: {told.detail if told is not None else details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return HocketError(Code.PEER_REFUSED, "the coordinator does not serve this")
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION and told is not None and told.code in _FOR_GOOD:
        return told
    if error.code() is grpc.StatusCode.INTERNAL:
        # gRPC's client says no more when a stream is refused while it is still being written.
        details = f"the call ended before all of it was sent, and its answer was lost ({details})"
    return HocketError(Code.COORDINATOR_UNREACHABLE, f"{error.code().name}: {details}")


class NewestView:
    """The newest of the views, though answers overtake each other: an older one would call back what is over. Pure."""

    def __init__(self) -> None:
        self._asked = self._answered = 0
        self._view = pb.RunView()

    def ask(self) -> int:
        """A number for a call that is about to be made."""
        self._asked += 1
        return self._asked

    def take(self, number: int, view: pb.RunView) -> pb.RunView:
        """What is to be believed now that the call with this number is answered.

        Of two calls that were made at the same time, the higher revision; else the later one's answer, whatever it says: a
        coordinator that was set back to a backup has lower ones.
        """
        if number > self._answered or view.revision >= self._view.revision:
            self._answered, self._view = max(number, self._answered), view
        return self._view


class Session:
    """The connection of one member to one run.

    Args:
        ticket: of the run.
        key: of the member.
        directory: where the coordinator says where it is, if the ticket's addresses fail; None: only those are tried.
        faults: points `node.submit.before` and `node.submit.half`.
    """

    def __init__(
        self, ticket: Ticket, key: MemberKey, *, directory: Directory | None = None, faults: Faults = NO_FAULTS
    ) -> None:
        self._ticket = ticket
        self._key = key
        self._faults = faults
        self._coordinator = member_id(ticket.coordinator_key)
        self._finder = Finder(ticket, directory, now_ms)
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()
        self._pauses = random.Random(key.public)  # spreads the members' retries; each member's own are repeatable
        self._join_request: pb.JoinRequest | None = None
        self._known_lease_id = 0
        self._views = NewestView()
        self.bytes_sent_updates = 0

    # ---- calls ------------------------------------------------------------------------------------------------------

    async def _open_channel(self) -> grpc.aio.Channel:
        async with self._opening:
            if self._channel is None:
                self._channel = await self._finder.open()
            return self._channel

    async def _reset(self, failed: Any) -> None:
        """Drop a channel that failed: the next call opens a new one, to whichever address answers."""
        current = failed is self._channel
        if failed is not None and current:
            self._channel = None
            await failed.close()

    async def _rpc(self, call: Callable[[rpc.CoordinatorStub], Awaitable[pb.Signed]]) -> pb.Signed:
        """Make a call; a channel on which one fails for good is dropped, together with whatever else waits on it.

        Raises:
            HocketError: COORDINATOR_UNREACHABLE, JOIN_REFUSED; NotAMember.
        """
        channel = await self._open_channel()
        try:
            return await call(rpc.CoordinatorStub(channel))
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                await self._reset(channel)
            raise _from_status(error) from error
        except grpc.aio.UsageError as error:
            raise HocketError(Code.COORDINATOR_UNREACHABLE, "the connection was closed") from error
        except asyncio.CancelledError as error:
            # gRPC cancels the calls of a channel that is closed; that is no wish of whoever runs this task.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise HocketError(Code.COORDINATOR_UNREACHABLE, "the connection broke") from error

    def _sign(self, method: str, payload: Message, nonce: bytes, **fields: int | str) -> pb.Signed:
        return make_signed(
            self._key,
            method=method,
            payload=payload,
            run_id=self._ticket.run_id,
            receiver=self._coordinator,
            now_ms=now_ms(),
            nonce=nonce,
            **fields,  # type: ignore[arg-type]
        )

    def _open(self, signed: pb.Signed, method: str, reply: type[Reply], nonce: bytes) -> Reply:
        """Check that a reply is the coordinator's own, for us and for the request with this nonce."""
        header, payload = open_signed(
            signed,
            method=method,
            run_id=self._ticket.run_id,
            receiver=self._key.member_id,
            now_ms=now_ms(),
            nonces=None,
            request_nonce=nonce,
        )
        if header.public_key != self._ticket.coordinator_key:
            raise HocketError(Code.COORDINATOR_KEY_MISMATCH, f"the reply to {method} is signed by {member_id(header.public_key)}")
        try:
            return reply.FromString(payload)
        except DecodeError as error:
            raise HocketError(Code.SIGNATURE_INVALID, f"the reply to {method} cannot be read") from error

    async def _call(
        self, method: str, payload: Message, reply: type[Reply], *, timeout_s: float = CALL_TIMEOUT_S, **fields: int | str
    ) -> Reply:
        nonce = new_nonce()

        def call(stub: rpc.CoordinatorStub) -> Awaitable[pb.Signed]:
            made = {"join": stub.Join, "watch": stub.Watch, "lease": stub.Lease, "leave": stub.Leave, "commit": stub.Commit}[
                method
            ]
            result: Awaitable[pb.Signed] = made(self._sign(method, payload, nonce, **fields), timeout=timeout_s)
            return result

        return self._open(await self._rpc(call), method, reply, nonce)

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Join the run, or join it again: the coordinator treats a repeat as the same member.

        Raises:
            HocketError: JOIN_REFUSED, COORDINATOR_UNREACHABLE, COORDINATOR_KEY_MISMATCH, SIGNATURE_INVALID.
        """
        try:
            reply = await self._call("join", request, pb.JoinReply)
        except HocketError as error:
            if error.code is Code.SIGNATURE_INVALID and self._join_request is None:
                # Of another run, or another key, or by a wrong clock: as long as nothing of ours was ever taken, it stays so.
                raise HocketError(Code.JOIN_REFUSED, error.detail) from error
            raise
        self._join_request = request
        return reply

    async def watch(self, report: pb.MemberReport, *, known_revision: int, wait_s: float) -> pb.RunView:
        """Report the member's state and read the run's; answered when the revision rises, or after `wait_s`."""
        request = pb.WatchRequest(known_revision=known_revision, report=report, wait_s=wait_s)
        number = self._views.ask()
        view = await self._call(
            "watch", request, pb.RunView, timeout_s=CALL_TIMEOUT_S + wait_s, round=report.round, stage=report.stage
        )
        return self._views.take(number, view)

    async def lease(self, round: int, generation: int) -> pb.LeaseReply:
        """Ask for a range of samples of the round. One that was granted in an answer which was lost is granted again."""
        request = pb.LeaseRequest(round=round, generation=generation, known_lease_id=self._known_lease_id)
        reply = await self._call("lease", request, pb.LeaseReply, round=round)
        if reply.granted:
            self._known_lease_id = max(self._known_lease_id, reply.lease_id)
        return reply

    async def leave(self, reason: str) -> None:
        """Say good-bye; the coordinator need not wait for this member any more."""
        await self._call("leave", pb.LeaveRequest(reason=reason), pb.LeaveReply, timeout_s=3.0)

    async def commit(self, commit: pb.StepCommit, base_cid: str) -> pb.CommitReply:
        """Commit to an inner step; sent again, it must be the same commit.

        Raises:
            HocketError: COMMIT_REFUSED, PEER_REFUSED when no commits are taken; those of every call.
        """
        return await self._call(
            "commit", commit, pb.CommitReply, round=commit.round, base_cid=base_cid, stage=commit.stage
        )

    async def submit(self, head: pb.UpdateHead, path: Path) -> pb.UpdateReceipt:
        """Stream an update once.

        Args:
            head: names the round, the stage, the counted microbatches, and the file's size and SHA-256.
            path: of the safetensors file.

        Returns: the receipt; `accepted` means that the update is on the coordinator's disk.
        """
        self._faults.reach("node.submit.before", round=head.round, stage=head.stage)

        def half() -> None:
            self._faults.reach("node.submit.half", round=head.round, stage=head.stage)

        nonce = new_nonce()
        signed = self._sign("submit_update", head, nonce, round=head.round, base_cid=head.base_cid, stage=head.stage)
        timeout_s = submit_timeout_s(head.size_bytes)
        answer = await self._rpc(
            lambda stub: stub.SubmitUpdate(self._chunks(signed, head.size_bytes, path, half), timeout=timeout_s)
        )
        return self._receipt(answer, "submit_update", head, nonce)

    async def submit_opening(self, head: pb.OpeningHead, path: Path) -> pb.UpdateReceipt:
        """Stream an opening once; arguments and result as in `submit`."""
        nonce = new_nonce()
        signed = self._sign("submit_opening", head, nonce, round=head.round, stage=head.stage)
        answer = await self._rpc(
            lambda stub: stub.SubmitOpening(
                self._chunks(signed, head.size_bytes, path), timeout=submit_timeout_s(head.size_bytes)
            )
        )
        return self._receipt(answer, "submit_opening", head, nonce)

    def _receipt(
        self, answer: pb.Signed, method: str, head: pb.UpdateHead | pb.OpeningHead, nonce: bytes
    ) -> pb.UpdateReceipt:
        receipt = self._open(answer, method, pb.UpdateReceipt, nonce)
        if (receipt.round, receipt.stage, receipt.sha256) != (head.round, head.stage, head.sha256):
            raise HocketError(Code.SIGNATURE_INVALID, "the receipt is for another file")
        return receipt

    async def _chunks(
        self, signed: pb.Signed, size_bytes: int, path: Path, half: Callable[[], None] = lambda: None
    ) -> AsyncIterator[pb.UpdateChunk]:
        """The messages of a stream: the signed head, the file, the end; `half` is called when half of it is sent."""
        yield pb.UpdateChunk(head=signed)
        chunks = sent = 0
        half_reached = False
        try:
            with path.open("rb") as stream:
                while data := stream.read(CHUNK_BYTES):
                    yield pb.UpdateChunk(data=data)
                    chunks, sent = chunks + 1, sent + len(data)
                    self.bytes_sent_updates += len(data)
                    if not half_reached and 2 * sent >= size_bytes:
                        half_reached = True
                        half()
        except OSError as error:
            raise disk_error(error, path) from error
        yield pb.UpdateChunk(end=pb.UpdateEnd(chunks=chunks, bytes=sent))

    # ---- for as long as the worker lives ----------------------------------------------------------------------------

    async def persist(
        self, what: str, action: Callable[[], Awaitable[Result]], *, while_: Callable[[], bool] = lambda: True
    ) -> Result | None:
        """Try `action` until it succeeds, with growing pauses and a log line for each failure.

        Args:
            what: names the action in the log.
            action: one try.
            while_: looked at before every try after the first; when false the action is given up and None returned.

        Raises:
            HocketError: what no repetition mends: a refused join, another coordinator key, a full disk.
        """
        pause_s = PAUSE_S
        while True:
            try:
                return await action()
            except NotAMember as error:
                logger.warning("%s: the coordinator does not know us (%s); joining again", what, error.detail)
                if self._join_request is not None and what != "join":
                    await self.persist("join", lambda: self.join(self._join_request or pb.JoinRequest()), while_=while_)
            except HocketError as error:
                if error.code not in (Code.COORDINATOR_UNREACHABLE, Code.SIGNATURE_INVALID, Code.RATE_LIMITED):
                    raise
                if isinstance(error, Pushback):
                    pause_s = max(pause_s, error.wait_s)
                logger.warning("%s failed, next try in %.1f s: %s", what, pause_s, error.line())
            if not while_():
                return None
            await asyncio.sleep(pause_s * (0.75 + 0.5 * self._pauses.random()))
            pause_s = min(PAUSE_LIMIT_S, 2 * pause_s)

    async def watch_views(
        self, report: Callable[[], pb.MemberReport], on_view: Callable[[pb.RunView], None], *, wait_s: float = WATCH_WAIT_S
    ) -> None:
        """Follow the run until cancelled: report, read the view, hand it on.

        Args:
            report: makes the member's report at the time of each call.
            on_view: called with every view, also with one that has not changed.
        """
        revision = 0
        while True:
            known = revision
            view = await self.persist("watch", lambda: self.watch(report(), known_revision=known, wait_s=wait_s))  # noqa: B023
            if view is not None:
                revision = view.revision
                on_view(view)

    async def close(self) -> None:
        await self._reset(self._channel)


def submit_timeout_s(size_bytes: int) -> float:
    """How long one try to hand in a file may take: an opened step is six times as large as an update of the same stage."""
    return SUBMIT_TIMEOUT_S + size_bytes / LEAST_UPLINK_BYTES_PER_S


def file_digest(path: Path) -> tuple[int, bytes]:
    """Size in bytes and SHA-256 of a file."""
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
            return stream.tell(), digest.digest()
    except OSError as error:
        raise disk_error(error, path) from error
