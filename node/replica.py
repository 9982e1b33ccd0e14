"""One replica in one round: who may start a pass, what is counted, when the inner step is taken, how the round closes.

The flushing schedule lives here. A pass is admitted while the inner step has room; a full step admits nothing until every
pass is back, then the optimizer steps and the waiting ones go on. Deciders (`StepAccount`, `Ledger`) say what; the engine's
thread does it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from common.errors import Code, HocketError
from node.commitments import PassTrace, Recorder, State
from node.context import RoundContext
from node.engine import Engine, Priority
from node.local_sgd import Kept, LocalStage, joiner_ramp
from node.microbatches import Close, Ledger, Settled, StepAccount
from node.wire import Losses, StepAnswer
from protocol.generated import hocket_pb2 as pb
from protocol.tensors import EncodedTensor
from tts.batch import Side, TextBatch

logger = logging.getLogger(__name__)

ANSWER_STORE_BYTES = 32 << 20
MAX_HELD = 64

EventSink = Callable[..., None]
Boundary = Callable[[], Awaitable[None]]


async def no_boundary() -> None:
    """Nothing is done between inner steps."""


class Refused(HocketError):
    """A request that is refused for a reason that the protocol names.

    Args:
        refusal: the protocol's word. detail: for people.
        stage, peer: where it failed, for DOWNSTREAM_FAILED. attempts_used: tries spent.
    """

    def __init__(self, refusal: pb.Refusal, detail: str, *, stage: int = 0, peer: str = "", attempts_used: int = 0) -> None:
        self.refusal = refusal
        self.failed_stage = stage
        self.failed_peer = peer
        self.attempts_used = attempts_used
        super().__init__(Code.PEER_REFUSED, f"{pb.Refusal.Name(refusal)}: {detail}")


@dataclass
class RoundTotals:
    """What a replica has done in a round, for its reports and its update."""

    frames: int = 0
    inner_steps: int = 0
    losses: Losses = field(default_factory=Losses)


@dataclass
class Pass:
    """An admitted pass of one microbatch; it ends in `Replica.backward` or in `Replica.give_up`, whichever begins first.

    Args:
        retried: a replica has failed the microbatch before it came here.
        trace: of what it met, filled in by whoever makes the pass. encoded: the gradient that it returns, as it will travel.
    """

    identifier: int
    token: int
    counts: bool
    retried: bool = False
    trace: PassTrace | None = None
    kept: Kept | None = None
    encoded: EncodedTensor | None = None
    ending: bool = False


class Replica:
    """The serving state of one stage for one round. All methods belong to the event loop.

    Args:
        local: weights and optimizer; lives on from round to round.
        engine: its thread.
        context: of the round.
        event: writes to the worker's event log.
        ramp: this member joined the run late, or its moments were given up, and they began at zero.
        boundary: called after each inner step, before the next pass is admitted; nothing is in flight.

    `recorder` and `ramp` may be set before the first pass; the recorder is told of every counted pass and every step.
    """

    def __init__(
        self,
        local: LocalStage,
        engine: Engine,
        context: RoundContext,
        event: EventSink,
        *,
        ramp: bool = False,
        boundary: Boundary = no_boundary,
    ) -> None:
        self.local = local
        self.engine = engine
        self.context = context
        self.ledger: Ledger[StepAnswer] = Ledger(ANSWER_STORE_BYTES)
        self.account = StepAccount()
        self.totals = RoundTotals()
        self.recorder: Recorder | None = None
        self._event = event
        self.ramp = ramp
        self._boundary = boundary
        self._draining = False
        self._held: list[tuple[bool, asyncio.Future[None]]] = []
        self._stepping: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def in_flight(self) -> int:
        return self.account.in_flight

    def resume(self, totals: RoundTotals, settled: Iterable[Settled], *, duplicates: int, dropped: int) -> None:
        """Go on in the round where an earlier process, or an earlier generation, of this member was.

        Args:
            totals: of the round so far. settled: microbatches that are not counted again. duplicates, dropped: so far.
        """
        self.ledger.restore(settled, duplicates=duplicates, dropped=dropped)
        self.totals = totals

    # ---- passes -----------------------------------------------------------------------------------------------------

    async def admit(
        self, identifier: int, frames: int, inner_step_frames: int, *, counts: bool, hold_s: float, retried: bool = False
    ) -> Pass:
        """Ask to start a pass; a full step is waited for, up to `hold_s` seconds, by those that were retried at the head.

        Raises:
            Refused: DRAINING when the round closes here, BUSY when the step stays full or too many wait already.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_s
        while True:
            if self._draining:
                raise Refused(pb.DRAINING, f"round {self.context.round} closes here")
            admission = self.account.admit(identifier, frames, inner_step_frames, counts=counts)
            if admission.admitted:
                self._idle.clear()
                return Pass(identifier, admission.token, counts, retried)
            if len(self._held) >= MAX_HELD:
                raise Refused(pb.BUSY, f"{admission.reason}, and {len(self._held)} requests wait")
            turn: asyncio.Future[None] = loop.create_future()
            self._held.append((retried, turn))
            try:
                async with asyncio.timeout_at(deadline):
                    await turn
            except TimeoutError as error:
                raise Refused(pb.BUSY, f"{admission.reason}, for {hold_s:.1f} s") from error
            finally:
                self._held = [held for held in self._held if held[1] is not turn]

    async def forward(self, taken: Pass, batch: TextBatch | None, hidden: np.ndarray | None, side: Side) -> Kept:
        """Run the forward pass of an admitted pass."""
        seed = self.context.settings.seed
        priority = Priority.RETRIED if taken.retried else Priority.FORWARD
        taken.kept = await self.engine.run(priority, self.local.forward, taken.identifier, batch, hidden, side, seed)
        return taken.kept

    async def backward(self, taken: Pass, grad: np.ndarray | None, losses: Losses) -> np.ndarray | None:
        """Run the backward pass, count it, and step if that fills and empties the step.

        It is not undone half-way: a caller that is cancelled meanwhile leaves it to finish and to be counted.

        Args:
            grad: float32 [B, S, D] from the next stage; None in the last. losses: of the microbatch, to be reported.

        Returns: float32 [B, S, D], gradient of what arrived; None in stage 0.
        """
        kept = taken.kept
        if kept is None or taken.ending:
            raise RuntimeError("a backward pass without its forward pass")
        taken.ending = True
        return await asyncio.shield(asyncio.ensure_future(self._backward(taken, kept, grad, losses)))

    async def _backward(self, taken: Pass, kept: Kept, grad: np.ndarray | None, losses: Losses) -> np.ndarray | None:
        taken.kept = None
        try:
            back = await self.engine.run(Priority.BACKWARD, lambda: self.local.backward(kept, grad, counts=taken.counts))
        except BaseException:
            self._return(taken)
            raise
        if back is not None and taken.trace is not None:
            taken.encoded = taken.trace.returned(back)
        frames_before = self.account.frames
        self.account.finish(taken.token)
        if self.recorder is not None and taken.trace is not None:
            (self.recorder.passed if taken.counts else self.recorder.uncounted)(taken.trace)
        if taken.counts:
            self.ledger.count(taken.identifier)
            self.totals.frames += self.account.frames - frames_before
            self.totals.losses += losses
        self._settle()
        return back

    def give_up(self, taken: Pass) -> None:
        """The pass came to nothing here, and its id is new again; does nothing once the backward pass has begun."""
        if taken.ending:
            return
        taken.ending = True
        if taken.kept is not None:
            taken.kept.free()
            taken.kept = None
        self._return(taken)

    def _return(self, taken: Pass) -> None:
        if self.recorder is not None and taken.trace is not None:
            self.recorder.uncounted(taken.trace)
        self.account.give_up(taken.token)
        if taken.counts:
            self.ledger.give_up(taken.identifier, lost=False)
        self._settle()

    def _settle(self) -> None:
        """After a pass has come back: step if the step is whole, or let others in."""
        if self.account.may_step:
            if self._stepping is None:
                self._stepping = asyncio.ensure_future(self._step("full"))
        elif not self.account.full:
            self._wake()
        if self.account.in_flight == 0:
            self._idle.set()

    def _wake(self) -> None:
        held, self._held = self._held, []
        for _, turn in sorted(held, key=lambda one: not one[0]):  # each asks again in this order
            if not turn.done():
                turn.set_result(None)

    # ---- steps ------------------------------------------------------------------------------------------------------

    async def _step(self, why: str) -> None:
        """Take the inner step on what is accumulated; nothing is in flight."""
        frames, identifiers = self.account.frames, self.account.identifiers()
        ramp = joiner_ramp(self.local.steps_taken) if self.ramp else 1.0
        rate = self.context.learning_rate(self.totals.frames - frames) * ramp
        if self.recorder is not None:
            await self.recorder.room()
        try:
            norm, state = await self.engine.run(Priority.STEP, self._take_step, frames, rate)
        except HocketError as error:
            logger.error("inner step %d of round %d is discarded: %s", self.account.step, self.context.round, error.line())
            self._forget(identifiers, frames)
            self._event(
                "inner_step_discarded", round=self.context.round, step=self.account.step, frames=frames, reason=error.line()
            )
        else:
            if self.recorder is not None and state is not None:
                self.recorder.stepped(identifiers, frames, rate, ramp, state)
            self.totals.inner_steps += 1
            self._event(
                "inner_step",
                round=self.context.round,
                step=self.account.step,
                frames=frames,
                microbatches=len(identifiers),
                lr=rate,
                norm=norm,
                why=why,
            )
            await self._boundary()
        self.account.stepped()
        self._stepping = None
        self._wake()

    def _take_step(self, frames: int, rate: float) -> tuple[float, State | None]:
        """On the engine's thread: take the step; its gradient norm, and a copy of the state after it where that is recorded."""
        norm = self.local.step(frames, rate)
        return norm, self.local.copied_state() if self.recorder is not None and self.recorder.on else None

    def _forget(self, identifiers: list[int], frames: int) -> None:
        if self.recorder is not None:
            self.recorder.discarded(identifiers)
        self.ledger.discard(identifiers)
        self.totals.frames -= frames

    async def end_partial_step(self) -> None:
        """Step or discard what is accumulated, once nothing is in flight: at the end of a lease and of the round."""
        while self._stepping is not None:
            await asyncio.shield(self._stepping)
        if self.account.in_flight:
            raise RuntimeError(f"{self.account.in_flight} passes are in flight")
        decision, reason = self.account.close()
        if decision is Close.STEP:
            self._stepping = asyncio.ensure_future(self._step(reason))
            await asyncio.shield(self._stepping)
        elif decision is Close.DISCARD:
            identifiers, frames = self.account.identifiers(), self.account.frames
            logger.info("%d frames of round %d are discarded: %s", frames, self.context.round, reason)
            self._event("inner_step_discarded", round=self.context.round, step=self.account.step, frames=frames, reason=reason)
            await self.engine.run(Priority.STEP, self.local.discard)
            self._forget(identifiers, frames)
            self.account.stepped()

    # ---- the round's end --------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From now on take no new pass; those that wait are told so."""
        self._draining = True
        if self.recorder is not None:
            self.recorder.release()
        self._wake()

    async def idle(self, grace_s: float) -> bool:
        """Wait until every pass is back; False when `grace_s` was not enough."""
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def settled(self) -> None:
        """Wait until every pass that was broken off has been handed back and a running step is taken."""
        await self._idle.wait()
        while self._stepping is not None:
            await asyncio.shield(self._stepping)

    async def close(self) -> dict[str, np.ndarray]:
        """End the last step and give the round's update: float32 by parameter name. Nothing is in flight any more."""
        self.drain()
        await self.end_partial_step()
        return await self.engine.run(Priority.STEP, self.local.pseudo_gradient)

    async def evaluate(self, batch: TextBatch | None, hidden: np.ndarray | None, side: Side) -> tuple[np.ndarray | None, Losses]:
        """Forward on the base weights; nothing is counted or held."""
        return await self.engine.run(Priority.EVALUATION, self.local.evaluate, batch, hidden, side)
