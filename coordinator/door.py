"""The coordinator's door: gRPC calls, each opened, checked and answered under signature."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from math import isfinite

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from coordinator.admission import STRANGER
from coordinator.auditing import Auditing
from coordinator.core import Core, Refused
from coordinator.entrance import Context, Entrance
from coordinator.failures import heartbeat_s
from coordinator.managing import manage
from coordinator.signed_receipts import SignedReceipts
from coordinator.status import status_json
from coordinator.uploads import Uploads
from coordinator.views import view
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc
from protocol.identity import verify_peer_proof

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 4 * 2**20
WATCHES_HELD = 4        # of one member; a further one is answered at once
FIRST_S = 10.0          # for the first message of a stream


class Door(hocket_pb2_grpc.CoordinatorServicer):
    """Serves the calls of `service Coordinator`.

    Args:
        core, uploads: the run.
        entrance: opens requests and seals answers.
        providers: the coordinator's own block peers, asked at each view.
        listed: operator by member id, of the organiser's list, asked at each join.
    """

    def __init__(
        self, core: Core, uploads: Uploads, entrance: Entrance, providers: Callable[[], list[pb.PeerAddress]],
        auditing: Auditing, *,
        listed: Callable[[], Mapping[str, str]] = dict,
    ) -> None:  # fmt: skip
        self._core = core
        self._uploads = uploads
        self._entrance = entrance
        self._providers = providers
        self._auditing = auditing
        self._listed = listed
        self._held: Counter[str] = Counter()
        self._receipts = SignedReceipts(core, entrance)

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def Join(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A member comes in; again is fine."""
        core, call = self._core, self._entrance.call(context, "join")
        entry = STRANGER

        def may_join(member: str) -> None:
            nonlocal entry
            if member == self._entrance.key.member_id:
                raise HocketError(Code.JOIN_REFUSED, "that is the coordinator's own key")
            core.check_shut_out(member)
            mode, token = core.config.membership.mode, _invitation(request.payload)
            entry = core.state.admission.admit(mode, member, token, self._listed(), core.clock())

        try:
            call.knock(self._entrance.limits.joins)
            join = call.open(request, pb.JoinRequest, may_join)
            verify_peer_proof(join.peer_id, join.peer_public_key, join.peer_signature, call.header.public_key)
            if call.sender not in core.state.members:
                call.fresh_of_stranger()
            core.check_join(call.sender, join)
            call.fresh()
            core.join(call.sender, join, call.nonce, entry, call.address)
        except HocketError as error:
            await call.refuse(error)
        return call.sign(pb.JoinReply(
            run_toml=core.state.run_toml,
            model_config_json=_compact(core.state.model_config),
            view=self._view(call.sender),
            dataset_manifest_cid=core.state.dataset["cid"],
        ))  # fmt: skip

    async def Watch(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A member reports, and hears the wanted state: at once when it is news to it, else within `wait_s`."""
        core, call = self._core, self._entrance.call(context, "watch")
        try:
            watch = call.open(request, pb.WatchRequest, call.joined)
            member = call.known()
            if watch.HasField("report"):
                core.take_report(member, watch.report)
                self._auditing.take_oddities(member, watch.report)
        except HocketError as error:
            await call.refuse(error)
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
        return call.sign(self._view(member.member))

    async def Lease(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A stage-0 replica asks for data."""
        call = self._entrance.call(context, "lease")
        try:
            lease = call.open(request, pb.LeaseRequest, call.joined)
            reply = self._core.grant_lease(call.known(), lease, call.nonce)
        except HocketError as error:
            await call.refuse(error)
        if isinstance(reply, Refused):
            reply = pb.LeaseReply(granted=False, reason=reply.reason)
        return call.sign(reply)

    async def SubmitUpdate(self, request_iterator: AsyncIterator[pb.UpdateChunk], context: Context) -> pb.Signed:
        """A replica hands in its update of the round."""
        call, chunks = self._entrance.call(context, "submit_update"), aiter(request_iterator)
        try:
            call.knock(self._entrance.limits.streams)
            signed = await first_of(chunks, FIRST_S)
            head = call.open(signed, pb.UpdateHead, call.joined)
            header = call.header
            if (header.round, header.base_cid, header.stage) != (head.round, head.base_cid, head.stage):
                raise HocketError(Code.SIGNATURE_INVALID, "signed for another round, base or stage than the update's")
            member = call.known()
            receipt = await self._uploads.receive(member, head, call.nonce, chunks, signed)
        except HocketError as error:
            await call.refuse(error)
        if not receipt.accepted:
            logger.warning("update of %s refused: %s", member.member[:12], receipt.reason)
        return call.sign(receipt)

    async def Commit(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A replica commits to an inner step, and hears what of it is drawn."""
        call = self._entrance.call(context, "commit")
        try:
            commit = call.open(request, pb.StepCommit, call.joined)
            reply = self._auditing.commit(call.known(), call.header, request, commit)
        except HocketError as error:
            await call.refuse(error)
        return call.sign(reply)

    async def SubmitOpening(self, request_iterator: AsyncIterator[pb.UpdateChunk], context: Context) -> pb.Signed:
        """A replica shows what was drawn, or a witness what it has computed."""
        call, chunks = self._entrance.call(context, "submit_opening"), aiter(request_iterator)
        try:
            call.knock(self._entrance.limits.streams)
            signed = await first_of(chunks, FIRST_S)
            head = call.open(signed, pb.OpeningHead, call.joined)
            receipt = await self._auditing.receive(call.known(), head, signed, chunks)
        except HocketError as error:
            await call.refuse(error)
        return call.sign(receipt)

    async def Leave(self, request: pb.Signed, context: Context) -> pb.Signed:
        """A member goes."""
        call = self._entrance.call(context, "leave")
        try:
            leave = call.open(request, pb.LeaveRequest, call.joined)
            call.fresh()
            self._core.leave(call.sender, leave.reason, call.nonce)
        except HocketError as error:
            await call.refuse(error)
        return call.sign(pb.LeaveReply())

    async def Manage(self, request: pb.Signed, context: Context) -> pb.Signed:
        """The organiser, who holds the coordinator's own key, asks for something."""
        call = self._entrance.call(context, "manage")

        def organiser(sender: str) -> None:
            if sender != self._entrance.key.member_id:
                raise HocketError(Code.SIGNATURE_INVALID, "this is for the coordinator's own key")

        try:
            wanted = call.open(request, pb.ManageRequest, organiser)
            call.fresh()
            answer = manage(self._core, wanted, call.nonce)
        except HocketError as error:
            await call.refuse(error)
        return call.sign(pb.ManageReply(json=_compact(answer)))

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        """For people: no secret in it."""
        call = self._entrance.call(context, "status")
        try:
            call.knock(self._entrance.limits.status)
        except HocketError as error:
            await call.refuse(error)
        return pb.StatusReply(json=_compact(status_json(self._core, request.after_round)))

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _view(self, member: str) -> pb.RunView:
        made = view(self._core.state, self._core.config, self._core.sizes, member, self._providers())
        self._auditing.add_to(made, member)
        if (receipt := self._receipts.of(member)) is not None:
            made.receipt.CopyFrom(receipt)
        return made


async def first_of(chunks: AsyncIterator[pb.UpdateChunk], limit_s: float) -> pb.Signed:
    """The signed head that a stream begins with. STREAM_BROKEN for anything else, or nothing within `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            first = await anext(chunks, None)
    except TimeoutError:
        raise HocketError(Code.STREAM_BROKEN, f"nothing came for {limit_s:.1f} s", remedy="send it again") from None
    if first is None or first.WhichOneof("part") != "head":
        raise HocketError(Code.STREAM_BROKEN, "a stream begins with its head")
    return first.head


def _invitation(payload: bytes) -> str:
    """What invitation a request to join shows; of one that cannot be read: none, as it is refused for that later on."""
    try:
        return pb.JoinRequest.FromString(payload).invitation
    except DecodeError:
        return ""


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
