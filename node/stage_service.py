"""Serves train_step: the door through which the previous stage's microbatches come in and their gradients go out.

Nothing of a request is computed before its signature, its sender, its round and its tensors have been checked. A request
that fails one of these is answered with the protocol's refusal; one whose signature fails is not answered at all but by
the carrier's error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field

import numpy as np

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from node.commitments import PassTrace
from node.context import RoundContext
from node.downstream import Downstream, Errand, Sending
from node.edge_checks import EdgeChecks
from node.microbatches import Outcome
from node.replica import Refused, Replica
from node.session import now_ms
from node.wire import (
    ANSWER_METHOD,
    MAX_REQUEST_BYTES,
    REQUEST_METHOD,
    TRAIN_STEP_PROTOCOL,
    StepAnswer,
    StepInput,
    parse_request,
    parse_signed,
    read_input,
    received,
)
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, member_id
from protocol.messages import NonceWindow, make_signed, open_signed
from protocol.tensors import ENCODINGS, digest_of
from swarm.carrier import Carrier, Message
from tts.batch import Side

logger = logging.getLogger(__name__)

MAX_DEADLINE_S = 600.0
HOLD_SHARE = 0.5


@dataclass
class Serving:
    """A round that is being served: replaced as a whole when the next one opens.

    Args:
        replica: of this stage. downstream: the way to the next stage; None in the last.
        edges: judges the hidden states that arrive.
    """

    context: RoundContext
    replica: Replica
    downstream: Downstream | None
    edges: EdgeChecks = field(default_factory=EdgeChecks)

    def follow(self, context: RoundContext) -> None:
        """Take over a new roster within the round."""
        self.context = context
        self.replica.context = context
        if self.downstream is not None:
            self.downstream.follow(context)


@dataclass
class _Job:
    """A microbatch being computed, and how many callers wait for it."""

    task: asyncio.Task[StepAnswer]
    waiters: int = 0


class StageService:
    """The train_step server of a worker that serves a stage other than the first.

    Args:
        carrier, key: ours. run_id: of the run.
        faults: points `node.forward.before` and `node.answer.half`.
    """

    def __init__(self, carrier: Carrier, key: MemberKey, run_id: str, *, faults: Faults = NO_FAULTS) -> None:
        self._carrier = carrier
        self._key = key
        self._run_id = run_id
        self._faults = faults
        self._nonces = NonceWindow()
        self._jobs: dict[tuple[int, bytes], _Job] = {}
        self._serving: Serving | None = None

    async def start(self) -> None:
        await self._carrier.serve(TRAIN_STEP_PROTOCOL, self.handle, max_request_bytes=MAX_REQUEST_BYTES)

    def serve(self, serving: Serving | None) -> None:
        """Serve this round from now on, or none. What is still computed for the round before is broken off."""
        self.break_off()
        self._serving = serving

    def break_off(self) -> None:
        """Cancel the microbatches that still wait for the next stage; their callers are told that the round drains."""
        for job in self._jobs.values():
            job.task.cancel()
        self._jobs = {}

    # ---- a request --------------------------------------------------------------------------------------------------

    async def handle(self, peer_id: str, message: Message) -> Message:
        """Answer one request of a peer.

        Raises:
            HocketError: SIGNATURE_INVALID and the like; the carrier tells the caller.
        """
        header, payload = open_signed(
            parse_signed(message.head),
            method=REQUEST_METHOD,
            run_id=self._run_id,
            receiver=self._key.member_id,
            now_ms=now_ms(),
            nonces=None,
        )
        sender = member_id(header.public_key)
        request = parse_request(payload)
        encoding = request.wire if request.wire in ENCODINGS else "fp32"
        try:
            serving = self._check(peer_id, sender, header, request)
            # Keys cost nothing: those that are not on the roster must not crowd out what is remembered of those that are.
            self._nonces.check(header.public_key, header.nonce, header.time_ms, now_ms())
            answer, body = (await self._answer(serving, sender, request, message, encoding)).encode(encoding)
        except Refused as refused:
            answer = pb.TrainStepAnswer(
                refusal=refused.refusal,
                detail=refused.detail,
                failed_stage=refused.failed_stage,
                failed_peer=refused.failed_peer,
                attempts_used=refused.attempts_used,
            )
            body = []
        except HocketError as error:
            if error.code is not Code.DEVICE_FAILED:
                raise
            # No mark against the sender, nor against us: we are back as soon as the engine is.
            answer, body = pb.TrainStepAnswer(refusal=pb.BUSY, detail="the compute engine is started anew"), []
        signed = make_signed(
            self._key,
            method=ANSWER_METHOD,
            payload=answer,
            run_id=self._run_id,
            receiver=sender,
            round=request.round,
            base_cid=request.base_cid,
            stage=request.stage,
            now_ms=now_ms(),
            nonce=header.nonce,
        )
        if not answer.refusal and request.mode == pb.TRAIN:
            self._faults.reach("node.answer.half", round=request.round, stage=request.stage, microbatch=request.microbatch_id)
        return Message(signed.SerializeToString(), list(body))

    def _check(self, peer_id: str, sender: str, header: pb.SignedHeader, request: pb.TrainStepRequest) -> Serving:
        """Who sends it, and whether it is for this round, this version and this stage."""
        serving = self._serving
        if serving is None:
            raise Refused(pb.WRONG_ROUND, "no round is served here yet")
        context = serving.context
        entry = context.roster.by_peer(peer_id)
        if entry is None or entry.member_id != sender or entry.role != pb.REPLICA:
            raise Refused(pb.NOT_A_MEMBER, f"the roster of round {context.round} has no such replica")
        if (header.round, header.base_cid, header.stage) != (
            request.round,
            request.base_cid,
            request.stage,
        ) or request.run_id != self._run_id:
            raise Refused(pb.BAD_INPUT, "the signed header does not fit the request")
        if request.round != context.round:
            raise Refused(pb.WRONG_ROUND, f"round {request.round} was asked for, round {context.round} is served")
        if request.base_cid != context.base_cid:
            raise Refused(pb.WRONG_BASE, f"version {request.base_cid[:16]} was asked for, {context.base_cid[:16]} is served")
        if request.receiver_generation != context.generation:
            raise Refused(
                pb.FENCED, f"generation {request.receiver_generation} of this member was asked for, it is {context.generation}"
            )
        if request.generation != entry.generation:
            raise Refused(pb.FENCED, f"the sender's generation is {entry.generation}, not {request.generation}")
        if request.stage != context.stage or entry.stage != context.stage - 1:
            raise Refused(pb.BAD_INPUT, f"stage {entry.stage} asks for stage {request.stage}; this is stage {context.stage}")
        if request.mode not in (pb.TRAIN, pb.EVAL):
            raise Refused(pb.BAD_INPUT, f"mode {request.mode} is not served")
        if not 0 < request.deadline_s <= MAX_DEADLINE_S or request.attempts < 1:
            raise Refused(pb.BAD_INPUT, f"a budget of {request.attempts} tries in {request.deadline_s} s")
        return serving

    async def _answer(
        self, serving: Serving, sender: str, request: pb.TrainStepRequest, message: Message, encoding: str
    ) -> StepAnswer:
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        try:
            step_input, side = read_input(request, message.body_bytes, serving.context.config)
        except HocketError as error:
            raise Refused(pb.BAD_INPUT, error.line()) from error
        digest = digest_of(request.tensors)
        if request.mode == pb.EVAL:
            return await self._evaluate(serving, request, step_input, side, digest, deadline)
        key = (request.microbatch_id, digest)
        job = self._jobs.get(key)
        if job is None:
            came = next(head.sha256 for head in request.tensors if head.name == "hidden")
            finding = serving.edges.arrived(
                "hidden", sender, request.microbatch_id, step_input.hidden, step_input.side["n_frames"], came
            )
            if finding.refused:
                raise Refused(pb.BAD_INPUT, finding.reason)
            verdict = serving.replica.ledger.arrive(request.microbatch_id, digest, request.frames)
            if verdict.outcome is Outcome.SAME:
                stored = serving.replica.ledger.answer(request.microbatch_id, digest)
                if stored is not None:
                    return stored
            counts = verdict.outcome is Outcome.NEW
            if not counts:
                logger.info("microbatch %d is not counted: %s", request.microbatch_id, verdict.reason)
            trace = PassTrace(
                request.microbatch_id, request.frames, request.inner_step_frames, encoding,
                received(request.tensors, message), digest, sender, message.head,
            )  # fmt: skip
            job = _Job(asyncio.ensure_future(self._train(serving, request, step_input, side, trace, deadline, counts)))
            self._jobs[key] = job
            job.task.add_done_callback(lambda task: self._finished(key, task))
        else:
            serving.replica.ledger.arrive(request.microbatch_id, digest, request.frames)
        return await self._wait(job)

    def _finished(self, key: tuple[int, bytes], task: asyncio.Task[StepAnswer]) -> None:
        job = self._jobs.get(key)
        if job is not None and job.task is task:
            del self._jobs[key]
        if not task.cancelled():
            task.exception()  # every waiter gets it; with none left there is nobody to tell

    async def _wait(self, job: _Job) -> StepAnswer:
        """Wait for a computation that others may wait for too; the last one to leave takes it along."""
        job.waiters += 1
        try:
            return await asyncio.shield(job.task)
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if job.task.cancelled() and not (current is not None and current.cancelling()):
                raise Refused(pb.DRAINING, "the round was closed before the next stage had answered") from error
            if job.waiters == 1:
                job.task.cancel()
            raise
        finally:
            job.waiters -= 1

    # ---- the work ---------------------------------------------------------------------------------------------------

    async def _train(
        self,
        serving: Serving,
        request: pb.TrainStepRequest,
        step_input: StepInput,
        side: Side,
        trace: PassTrace,
        deadline: float,
        counts: bool,
    ) -> StepAnswer:
        replica, context, identifier, digest = serving.replica, serving.context, request.microbatch_id, trace.input_digest
        taken = None
        try:
            hold_s = HOLD_SHARE * request.deadline_s
            taken = await replica.admit(
                identifier, request.frames, request.inner_step_frames, counts=counts, hold_s=hold_s,
                retried=request.attempts < context.settings.attempts,
            )  # fmt: skip
            taken.trace = trace
            self._faults.reach("node.forward.before", round=context.round, stage=context.stage, microbatch=identifier)
            kept = await replica.forward(taken, None, step_input.hidden, side)
            path: tuple[pb.PathEntry, ...] = (
                pb.PathEntry(stage=context.stage, peer_id=context.peer_id, digest=digest, pid=os.getpid()),
            )
            if serving.downstream is None:
                losses, used = kept.losses, 0
                trace.went_on(None, losses)
                grad = await replica.backward(taken, None, losses)
            else:
                below = await self._pass_on(
                    serving, serving.downstream, request, kept.hidden, step_input, deadline, trace.sending
                )
                losses, used, path = kept.losses + below.losses, below.attempts_used, (*path, *below.path)
                trace.went_on(below.exchange, kept.losses)
                grad = await replica.backward(taken, below.grad, losses)
            answer = StepAnswer(grad, losses, path, used, taken.encoded)
            replica.ledger.store(identifier, digest, answer, grad.nbytes if grad is not None else 0)
            return answer
        except HocketError as error:
            if isinstance(error, Refused) or error.code in (Code.CARRIER_FAILED, Code.DEVICE_FAILED):
                raise
            # What is not finite here came with the input or from our own weights: the caller may try another replica.
            raise Refused(pb.BAD_INPUT, error.line()) from error
        finally:
            if taken is not None:
                replica.give_up(taken)  # does nothing once the backward pass has begun
            elif counts:
                replica.ledger.give_up(identifier, lost=False)

    async def _pass_on(
        self,
        serving: Serving,
        downstream: Downstream,
        request: pb.TrainStepRequest,
        hidden: np.ndarray | None,
        step_input: StepInput,
        deadline: float,
        sending: Sending = lambda tensors: None,
    ) -> StepAnswer:
        if hidden is None:
            raise RuntimeError("a stage before the last has nothing to send on")
        errand = Errand(
            request.microbatch_id, request.frames, request.inner_step_frames, request.mode, request.attempts, deadline
        )
        onward = StepInput(hidden, step_input.side)
        return await downstream.call(errand, onward, own_step=serving.replica.account.step, sending=sending)

    async def _evaluate(
        self, serving: Serving, request: pb.TrainStepRequest, step_input: StepInput, side: Side, digest: bytes, deadline: float
    ) -> StepAnswer:
        """Forward on the base weights; nothing is counted."""
        context = serving.context
        hidden, losses = await serving.replica.evaluate(None, step_input.hidden, side)
        path = (pb.PathEntry(stage=context.stage, peer_id=context.peer_id, digest=digest, pid=os.getpid()),)
        if serving.downstream is None:
            return StepAnswer(None, losses, path, 0)
        below = await self._pass_on(serving, serving.downstream, request, hidden, step_input, deadline)
        return StepAnswer(None, losses + below.losses, (*path, *below.path), below.attempts_used)
