"""Keeps a replica's inner progress on disk, so that a worker that dies and is started again goes on where it was.

A snapshot is one copy into the memory of a background writer, made on the engine's thread at the boundary of an inner step,
while nothing is in flight. It is a convenience: a save that fails is told once and tried again later, and a file that cannot
be used is left alone. What was acknowledged never depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import HocketError
from common.faults import NO_FAULTS, Faults
from common.writer import BackgroundWriter
from node.context import RoundContext
from node.engine import Engine, Priority
from node.local_sgd import LocalStage
from node.progress_file import (
    MOST_ABOUT_BYTES,
    FinishedLease,
    Progress,
    SettledMicrobatch,
    progress_parts,
    read_progress,
    tensors_of,
)
from node.progress_plan import SavePlan, Use, usable
from node.replica import EventSink, Replica
from protocol.generated import hocket_pb2 as pb

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A replica at the boundary of an inner step.

    Args:
        progress: what it was trained on. tensors: of `LocalStage.live_tensors`.
    """

    progress: Progress
    tensors: dict[str, np.ndarray]


def progress_of(
    replica: Replica, weights_sha256: str, resumed: Sequence[int], leases: Sequence[pb.LeaseDone], link: bytes = b""
) -> Progress:
    """What a replica has in its weights at this boundary; nothing is in flight.

    Args:
        weights_sha256: of the base's stage file, in hex. resumed: generations whose work is included. leases: finished ones.
        link: by which the state was committed to.
    """
    context, totals, ledger = replica.context, replica.totals, replica.ledger
    return Progress(
        run_id=context.run_id,
        member_id=context.member_id,
        stage=context.stage,
        stages=context.stages,
        round=context.round,
        base_cid=context.base_cid,
        weights_sha256=weights_sha256,
        generation=context.generation,
        resumed=tuple(resumed),
        frames=totals.frames,
        inner_steps=totals.inner_steps,
        ce=totals.losses.ce,
        count=totals.losses.count,
        auxiliary=totals.losses.auxiliary,
        microbatches=tuple(
            SettledMicrobatch(id=one.identifier, frames=one.frames, digest=one.digest.hex(), counted=one.counted)
            for one in ledger.settled()
        ),
        duplicates=ledger.duplicates,
        dropped=ledger.dropped,
        leases=tuple(FinishedLease(lease_id=one.lease_id, frames=one.frames, microbatches=one.microbatches) for one in leases),
        steps_taken=replica.local.steps_taken,
        chain_link=link.hex(),
    )


async def no_link() -> bytes | None:
    """Nothing is committed to."""
    return b""


class ProgressKeeper:
    """Saves and takes up the inner progress of one stage.

    Args:
        folder: of the worker; one file lies there, of the stage that was served last.
        local: the stage. engine: its thread. event: writes to the worker's event log.
        plan: when to save. faults: points of the background writer.
    """

    def __init__(
        self,
        folder: Path,
        local: LocalStage,
        engine: Engine,
        event: EventSink,
        *,
        plan: SavePlan | None = None,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._path = folder / "replica.safetensors"
        self._local = local
        self._engine = engine
        self._event = event
        self._expected = tensors_of(local.stage.shapes())
        self._size_bytes = sum(info.size_bytes for info in self._expected)
        self._faults = faults
        self._plan = plan or SavePlan()
        self._writer: BackgroundWriter | None = None
        self._waits = False

    # ---- saving -----------------------------------------------------------------------------------------------------

    async def at_boundary(
        self,
        replica: Replica,
        weights_sha256: str,
        resumed: Sequence[int],
        leases: Sequence[pb.LeaseDone],
        link: Callable[[], Awaitable[bytes | None]] = no_link,
    ) -> None:
        """Save, if it is time to. Nothing may be admitted or in flight until this returns.

        Args:
            replica, weights_sha256, resumed, leases: of `progress_of`.
            link: by which the coordinator knows the state; None: it does not yet, and would refuse what goes on from it.
        """
        now = time.monotonic()
        writing = self._settle(now)
        if self._local.steps_taken == 0 or replica.draining:
            return
        decision = self._plan.decide(now, writing=writing)
        if not decision.save:
            return
        found = await link()
        if found is None:
            logger.info("inner progress is not saved yet: the coordinator does not have the step")
            return
        waited_s = time.monotonic() - now
        progress = progress_of(replica, weights_sha256, resumed, leases, found)
        try:
            stall_s = waited_s + await self._engine.run(Priority.STEP, self._copy, progress)
        except (HocketError, MemoryError) as error:
            self._failed(now, error)
            return
        self._waits = True
        self._plan.saved(now, self._size_bytes, stall_s)
        self._event(
            "progress_saved", round=progress.round, stage=progress.stage, inner_steps=progress.inner_steps,
            frames=progress.frames, stall_s=stall_s, why=decision.reason,
        )  # fmt: skip

    def _copy(self, progress: Progress) -> float:
        """Copy the stage into the writer's memory, on the engine's thread; the seconds that it took."""
        began = time.monotonic()
        if self._writer is None:
            # Room for one save: the next one is taken only when that is on disk.
            self._writer = BackgroundWriter(self._size_bytes + MOST_ABOUT_BYTES, faults=self._faults)
        self._writer.save_parts(self._path, progress_parts(progress, self._local.live_tensors()), sealed=True)
        return time.monotonic() - began

    def _settle(self, now: float) -> bool:
        """Take note of how the last save ended; whether it is still being written."""
        if self._writer is None or not self._waits:
            return False
        if not self._writer.idle:
            return True
        self._waits = False
        try:
            self._writer.check()
        except HocketError as error:
            self._failed(now, error)
            return False
        if self._plan.failures:
            logger.info("inner progress can be saved again")
        self._plan.written()
        return False

    def _failed(self, now: float, error: HocketError | MemoryError) -> None:
        first = self._plan.failures == 0
        pause_s = self._plan.failed(now)
        what = error.line() if isinstance(error, HocketError) else "not enough memory"
        logger.log(
            logging.WARNING if first else logging.DEBUG,
            "inner progress is not saved, tried again in %.0f s; the training goes on: %s", pause_s, what,
        )  # fmt: skip

    # ---- taking up --------------------------------------------------------------------------------------------------

    async def last(self) -> Snapshot | None:
        """The last whole snapshot, once what waits is on disk; None when there is none, or it cannot be used."""
        if self._writer is not None:
            try:
                await asyncio.to_thread(self._writer.drain)
            except HocketError as error:
                self._waits = False
                self._failed(time.monotonic(), error)
        if not self._path.exists():
            return None
        try:
            return Snapshot(*await asyncio.to_thread(read_progress, self._path, self._expected))
        except HocketError as error:
            logger.warning("saved inner progress is not used: %s", error.line())
            return None

    async def take_up(self, context: RoundContext, weights_sha256: str, *, moments: bool = True) -> Progress | None:
        """Put the last snapshot into the stage, whose base is loaded; as much of it as belongs to the round.

        Args:
            moments: also those of a snapshot of another round, where the stage has none of its own.

        Returns: what was trained in this round, to be resumed; None when the round begins at its base.
        """
        snapshot = await self.last()
        if snapshot is None:
            return None
        progress = snapshot.progress
        use, reason = usable(progress, context, weights_sha256)
        if use is Use.NOTHING or (use is Use.MOMENTS and not moments):
            logger.info("saved inner progress is not taken up: %s", reason)
            return None
        await self._engine.run(
            Priority.STEP, lambda: self._local.restore(snapshot.tensors, progress.steps_taken, weights=use is Use.ALL)
        )
        logger.info("saved inner progress is taken up (%s): %s", use.value, reason)
        return progress if use is Use.ALL else None

    async def close(self) -> None:
        """Wait for what is being written, and end the writer."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            await asyncio.to_thread(writer.close)
        except HocketError as error:
            logger.warning("the last inner progress is not saved: %s", error.line())
