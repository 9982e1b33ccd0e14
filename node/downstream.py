"""Calls a replica of the next stage, and another one when that fails: the only place of the chain where a call is repeated.

The caller holds the activation until it has an answer. A replica that cannot be reached, goes silent, breaks off or answers
nonsense costs one try of the budget and is left alone for a while. One that is busy, draining or of another round costs a
short wait. A failure further down comes back as DOWNSTREAM_FAILED and is passed on: whoever called that stage has done
what could be done.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from node.arrivals import Arrivals
from node.callees import Callees
from node.context import RoundContext
from node.edge_checks import EdgeChecks
from node.pace import Pace
from node.peers import AddressBook
from node.replica import EventSink, Refused
from node.router import Router
from node.session import now_ms
from node.wire import (
    ANSWER_METHOD,
    REQUEST_METHOD,
    Exchange,
    StepAnswer,
    StepInput,
    parse_signed,
    read_answer,
    received,
)
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, public_from_member_id
from protocol.messages import make_signed, new_nonce, open_signed
from protocol.tensors import EncodedTensor
from swarm.carrier import Carrier, Message

logger = logging.getLogger(__name__)

HOP_MARGIN_S = 0.25
OTHER_ROUND_PAUSE_S = 0.5
LOOK_AGAIN_S = 0.25  # a replica may be back, or a new one there, before the router's own time
_OUR_FAULT = (Code.CARRIER_FAILED,)

Sending = Callable[[Sequence[EncodedTensor]], None]


@dataclass(frozen=True)
class Errand:
    """One microbatch on its way down.

    Args:
        microbatch_id, frames, mode: of the microbatch.
        inner_step_frames: of the sender's inner step, so that frames / inner_step_frames is the microbatch's share of it.
        attempts: failed tries that may still be spent from here on down, the last one included.
        deadline: in the loop's time, when an answer is of no more use.
    """

    microbatch_id: int
    frames: int
    inner_step_frames: int
    mode: pb.Mode
    attempts: int
    deadline: float

    @property
    def share(self) -> Fraction:
        return Fraction(self.frames, self.inner_step_frames)


@dataclass
class DownstreamStats:
    """Of the round, for reports.

    Args:
        suspects: peer ids of replicas that failed and have not answered since.
    """

    reroutes: int = 0
    longest_wait_s: float = 0.0
    suspects: set[str] = field(default_factory=set)


@dataclass
class _Attempt:
    """What has been tried for one errand."""

    tried: list[str] = field(default_factory=list)
    spent: int = 0
    failed_peer: str = ""
    failed_at: float = math.inf
    first_sent: float = math.inf
    reason: str = ""


class Downstream:
    """The way to the next stage in one round.

    Args:
        carrier, key: ours. context: of the round. book: of addresses.
        event: writes to the worker's event log.
        arrivals, pace: what is known of the next stage's replicas from earlier rounds.
        poke: makes the worker report soon: the coordinator should hear of a suspicion at once.
        edges: judges the gradients that come back.
    """

    def __init__(
        self,
        carrier: Carrier,
        key: MemberKey,
        context: RoundContext,
        book: AddressBook,
        event: EventSink,
        *,
        arrivals: Arrivals | None = None,
        pace: Pace | None = None,
        poke: Callable[[], None] = lambda: None,
        edges: EdgeChecks | None = None,
    ) -> None:
        self._edges = edges or EdgeChecks()
        self._callees = Callees(carrier, arrivals or Arrivals())
        self._poke = poke
        self._key = key
        self._context = context
        self._book = book
        self._event = event
        self._members = {entry.peer_id: entry for entry in context.next_replicas()}
        # Evaluation is routed by itself, so that it does not shift the shares of the inner steps.
        paces = {pb.TRAIN: pace or Pace(), pb.EVAL: Pace()}
        self._routers = {mode: Router(list(self._members), start=context.index, pace=paces[mode]) for mode in paces}
        self._closing = False
        self.stats = DownstreamStats()

    def follow(self, context: RoundContext) -> None:
        """Take over a new roster within the round: replicas come and go, and nobody waits for one that has gone."""
        self._context = context
        before, self._members = self._members, {entry.peer_id: entry for entry in context.next_replicas()}
        for peer, entry in before.items():
            now = self._members.get(peer)
            if now is None or now.generation != entry.generation:
                self._callees.drop(peer, "the roster has it no longer in the place for which it was called")
                self.stats.suspects.discard(peer)
        for router in self._routers.values():
            router.replace(list(self._members))

    def close(self) -> None:
        """From now on nobody new is waited for: a microbatch that no replica takes is given up."""
        self._closing = True

    async def call(
        self, errand: Errand, step_input: StepInput, *, own_step: int, sending: Sending = lambda tensors: None
    ) -> StepAnswer:
        """Send a microbatch to the next stage and await its gradient.

        Args:
            step_input: for the next stage.
            own_step: number of our own inner step, within which the replicas get their shares.
            sending: told what is sent, as it travels, before it is.

        Raises:
            Refused: DOWNSTREAM_FAILED when the budgets are spent.
            HocketError: NOT_FINITE when our own hidden states are; CARRIER_FAILED.
        """
        loop = asyncio.get_running_loop()
        tensors = step_input.encode(self._context.settings.wire or "fp32")
        sending(tensors)
        router = self._routers[errand.mode]
        router.begin_step(own_step)
        attempt = _Attempt()
        while True:
            now = loop.time()
            if attempt.spent >= errand.attempts:
                raise self._failed(attempt, f"no try is left after {attempt.reason}")
            choice = router.choose(errand.share, now=now, avoid=attempt.tried)
            if choice.peer is None:
                # Where a stage has nobody left, somebody may come: a standby, or a member that returns.
                wait_s = LOOK_AGAIN_S if math.isinf(choice.wait_s) and not self._closing else choice.wait_s
                if now + wait_s >= errand.deadline - HOP_MARGIN_S:
                    raise self._failed(attempt, choice.reason)
                await asyncio.sleep(min(wait_s, LOOK_AGAIN_S))
                continue
            budget_s = errand.deadline - HOP_MARGIN_S - now
            if budget_s <= 0:
                router.pause(choice.peer, errand.share, now=now, why="no time left", pause_s=0.0)
                raise self._failed(attempt, f"no time is left after {attempt.reason or 'waiting'}")
            attempt.first_sent = min(attempt.first_sent, now)
            entry = self._members[choice.peer]
            request = self._request(errand, entry, attempt, budget_s)
            request.tensors.extend(tensor.head for tensor in tensors)
            answer = await self._try(errand, entry, request, tensors, step_input, attempt, budget_s)
            if answer is not None:
                router.answered(choice.peer, errand.share, sent=now, now=loop.time())
                self.stats.suspects.discard(choice.peer)
                self._note_recovery(errand, choice.peer, attempt)
                return replace(answer, attempts_used=answer.attempts_used + attempt.spent)

    def _request(self, errand: Errand, entry: pb.RosterEntry, attempt: _Attempt, budget_s: float) -> pb.TrainStepRequest:
        context = self._context
        return pb.TrainStepRequest(
            run_id=context.run_id,
            round=context.round,
            base_cid=context.base_cid,
            stage=context.stage + 1,
            microbatch_id=errand.microbatch_id,
            attempts=errand.attempts - attempt.spent,
            deadline_s=budget_s,
            mode=errand.mode,
            seed=context.settings.seed,
            inner_step_frames=errand.inner_step_frames,
            generation=context.generation,
            receiver_generation=entry.generation,
            frames=errand.frames,
            wire=context.settings.wire or "fp32",
        )

    async def _try(
        self,
        errand: Errand,
        entry: pb.RosterEntry,
        request: pb.TrainStepRequest,
        tensors: Sequence[EncodedTensor],
        step_input: StepInput,
        attempt: _Attempt,
        budget_s: float,
    ) -> StepAnswer | None:
        """One call; None when another should follow."""
        context, peer = self._context, entry.peer_id
        nonce = new_nonce()
        signed = make_signed(
            self._key,
            method=REQUEST_METHOD,
            payload=request,
            run_id=context.run_id,
            receiver=entry.member_id,
            round=context.round,
            base_cid=context.base_cid,
            stage=context.stage + 1,
            now_ms=now_ms(),
            nonce=nonce,
        )
        loop = asyncio.get_running_loop()
        sent = loop.time()
        try:
            message = await self._callees.call(
                self._book.address(peer),
                Message(signed.SerializeToString(), [tensor.data for tensor in tensors]),
                ceiling_s=context.settings.silence_s,
                deadline_s=budget_s,
            )
            answer = self._open(entry, message, nonce)
            if not answer.refusal:
                came = read_answer(
                    answer,
                    message,
                    mode=errand.mode,
                    shape=step_input.hidden.shape,
                    config=context.config,
                    next_stage=context.stage + 1,
                )
                self._judge(errand, entry, step_input, came, answer.tensors)
                return replace(came, exchange=Exchange(received(answer.tensors, message), message.head))
        except HocketError as error:
            if error.code in _OUR_FAULT:
                raise
            self._peer_failed(errand, peer, error.line(), attempt, sent)
            return None
        self._refused(errand, peer, answer, attempt)
        return None

    def _open(self, entry: pb.RosterEntry, message: Message, nonce: bytes) -> pb.TrainStepAnswer:
        """Check that an answer is signed by the member that the roster has at this peer, for the request with this nonce."""
        header, payload = open_signed(
            parse_signed(message.head),
            method=ANSWER_METHOD,
            run_id=self._context.run_id,
            receiver=self._context.member_id,
            now_ms=now_ms(),
            nonces=None,
            request_nonce=nonce,
        )
        if header.public_key != public_from_member_id(entry.member_id):
            raise HocketError(Code.SIGNATURE_INVALID, f"the answer of {entry.peer_id} is signed by another member")
        try:
            return pb.TrainStepAnswer.FromString(payload)
        except DecodeError as error:
            raise HocketError(Code.PEER_REFUSED, f"the answer of {entry.peer_id} cannot be read") from error

    def _judge(
        self, errand: Errand, entry: pb.RosterEntry, sent: StepInput, read: StepAnswer, heads: Iterable[pb.TensorHead]
    ) -> None:
        """PEER_REFUSED for a gradient far out of what is usual here."""
        if read.grad is None:
            return
        came = next(head.sha256 for head in heads if head.name == "grad")
        finding = self._edges.arrived("grad", entry.member_id, errand.microbatch_id, read.grad, sent.side["n_frames"], came)
        if finding.refused:
            raise HocketError(Code.PEER_REFUSED, f"the gradient of {entry.peer_id}: {finding.reason}")

    def _peer_failed(self, errand: Errand, peer: str, reason: str, attempt: _Attempt, sent: float) -> None:
        """A replica failed: one try is spent, it is left alone, and its address is looked up again."""
        now = asyncio.get_running_loop().time()
        back_off_s = self._routers[errand.mode].failed(peer, errand.share, now=now, why=reason)
        attempt.spent += 1
        attempt.tried.append(peer)
        attempt.reason = reason
        if not attempt.failed_peer:
            attempt.failed_peer, attempt.failed_at = peer, now
        if peer in self._members:
            self.stats.suspects.add(peer)
            self._poke()
        logger.warning("microbatch %d: %s failed, left alone for %.1f s: %s", errand.microbatch_id, peer, back_off_s, reason)
        self._event(
            "suspected",
            round=self._context.round,
            id=errand.microbatch_id,
            stage=self._context.stage + 1,
            peer=peer,
            after_s=now - sent,
            reason=reason,
        )
        self._book.refresh_soon(self._context.stage + 1)

    def _refused(self, errand: Errand, peer: str, answer: pb.TrainStepAnswer, attempt: _Attempt) -> None:
        """A replica answered with a refusal: wait, go elsewhere, or hand the failure up."""
        now = asyncio.get_running_loop().time()
        router = self._routers[errand.mode]
        word = pb.Refusal.Name(answer.refusal) if answer.refusal in pb.Refusal.values() else str(answer.refusal)
        detail = f"{word}: {answer.detail[:200]}"
        if answer.refusal == pb.DOWNSTREAM_FAILED:
            router.pause(peer, errand.share, now=now, why=detail, pause_s=0.0)
            raise Refused(
                pb.DOWNSTREAM_FAILED,
                answer.detail[:200],
                stage=answer.failed_stage,
                peer=answer.failed_peer,
                attempts_used=attempt.spent + answer.attempts_used,
            )
        attempt.reason = detail
        if answer.refusal == pb.DRAINING:
            router.drained(peer, errand.share)
        elif answer.refusal == pb.BUSY:
            router.pause(peer, errand.share, now=now, why=detail)
        elif answer.refusal in (pb.WRONG_ROUND, pb.WRONG_BASE, pb.FENCED, pb.NOT_A_MEMBER):
            router.pause(peer, errand.share, now=now, why=detail, pause_s=OTHER_ROUND_PAUSE_S)
        else:
            # BAD_INPUT, or a word we do not know: a try, but no mark; the input may be at fault.
            router.pause(peer, errand.share, now=now, why=detail)
            attempt.spent += 1
            attempt.tried.append(peer)
        logger.info("microbatch %d: %s refused: %s", errand.microbatch_id, peer, detail)

    def _failed(self, attempt: _Attempt, reason: str) -> Refused:
        stage = self._context.stage + 1
        return Refused(
            pb.DOWNSTREAM_FAILED, f"stage {stage}: {reason}", stage=stage, peer=attempt.failed_peer, attempts_used=attempt.spent
        )

    def _note_recovery(self, errand: Errand, peer: str, attempt: _Attempt) -> None:
        """A microbatch that met a failed replica has been answered by another."""
        now = asyncio.get_running_loop().time()
        if not attempt.failed_peer or errand.mode != pb.TRAIN:
            return
        waited_s = now - attempt.first_sent
        self.stats.reroutes += 1
        self.stats.longest_wait_s = max(self.stats.longest_wait_s, waited_s)
        self._event(
            "rerouted",
            round=self._context.round,
            id=errand.microbatch_id,
            stage=self._context.stage + 1,
            from_peer=attempt.failed_peer,
            to_peer=peer,
            waited_s=waited_s,
            detected_after_s=attempt.failed_at - attempt.first_sent,
            reason=attempt.reason,
        )
