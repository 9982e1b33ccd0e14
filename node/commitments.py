"""What a replica can be held to in a round: traces of its passes, a chain of commits, and what may have to be opened.

A trace is filled in by those whom a pass meets; what travelled is kept as it travelled. After each inner step the state of the
stage is copied on the engine's thread, and digests, records and the link are made from that copy beside the training. What has
been committed is held until the coordinator has said whether it draws it, so that memory is bounded by a few states, however long
the round is; the training waits when too many steps are unanswered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.errors import HocketError
from node.context import RoundContext
from node.engine import Engine, Priority
from node.local_sgd import LocalStage
from node.wire import Exchange, Losses
from protocol.commitments import ChainStart, link_of, state_digests
from protocol.generated import hocket_pb2 as pb
from protocol.openings import About, Group, MicrobatchAbout, group_digest
from protocol.tensors import EncodedTensor, encode

logger = logging.getLogger(__name__)

MAX_UNANSWERED = 3
SIGNED_BYTES = 32 << 20
STEP_WITH_OUTPUTS = 1  # the one whose passes a witness can recompute: they ran on the round's base

State = dict[str, np.ndarray]


@dataclass
class PassTrace:
    """What one pass of a microbatch met on its way.

    Args:
        identifier, frames: of the microbatch. inner_step_frames: of its sender's inner step. wire: wanted for the answer.
        input: what came in. input_digest: of `group_digest`, where it is known already.
        sender: member id; empty in stage 0. request: the signed request as it came; empty in stage 0.
        leased: in stage 0 the rows that the microbatch is a part of.
    """

    identifier: int
    frames: int
    inner_step_frames: int
    wire: str
    input: Group
    input_digest: bytes
    sender: str = ""
    request: bytes = b""
    answer: bytes = b""
    output: Group = ()
    output_digest: bytes = b""
    gradient_in: Group = ()
    gradient_in_digest: bytes = b""
    gradient_out: Group = ()
    gradient_out_digest: bytes = b""
    leased: pb.LeasedRows | None = None

    def sending(self, tensors: Sequence[EncodedTensor]) -> None:
        """The forward pass has ended, and this is about to be sent on."""
        self.output = tuple(tensors)
        self.output_digest = group_digest(self.output)

    def went_on(self, exchange: Exchange | None, losses: Losses) -> None:
        """The next stage has answered what was sent; or, in the last stage, the losses are known."""
        if exchange is None:
            self.output = losses_arrays(losses)
            self.output_digest = group_digest(self.output)
        else:
            self.gradient_in, self.answer = exchange.came, exchange.signed
            self.gradient_in_digest = group_digest(self.gradient_in)

    def returned(self, grad: np.ndarray) -> EncodedTensor | None:
        """Our backward pass is done; the gradient as it will travel, None when it is not finite and cannot.

        Args:
            grad: float32 [B, S, D] of what came in.
        """
        try:
            encoded = encode("grad", grad, self.wire)
        except HocketError as error:
            logger.warning("microbatch %d: nothing can be returned: %s", self.identifier, error.line())
            return None
        self.gradient_out = (encoded,)
        self.gradient_out_digest = group_digest(self.gradient_out)
        return encoded

    def forget_outputs(self) -> None:
        """Keep the digests alone of what went out."""
        self.output = self.gradient_out = ()

    def record(self, *, counted: bool = True) -> pb.MicrobatchRecord:
        """The record of the pass; of one that was not counted it has no frames."""
        return pb.MicrobatchRecord(
            id=self.identifier,
            frames=self.frames if counted else 0,
            input=self.input_digest,
            output=self.output_digest,
            gradient_in=self.gradient_in_digest,
            gradient_out=self.gradient_out_digest,
            sender=self.sender,
            leased=self.leased,
        )

    def about(self) -> MicrobatchAbout:
        return MicrobatchAbout(
            id=self.identifier, frames=self.frames, inner_step_frames=self.inner_step_frames, wire=self.wire
        )


def losses_arrays(losses: Losses) -> dict[str, np.ndarray]:
    """The output of the last stage: `ce` float64 [K] and `count` int64 [K], sums per codebook."""
    return {"ce": np.array(losses.ce, np.float64), "count": np.array(losses.count, np.int64)}


class Chain:
    """The hash chain of one generation of a member in one round. Pure.

    Args:
        start: what it belongs to.
    """

    def __init__(self, start: ChainStart) -> None:
        self._start = start
        self._last: pb.StepCommit | None = None

    def add(
        self, update_digest: bytes, moments_digest: bytes, records: Sequence[pb.MicrobatchRecord], frames: int, lr: float
    ) -> pb.StepCommit:
        """The next commit; the first one begins the chain and has neither records nor frames."""
        in_order: list[pb.MicrobatchRecord] = sorted(records, key=lambda record: record.id)
        commit = pb.StepCommit(
            round=self._start.round,
            generation=self._start.generation,
            stage=self._start.stage,
            step=0 if self._last is None else self._last.step + 1,
            previous=self._start.previous if self._last is None else self._last.link,
            update_digest=update_digest,
            moments_digest=moments_digest,
            records=in_order,
            frames=frames,
            lr=lr,
            part=self._start.part,
        )
        commit.link = link_of(commit, self._start)
        self._last = commit
        return commit


@dataclass
class HeldStep:
    """An inner step that may have to be opened; step 0 is the beginning.

    Args:
        about: for its openings. before, after: the states around it; no `before` in step 0.
        steps_taken: by the optimizer, until the state after it.
        traces: of its microbatches, by id. records: of them, and of passes that were not counted.
        commit: comes once the digests are made.
    """

    about: About
    before: State | None
    after: State
    traces: dict[int, PassTrace]
    records: list[pb.MicrobatchRecord]
    steps_taken: int
    commit: asyncio.Task[pb.StepCommit] = field(init=False)
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def step(self) -> int:
        return self.about.step


class Recorder:
    """Records one round of one replica. All methods belong to the event loop.

    Args:
        local, engine: the stage and its thread. context: of the round.
        previous: the last link of the progress that was resumed. part: as in `ChainStart`.
        max_unanswered: steps that are held for an answer before the training waits.
    """

    def __init__(
        self,
        local: LocalStage,
        engine: Engine,
        context: RoundContext,
        *,
        previous: bytes = b"",
        part: int = 0,
        max_unanswered: int = MAX_UNANSWERED,
    ) -> None:
        self._local = local
        self._engine = engine
        self._context = context
        start = ChainStart(
            context.run_id, context.round, context.stage, context.member_id, context.generation, context.base_cid, previous, part
        )
        self._chain = Chain(start)
        self.part = part
        self._max_unanswered = max_unanswered
        self._base = local.base_arrays()
        self._traces: dict[int, PassTrace] = {}
        self._uncounted: list[pb.MicrobatchRecord] = []
        self._held: OrderedDict[int, HeldStep] = OrderedDict()
        self._unanswered: set[int] = set()
        self._signed: OrderedDict[int, tuple[bytes, bytes]] = OrderedDict()
        self._signed_bytes = 0
        self._answered = asyncio.Event()
        self._waits = True  # the training, where too much is unanswered
        self.on = True
        self.steps: asyncio.Queue[HeldStep] = asyncio.Queue()  # to be committed, in order

    @property
    def context(self) -> RoundContext:
        return self._context

    # ---- recording --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin the chain with the state that the stage has now."""
        state = await self._engine.run(Priority.STEP, self._local.copied_state)
        self._hold(HeldStep(self._about(0, 0.0, 1.0, 0, {}), None, state, {}, [], self._local.steps_taken))

    def passed(self, trace: PassTrace) -> None:
        """The gradient of a counted microbatch is in the sum."""
        if not self.on:
            return
        last = next(reversed(self._held), 0)
        if last + 1 != STEP_WITH_OUTPUTS:
            trace.forget_outputs()
        self._traces[trace.identifier] = trace
        known = self._signed.pop(trace.identifier, (b"", b""))  # where its gradient was thrown away, and it came again
        self._signed[trace.identifier] = signed = (trace.request, trace.answer)
        self._signed_bytes += sum(map(len, signed)) - sum(map(len, known))
        trace.request = trace.answer = b""
        while self._signed_bytes > SIGNED_BYTES:
            self._signed_bytes -= sum(map(len, self._signed.popitem(last=False)[1]))

    def uncounted(self, trace: PassTrace) -> None:
        """A pass ended without being counted. What was signed for it is committed to all the same: an honest member may have to
        send a microbatch twice, computed on other weights, and must not be taken for one that says different things to two."""
        if self.on and (trace.output_digest or trace.gradient_out_digest):
            self._uncounted.append(trace.record(counted=False))

    def discarded(self, identifiers: list[int]) -> None:
        """The gradients of these microbatches were thrown away."""
        for identifier in identifiers:
            trace = self._traces.pop(identifier, None)
            if trace is not None:
                self.uncounted(trace)

    def take_uncounted(self) -> list[pb.MicrobatchRecord]:
        """Records of the passes since the last step that were not counted; they are to be told in another way then."""
        taken, self._uncounted = self._uncounted, []
        return taken

    async def room(self) -> None:
        """Wait, before a step is taken, until few enough are unanswered."""
        while self.on and self._waits and len(self._unanswered) >= self._max_unanswered:
            self._answered.clear()
            await self._answered.wait()

    def stepped(self, identifiers: list[int], frames: int, lr: float, ramp: float, after: State) -> None:
        """An inner step was taken on these microbatches.

        Args:
            frames: by which its gradients were divided. lr: its learning rate. ramp: the factor in it for a late joiner.
            after: the state that it has led to, of `LocalStage.copied_state`.
        """
        if not self.on:
            return
        traces = {identifier: self._traces.pop(identifier) for identifier in sorted(identifiers)}
        before = self._held[next(reversed(self._held))]
        if before.step not in self._unanswered:
            del self._held[before.step]
        records = [*(trace.record() for trace in traces.values()), *self.take_uncounted()]
        about = self._about(before.step + 1, lr, ramp, frames, traces)
        self._hold(HeldStep(about, before.after, after, traces, records, before.steps_taken + 1))

    def _about(self, step: int, lr: float, ramp: float, frames: int, traces: Mapping[int, PassTrace]) -> About:
        settings = self._context.settings
        return self._context.about(
            step, (trace.about() for trace in traces.values()), frames=frames, lr=lr, ramp=ramp,
            weight_decay=settings.weight_decay, clip_norm=settings.clip_norm, ordered=self._local.ordered,
        )  # fmt: skip

    def _hold(self, held: HeldStep) -> None:
        before = self._held[next(reversed(self._held))].commit if self._held else None
        held.commit = asyncio.ensure_future(self._link(held, before))
        self._held[held.step] = held
        self._unanswered.add(held.step)
        self.steps.put_nowait(held)

    async def _link(self, held: HeldStep, before: asyncio.Task[pb.StepCommit] | None) -> pb.StepCommit:
        if before is not None:
            await before
        update, moments = await asyncio.to_thread(state_digests, self._base, held.after)
        return self._chain.add(update, moments, held.records, held.about.frames, held.about.lr)

    # ---- what others ask --------------------------------------------------------------------------------------------

    def last(self) -> HeldStep | None:
        """The newest step; None when nothing is recorded."""
        return self._held[next(reversed(self._held))] if self.on and self._held else None

    async def link(self) -> bytes:
        """The link of the newest step; empty when nothing is recorded."""
        last = self.last()
        return bytes((await last.commit).link) if last is not None else b""

    def held(self, step: int) -> HeldStep | None:
        """A step, if it can still be opened."""
        return self._held.get(step)

    def signed(self, identifier: int) -> tuple[bytes, bytes] | None:
        """The signed request and answer of a counted microbatch, if they are still held."""
        return self._signed.get(identifier)

    def answered(self, step: int) -> None:
        """The coordinator has said what it draws of a step, and has it. The newest step is held until the round is over."""
        self._unanswered.discard(step)
        if step in self._held and step != next(reversed(self._held)):
            del self._held[step]
        self._answered.set()

    def release(self) -> None:
        """From now on the training waits for no answer: the round ends here."""
        self._waits = False
        self._answered.set()

    def stop(self) -> None:
        """Record nothing more and let go of everything; what others still hold stays whole."""
        self.on = False
        self._answered.set()
        self._traces.clear()
        self._held.clear()
        self._signed.clear()

    async def close(self) -> None:
        """Stop, once no digest is being made of the stage's base."""
        making = [held.commit for held in self._held.values()]
        self.stop()
        if making:
            await asyncio.wait(making)
