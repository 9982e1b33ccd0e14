"""What a pipeline of processes is worth: frames per second beside one process and beside torch.distributed.pipelining.

All rows train the same model on the same utterances, with the same microbatches of an inner step, pinned to the same two cores;
a pipeline's workers, their libp2p daemons and the coordinator are inside that. Each row runs in fresh processes and the rows take
turns, so that a busy moment of the machine does not fall on one of them alone.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.children import answer_in, run_children
from benchmarks.result import BenchResult, machine_facts
from benchmarks.workload import Workload
from common.errors import Code, HocketError

CORES = 2
RATIOS = (
    ("pipeline2_vs_single", "pipeline2", "single"),
    ("pipeline4_vs_single", "pipeline4", "single"),
    ("pipeline4_vs_torch_pipelining", "pipeline4", "torch4"),
    ("pipeline2_vs_torch_pipelining", "pipeline2", "torch2"),
    ("pipeline4_bf16_vs_single", "pipeline4_bf16", "single"),
    ("pipeline4_bf16_vs_torch_pipelining", "pipeline4_bf16", "torch4"),
    ("torch_pipelining4_vs_single", "torch4", "single"),
    ("single_1_thread_vs_single", "single1", "single"),
)


@dataclass(frozen=True)
class PipelineBench:
    """Settings of the benchmark.

    Args:
        inner_steps: that are measured. warm_up: inner steps before them.
        repeats: of each row; the median of the repeats is its speed.
    """

    inner_steps: int = 30
    warm_up: int = 5
    repeats: int = 3
    microbatches: int = 8
    microbatch_size: int = 4
    preset: str = "demo"

    def workload(self) -> Workload:
        return Workload(self.preset, self.microbatches, self.microbatch_size, self.warm_up + self.inner_steps)


@dataclass(frozen=True)
class Timing:
    """One run of a row: seconds of each inner step, warm-up included, its losses, and what else the row can tell."""

    seconds: list[float]
    losses: list[float]
    extra: dict[str, Any]


def _timing(output: str) -> Timing:
    answer = answer_in(output)
    return Timing(answer["seconds"], answer["losses"], {})


def time_single(work: Workload, threads: int) -> Timing:
    """Single-process training."""
    (output,) = run_children([("benchmarks.single_process", {"workload": asdict(work), "threads": threads})])
    return _timing(output)


def time_torch_pipelining(work: Workload, stages: int, schedule: str = "1f1b") -> Timing:
    """torch.distributed.pipelining over gloo, one process of one thread a stage."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        order = {"workload": asdict(work), "threads": 1, "world": stages, "store": f"{folder}/store", "schedule": schedule}
        outputs = run_children([("benchmarks.torch_pipelining", {**order, "rank": rank}) for rank in range(stages)])
    return _timing(outputs[-1])


def time_pipeline(work: Workload, stages: int, wire: str = "fp32") -> Timing:
    """A Hocket run of `stages` workers of one thread each, over libp2p and gRPC."""
    from benchmarks.cluster_row import time_cluster

    return time_cluster(replace(work, wire=wire), stages)


ROWS: dict[str, tuple[str, Callable[[Workload], Timing]]] = {
    "single": ("one process, 2 threads", lambda work: time_single(work, 2)),
    "single1": ("one process, 1 thread", lambda work: time_single(work, 1)),
    "pipeline2": ("2 workers, 1 thread each", lambda work: time_pipeline(work, 2)),
    "pipeline4": ("4 workers, 1 thread each", lambda work: time_pipeline(work, 4)),
    "pipeline2_bf16": ("2 workers, 1 thread each, bf16 on the wire", lambda work: time_pipeline(work, 2, "bf16")),
    "pipeline4_bf16": ("4 workers, 1 thread each, bf16 on the wire", lambda work: time_pipeline(work, 4, "bf16")),
    "torch2": ("torch.distributed.pipelining, 2 processes, 1 thread each", lambda work: time_torch_pipelining(work, 2)),
    "torch4": ("torch.distributed.pipelining, 4 processes, 1 thread each", lambda work: time_torch_pipelining(work, 4)),
}


def summarise(name: str, what: str, work: Workload, warm_up: int, timings: Sequence[Timing]) -> dict[str, Any]:
    """One row: the median over the repeats of the frames per second, with the spread over repeats and over inner steps."""
    speeds = [work.frames_per_step * len(timing.seconds[warm_up:]) / sum(timing.seconds[warm_up:]) for timing in timings]
    steps = sorted(second for timing in timings for second in timing.seconds[warm_up:])
    return {
        "row": name,
        "what": what,
        "frames_per_second": statistics.median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "step_median_s": statistics.median(steps),
        "step_p90_s": steps[min(len(steps) - 1, int(0.9 * len(steps)))],
        "first_loss": timings[0].losses[0],
        "last_loss": timings[0].losses[-1],
        "repeats": speeds,
        "extra": timings[0].extra,
    }


def ratios_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Speed of X / speed of Y for the pairs whose rows were measured."""
    speed = {row["row"]: row["frames_per_second"] for row in rows}
    return {name: speed[above] / speed[below] for name, above, below in RATIOS if above in speed and below in speed}


def measure(settings: PipelineBench, *, rows: Sequence[str], say: Callable[[str], None]) -> BenchResult:
    """Measure the rows named.

    Args:
        say: takes one line on each finished measurement.

    Raises:
        HocketError: OPTION_INVALID for an unknown row; CHILD_FAILED when a measured process fails.
    """
    for name in rows:
        if name not in ROWS:
            raise HocketError(Code.OPTION_INVALID, f"unknown row {name!r}; known: {', '.join(ROWS)}")
    if not rows:
        raise HocketError(Code.OPTION_INVALID, "no row to measure")
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    before = os.sched_getaffinity(0)
    # Every process that is measured is a child of this one and inherits its cores.
    os.sched_setaffinity(0, cores)
    timings: dict[str, list[Timing]] = {name: [] for name in rows}
    work = settings.workload()
    try:
        for repeat in range(settings.repeats):
            for name in rows:
                timing = ROWS[name][1](work)
                timings[name].append(timing)
                measured = timing.seconds[settings.warm_up :]
                speed = work.frames_per_step * len(measured) / sum(measured)
                say(f"{name}, run {repeat + 1} of {settings.repeats}: {speed:.0f} frames/s")
    finally:
        os.sched_setaffinity(0, before)
    result = BenchResult("pipeline", machine_facts(cores))
    result.rows = [summarise(name, ROWS[name][0], work, settings.warm_up, timings[name]) for name in rows]
    result.ratios = ratios_of(result.rows)
    result.machine["settings"] = asdict(settings)
    return result
