"""How long a worker's training stands still when it saves its inner progress: its own stage, engine, replica and keeper.

One replica of a model of one stage trains on random utterances. Every few inner steps it saves, as a worker does when its
plan says so; a second pass saves nothing. The pause is the time between the end of an inner step and the next pass.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workload import Workload, inner_step
from node.context import RoundContext
from node.engine import Engine
from node.local_sgd import LocalStage
from node.progress import ProgressKeeper
from node.progress_plan import SavePlan
from node.replica import Replica
from protocol.generated import hocket_pb2 as pb
from protocol.roster import RosterView
from tts.stages import build_stage

SETTINGS = pb.RoundSettings(inner_lr_peak=1e-3, total_frames=1 << 40, seed=1, weight_decay=0.01, clip_norm=1.0, lr_floor=0.03)


@dataclass(frozen=True)
class Measured:
    """Seconds of each pause at a save, of each inner step, and of the whole; saves that reached the disk."""

    pauses: list[float]
    steps: list[float]
    seconds: float
    saves: int
    size_bytes: int


class _Worker:
    """What trains in a worker, without what talks."""

    def __init__(self, work: Workload, folder: Path) -> None:
        config = work.config()
        self.work = work
        self.engine = Engine()
        self.local = LocalStage(build_stage(config, 0, 1), ordered=False, weight_decay=0.01, clip_norm=1.0)
        context = RoundContext("bench", 1, "base", "member", "peer", 0, 1, 1, RosterView(pb.Roster()), SETTINGS, config)
        self.saves = 0
        self.replica = Replica(self.local, self.engine, context, self._event)
        plan = SavePlan(least_pause_s=0.0, stall_share=1e9, write_bytes_per_s=1e18)
        self.keeper = ProgressKeeper(folder, self.local, self.engine, self._event, plan=plan)

    def _event(self, name: str, **fields: Any) -> None:
        self.saves += name == "progress_saved"

    async def step(self, number: int) -> None:
        """One inner step, as the feeder of a single stage takes it."""
        batches = inner_step(self.work, number)
        total = sum(batch.frames for _, batch in batches)
        for identifier, batch in batches:
            self.replica.ledger.arrive(identifier, identifier.to_bytes(32, "big"), batch.frames)
            taken = await self.replica.admit(identifier, batch.frames, total, counts=True, hold_s=60.0)
            kept = await self.replica.forward(taken, batch, None, batch.side())
            await self.replica.backward(taken, None, kept.losses)
        await self.replica.end_partial_step()

    async def boundary(self) -> float:
        """Seconds that a save at this boundary takes from the training."""
        began = time.perf_counter()
        await self.keeper.at_boundary(self.replica, "", [], [])
        return time.perf_counter() - began

    async def close(self) -> None:
        await self.keeper.close()
        self.engine.close()


async def train(work: Workload, folder: Path, *, saves: int, every: int, saving: bool) -> Measured:
    """Train `(saves + 1) * every` inner steps; with `saving`, save after each `every`-th."""
    worker = _Worker(work, folder)
    pauses: list[float] = []
    steps: list[float] = []
    began = time.perf_counter()
    try:
        for number in range((saves + 1) * every):
            started = time.perf_counter()
            await worker.step(number)
            steps.append(time.perf_counter() - started)
            if saving and (number + 1) % every == 0:
                pauses.append(await worker.boundary())
    finally:
        await worker.close()
    size_bytes = sum(array.nbytes for array in worker.local.live_tensors().values())
    # The first save makes the buffer and the file, the first step the moments.
    return Measured(pauses[1:], steps[1:], time.perf_counter() - began, worker.saves, size_bytes)


def rows(model: str, *, saves: int, every: int, folder: Path | None) -> list[dict[str, Any]]:
    """Two rows: a worker that saves its inner progress after each `every`-th inner step, and one that does not.

    Args:
        model: preset, as one stage. saves: that are measured. folder: on the disk that is to be written to.
    """
    work = Workload(model, 2, 2, 0)
    found: list[dict[str, Any]] = []
    for name, saving in (("worker", True), ("worker_unsaved", False)):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            measured = asyncio.run(train(work, Path(scratch), saves=saves, every=every, saving=saving))
        pauses = measured.pauses or [0.0]
        found.append({
            "row": name,
            "longest_pause_ms": 1000 * max(pauses),
            "median_pause_ms": 1000 * statistics.median(pauses),
            "worst_pause_ms": 1000 * max(pauses),
            "median_step_ms": 1000 * statistics.median(measured.steps),
            "longest_step_ms": 1000 * max(measured.steps),
            "seconds": measured.seconds,
            "saves": measured.saves,
            "size_mib": measured.size_bytes / 2**20,
        })  # fmt: skip
    return found
