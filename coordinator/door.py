"""The coordinator's door: gRPC calls, each opened, checked and answered under signature."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from math import isfinite
from typing import NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from common.errors import Code, HocketError
from coordinator.core import Core, Nonce, Refused
from coordinator.failures import heartbeat_s
from coordinator.run import Member
from coordinator.status import status_json
from coordinator.uploads import Uploads
from coordinator.views import view
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc
from protocol.identity import MemberKey, member_id, verify_peer_proof
from protocol.messages import NonceWindow, make_signed, open_signed

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 4 * 2**20
WATCHES_HELD = 4        # of one member; a further one is answered at once

_STATUS_OF_CODE = {
    Code.SIGNATURE_INVALID: grpc.StatusCode.UNAUTHENTICATED,
    Code.JOIN_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    Code.STREAM_BROKEN: grpc.StatusCode.ABORTED,
    Code.DISK_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

Request = TypeVar("Request", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Message, Message]"


class Door(hocket_pb2_grpc.CoordinatorServicer):
    """Serves the calls of `service Coordinator`.

    Args:
        core, uploads: the run.
        key: signs every answer.
        providers: the coordinator's own block peers, asked at each view.
        wall: the system's clock, by which messages are dated, in seconds since the epoch.
    """

    def __init__(
        self, core: Core, uploads: Uploads, key: MemberKey, providers: Callable[[], list[pb.PeerAddress]], *,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._core = core
        self._uploads = uploads
        self._key = key
        self._providers = providers
        self._wall = wall
        self._held: Counter[str] = Counter()
        # Messages that were acted upon before a restart stay refused after it.
        self._nonces = NonceWindow.from_rows(
            (bytes.fromhex(public), bytes.fromhex(nonce), time_ms) for public, nonce, time_ms in core.state.nonces
        )
        # Keys cost nothing: those of strangers must not crowd out what is remembered of members.
        self._strangers = NonceWindow()

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def Join(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A member comes in; again is fine."""
        core = self._core
        try:
            header, join = self._open(request, "join", pb.JoinRequest)
            verify_peer_proof(join.peer_id, join.peer_public_key, join.peer_signature, header.public_key)
            member = member_id(header.public_key)
            if member == self._key.member_id:
                raise HocketError(Code.JOIN_REFUSED, "that is the coordinator's own key")
            if member not in core.state.members:
                self._fresh(header, self._strangers)
            core.check_join(member, join)
            self._fresh(header, self._nonces)
            core.join(member, join, _nonce(header))
        except HocketError as error:
            await _abort(context, error)
        reply = pb.JoinReply(
            run_toml=core.state.run_toml,
            model_config_json=_compact(core.state.model_config),
            view=self._view(member),
            dataset_manifest_cid=core.state.dataset["cid"],
        )
        return self._sign("join", reply, header)

    async def Watch(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A member reports, and hears the wanted state: at once when it is news to it, else within `wait_s`."""
        core = self._core
        try:
            header, watch = self._open(request, "watch", pb.WatchRequest)
            member = self._known(header)
            if watch.HasField("report"):
                core.take_report(member, watch.report)
        except HocketError as error:
            await _abort(context, error)
        # A watch that is held says nothing about the member; so it is held for a heartbeat at most.
        beat_s = heartbeat_s(core.config.membership.silence_s)
        wait_s = min(max(watch.wait_s, 0.0), beat_s) if isfinite(watch.wait_s) else 0.0
        if self._held[member.member] >= WATCHES_HELD:
            wait_s = 0.0
        self._held[member.member] += 1
        try:
            await core.news(watch.known_revision, wait_s)
        except asyncio.CancelledError:
            core.connection_broke(member.member)
            raise
        finally:
            self._held[member.member] -= 1
        return self._sign("watch", self._view(member.member), header)

    async def Lease(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A stage-0 replica asks for data."""
        try:
            header, lease = self._open(request, "lease", pb.LeaseRequest)
            member = self._known(header)
            reply = self._core.grant_lease(member, lease, _nonce(header))
        except HocketError as error:
            await _abort(context, error)
        if isinstance(reply, Refused):
            reply = pb.LeaseReply(granted=False, reason=reply.reason)
        return self._sign("lease", reply, header)

    async def SubmitUpdate(self, request_iterator: AsyncIterator[pb.UpdateChunk], context: Context) -> pb.Signed:
        """A replica hands in its update of the round."""
        chunks = aiter(request_iterator)
        try:
            first = await anext(chunks, None)
            if first is None or first.WhichOneof("part") != "head":
                raise HocketError(Code.STREAM_BROKEN, "an update begins with its head")
            header, head = self._open(first.head, "submit_update", pb.UpdateHead)
            if (header.round, header.base_cid, header.stage) != (head.round, head.base_cid, head.stage):
                raise HocketError(Code.SIGNATURE_INVALID, "signed for another round, base or stage than the update's")
            member = self._known(header)
            receipt = await self._uploads.receive(member, head, _nonce(header), chunks)
        except HocketError as error:
            await _abort(context, error)
        if not receipt.accepted:
            logger.warning("update of %s refused: %s", member.member[:12], receipt.reason)
        return self._sign("submit_update", receipt, header)

    async def Leave(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A member goes."""
        try:
            header, leave = self._open(request, "leave", pb.LeaveRequest)
            name = member_id(header.public_key)
            if name not in self._core.state.members:
                raise HocketError(Code.PEER_REFUSED, "you have not joined")
            self._fresh(header, self._nonces)
            self._core.leave(name, leave.reason, _nonce(header))
        except HocketError as error:
            await _abort(context, error)
        return self._sign("leave", pb.LeaveReply(), header)

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        """For people: no secret in it."""
        return pb.StatusReply(json=_compact(status_json(self._core, request.after_round)))

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _open(self, signed: pb.Signed, method: str, kind: type[Request]) -> tuple[pb.SignedHeader, Request]:
        header, payload = open_signed(
            signed, method=method, run_id=self._core.state.run_id, receiver=self._key.member_id,
            now_ms=self._now_ms(), nonces=None,
        )  # fmt: skip
        try:
            return header, kind.FromString(payload)
        except DecodeError as error:
            raise HocketError(Code.SIGNATURE_INVALID, f"the payload is no {kind.DESCRIPTOR.name}") from error

    def _fresh(self, header: pb.SignedHeader, nonces: NonceWindow) -> None:
        """SIGNATURE_INVALID for a message that was received before."""
        nonces.check(header.public_key, header.nonce, header.time_ms, self._now_ms())

    def _known(self, header: pb.SignedHeader) -> Member:
        """The member that sent a message which was not received before."""
        name = member_id(header.public_key)
        if name not in self._core.state.members:
            raise HocketError(Code.PEER_REFUSED, "you have not joined", remedy="join first")
        self._fresh(header, self._nonces)
        member = self._core.seen(name)
        assert member is not None
        return member

    def _view(self, member: str) -> pb.RunView:
        return view(self._core.state, self._core.config, self._core.sizes, member, self._providers())

    def _sign(self, method: str, payload: Message, request: pb.SignedHeader) -> pb.Signed:
        """Sign the answer to a request, for its sender and with its nonce."""
        state = self._core.state
        return make_signed(
            self._key, method=method, payload=payload, run_id=state.run_id, receiver=member_id(request.public_key),
            round=state.round, base_cid=state.base_cid, now_ms=self._now_ms(), nonce=request.nonce,
        )  # fmt: skip

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _nonce(header: pb.SignedHeader) -> Nonce:
    return header.public_key.hex(), header.nonce.hex(), header.time_ms


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


async def _abort(context: Context, error: HocketError) -> NoReturn:
    status = grpc.StatusCode.NOT_FOUND if error.code is Code.PEER_REFUSED else _STATUS_OF_CODE.get(
        error.code, grpc.StatusCode.FAILED_PRECONDITION
    )
    logger.warning("a call was refused: %s", error.line())
    await context.abort(status, error.line())
    raise AssertionError("abort raises")
