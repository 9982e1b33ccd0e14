"""Stage 0 turns leases into inner steps: the utterances of a lease become microbatches, all in flight at once."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from node.commitments import PassTrace
from node.context import RoundContext
from node.downstream import Downstream, Errand
from node.microbatches import Outcome
from node.replica import Boundary, EventSink, Refused, Replica, no_boundary
from node.wire import Losses, StepAnswer, StepInput
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from tts.batch import TextBatch
from tts.collation import UtteranceLike
from tts.config import ModelConfig
from tts.reference import cut_microbatches
from tts.tempo import vary_tempo

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 0.5
READ_TRIES = 10
READ_PAUSE_S = 1.0
_READ_AGAIN = (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED)
EVALUATION_UTTERANCES = 8
EVALUATION_TRIES = 3
EVALUATION_IN_FLIGHT = 2


class Reader(Protocol):
    """What the feeder needs of `tokenizer.reader.DatasetReader`."""

    async def utterances(self, epoch: int, start: int, stop: int, seed: int) -> Sequence[UtteranceLike]: ...
    async def heldout(self) -> Sequence[UtteranceLike]: ...


@dataclass
class FeederTotals:
    """Leases of the round that are finished."""

    leases: list[pb.LeaseDone] = field(default_factory=list)


@dataclass(frozen=True)
class Prepared:
    """A lease whose microbatches are ready for stage 0; `rows`: what is committed to of it."""

    lease: pb.LeaseReply
    batches: list[TextBatch]
    rows: pb.LeasedRows


class Feeder:
    """Feeds one round of one replica of stage 0.

    Args:
        context: of the round. replica: of stage 0. downstream: the way to stage 1; None when the model has one stage.
        reader: of the dataset. languages: tags by id.
        lease: asks the coordinator for a range of samples.
        event: writes to the worker's event log.
        report: tells the coordinator of finished leases, before the next one is asked for.
        totals: leases that are finished already; those finished here are added.
        boundary: called after each finished lease, while nothing is in flight.
        faults: point `node.forward.before`.
    """

    def __init__(
        self,
        context: RoundContext,
        replica: Replica,
        downstream: Downstream | None,
        reader: Reader,
        languages: Sequence[str],
        lease: Callable[[], Awaitable[pb.LeaseReply | None]],
        event: EventSink,
        report: Callable[[], Awaitable[None]],
        *,
        totals: FeederTotals | None = None,
        boundary: Boundary = no_boundary,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._context = context
        self._replica = replica
        self._downstream = downstream
        self._reader = reader
        self._languages = languages
        self._lease = lease
        self._event = event
        self._report = report
        self._unreported = False
        self._faults = faults
        self._view_changed = asyncio.Event()
        self._boundary = boundary
        self._finishing = False
        self.totals = totals or FeederTotals()

    def follow(self, context: RoundContext) -> None:
        """The coordinator's view has changed: a lease may be had now."""
        self._context = context
        self._view_changed.set()

    def finish(self) -> None:
        """Take no further lease: `run` ends with the one that is worked on. What of it is lost goes back, and others train it."""
        self._finishing = True
        self._view_changed.set()

    def _over(self) -> bool:
        return self._finishing or self._replica.draining

    async def run(self) -> None:
        """Take leases and work on them, until cancelled or until the replica drains.

        The next lease is fetched and cut once half of the current one is back, so that the pipeline behind does not wait for
        it, and a slow feeder does not sit on a lease that a fast one could work on.
        """
        ahead: asyncio.Task[Prepared | None] | None = None

        def look_ahead() -> None:
            nonlocal ahead
            ahead = asyncio.ensure_future(self._take())

        try:
            while not self._over():
                self._view_changed.clear()
                prepared = await (ahead or asyncio.ensure_future(self._take()))
                ahead = None
                if self._over():
                    return
                if prepared is None:
                    if self._unreported:
                        continue  # asked before the lease that is finished now: the coordinator waits to hear of it
                    try:
                        async with asyncio.timeout(ASK_AGAIN_S):
                            await self._view_changed.wait()
                    except TimeoutError:
                        pass  # asked again at this pace
                    continue
                await self._train(prepared, look_ahead)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])

    async def _take(self) -> Prepared | None:
        """A lease, if one is to be had now."""
        if self._unreported:
            self._unreported = False
            await self._report()
        lease = await self._lease()
        if lease is None or not lease.granted:
            logger.debug("no lease: %s", lease.reason if lease is not None else "the coordinator is away")
            return None
        return await self.prepare(lease)

    # ---- training ---------------------------------------------------------------------------------------------------

    async def work(self, lease: pb.LeaseReply) -> None:
        """Work on one lease: all its microbatches at once, then the inner step."""
        await self._train(await self.prepare(lease))

    async def prepare(self, lease: pb.LeaseReply) -> Prepared:
        """Read a lease's utterances, vary the tempo of some, and cut them into microbatches."""
        self._event(
            "lease", round=self._context.round, lease=lease.lease_id, epoch=lease.epoch, start=lease.start, stop=lease.stop
        )
        count = max(1, self._context.settings.microbatches_per_inner_step)
        settings, config = self._context.settings, self._context.config
        told = vary_tempo(await self._read(lease), config, seed=settings.seed, epoch=lease.epoch, first=lease.start)
        batches = await asyncio.to_thread(cut_microbatches, told, count, config, self._languages)
        rows = pb.LeasedRows(
            epoch=lease.epoch, start=lease.start, stop=lease.stop, first_microbatch_id=lease.first_microbatch_id,
            microbatches=count,
        )  # fmt: skip
        return Prepared(lease, batches, rows)

    async def _train(self, prepared: Prepared, half_done: Callable[[], None] = lambda: None) -> None:
        lease, batches = prepared.lease, prepared.batches
        passes = [
            asyncio.ensure_future(self._microbatch(lease.first_microbatch_id + index, batch, len(batches), prepared.rows))
            for index, batch in enumerate(batches)
        ]
        left = len(passes) // 2 + 1

        def back(_: asyncio.Future[int]) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not self._over():
                half_done()

        for one in passes:
            one.add_done_callback(back)
        results = await asyncio.gather(*passes)
        counted = [frames for frames in results if frames]
        if self._finishing and len(counted) < len(batches):
            self._event("lease_handed_back", round=self._context.round, lease=lease.lease_id, microbatches=len(counted))
            return
        await self._replica.end_partial_step()
        self.totals.leases.append(pb.LeaseDone(lease_id=lease.lease_id, frames=sum(counted), microbatches=len(counted)))
        self._event(
            "lease_done",
            round=self._context.round,
            lease=lease.lease_id,
            frames=sum(counted),
            microbatches=len(counted),
            of=len(batches),
        )
        self._unreported = True
        await self._boundary()

    async def _read(self, lease: pb.LeaseReply) -> Sequence[UtteranceLike]:
        """The lease's utterances; tried again a few times when nobody has the shard at the moment."""
        for attempt in range(READ_TRIES):
            try:
                return await self._reader.utterances(lease.epoch, lease.start, lease.stop, self._context.settings.seed)
            except HocketError as error:
                if error.code not in _READ_AGAIN or attempt == READ_TRIES - 1:
                    raise
                logger.warning("lease %d cannot be read, tried again in %.0f s: %s", lease.lease_id, READ_PAUSE_S, error.line())
                await asyncio.sleep(READ_PAUSE_S)
        raise RuntimeError("unreachable")

    async def _microbatch(self, identifier: int, batch: TextBatch, of: int, rows: pb.LeasedRows) -> int:
        """Forward, await the gradient, backward; returns the frames counted, 0 when the microbatch was lost.

        Each of the `of` microbatches is announced as an equal share of the inner step. Their frames are nearly equal only:
        shares by exact frames would leave every replica behind us a little short of a whole step, waiting for one
        microbatch of the next lease and taking too large a step with it.
        """
        context, replica, settings = self._context, self._replica, self._context.settings
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        arrays = batch.arrays()
        digest = tensors_digest(arrays)
        if replica.ledger.arrive(identifier, digest, batch.frames).outcome is not Outcome.NEW:
            logger.error("microbatch %d was leased twice and is left out", identifier)
            return 0
        taken = None
        total = of * batch.frames
        try:
            taken = await replica.admit(identifier, batch.frames, total, counts=True, hold_s=settings.step_deadline_s)
            taken.trace = trace = PassTrace(identifier, batch.frames, total, settings.wire or "fp32", arrays, digest, leased=rows)
            self._faults.reach("node.forward.before", round=context.round, stage=0, microbatch=identifier)
            kept = await replica.forward(taken, batch, None, batch.side())
            below = StepAnswer(None, Losses(), (), 0)
            if self._downstream is not None and kept.hidden is not None:
                deadline = loop.time() + settings.step_deadline_s
                errand = Errand(identifier, batch.frames, total, pb.TRAIN, max(1, settings.attempts), deadline)
                below = await self._downstream.call(
                    errand, StepInput(kept.hidden, batch.side().arrays()), own_step=replica.account.step, sending=trace.sending
                )
            trace.went_on(below.exchange, kept.losses)
            await replica.backward(taken, below.grad, kept.losses + below.losses)
        except HocketError as error:
            if error.code is Code.CARRIER_FAILED:
                raise
            if error.code is Code.DEVICE_FAILED:
                self.finish()
            replica.ledger.give_up(identifier, lost=not self._finishing)
            if self._finishing:
                logger.info("microbatch %d of round %d goes back with its lease: %s", identifier, context.round, error.line())
                return 0
            logger.warning("microbatch %d of round %d is lost: %s", identifier, context.round, error.line())
            self._event("dropped", round=context.round, id=identifier, frames=batch.frames, reason=error.line())
            return 0
        finally:
            if taken is not None:
                replica.give_up(taken)  # does nothing once the backward pass has begun
        own = {"stage": 0, "peer_id": context.peer_id, "pid": os.getpid(), "digest": digest.hex()}
        path = [{"stage": e.stage, "peer_id": e.peer_id, "pid": e.pid, "digest": e.digest.hex()} for e in below.path]
        self._event(
            "microbatch", round=context.round, id=identifier, frames=batch.frames, seconds=time.monotonic() - began,
            attempts_used=below.attempts_used, path=[own, *path],
        )  # fmt: skip
        return batch.frames

    # ---- evaluation -------------------------------------------------------------------------------------------------

    async def evaluate(self) -> Losses:
        """Cross-entropy of the round's base on the held-out set, through the whole chain in eval mode.

        Raises:
            HocketError: the last failure, when a part fails three times.
        """
        utterances = await self._reader.heldout()
        batches = await asyncio.to_thread(evaluation_batches, utterances, self._context.config, self._languages)
        room = asyncio.Semaphore(EVALUATION_IN_FLIGHT)

        async def one(number: int, batch: TextBatch) -> Losses:
            async with room:
                return await self._evaluate_batch(number, batch)

        total = Losses()
        for losses in await asyncio.gather(*(one(number, batch) for number, batch in enumerate(batches))):
            total += losses
        self._event("evaluated", round=self._context.round, ce=list(total.ce), count=list(total.count))
        return total

    async def _evaluate_batch(self, number: int, batch: TextBatch) -> Losses:
        settings = self._context.settings
        hidden, losses = await self._replica.evaluate(batch, None, batch.side())
        if self._downstream is None or hidden is None:
            return losses
        step_input = StepInput(hidden, batch.side().arrays())
        for attempt in range(EVALUATION_TRIES):
            deadline = asyncio.get_running_loop().time() + settings.step_deadline_s
            errand = Errand(number, batch.frames, batch.frames, pb.EVAL, max(1, settings.attempts), deadline)
            try:
                return losses + (await self._downstream.call(errand, step_input, own_step=0)).losses
            except Refused as error:
                if attempt == EVALUATION_TRIES - 1:
                    raise
                logger.warning("evaluation of part %d failed, tried again: %s", number, error.line())
        raise RuntimeError("unreachable")


def evaluation_batches(utterances: Sequence[UtteranceLike], config: ModelConfig, languages: Sequence[str]) -> list[TextBatch]:
    """Fixed parts of the held-out set, so that every evaluation adds up the same numbers in the same order."""
    return cut_microbatches(utterances, -(-len(utterances) // EVALUATION_UTTERANCES), config, languages) if utterances else []
