"""How soon audits meet fabricated work, by their rate: the coordinator's draws over many members, beside the arithmetic."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.result import BenchResult, machine_facts
from coordinator.audit_draw import Rates
from simulations.detection import Cheats, Scene, curve, met_in_round

WITHIN = 5


@dataclass(frozen=True)
class DetectionBench:
    """What is measured.

    Args:
        audited: rates. steps, passes: inner steps of a round, and microbatches of a step. microbatches: that are drawn of it.
        members: that cheat in each row. rounds: that they are watched.
    """

    audited: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0)
    steps: int = 20
    passes: int = 4
    microbatches: int = 1
    members: int = 1000
    rounds: int = 20


def measure(bench: DetectionBench, *, say: Callable[[str], None]) -> BenchResult:
    """Draw every row. `say` is told of each."""
    result = BenchResult("detection", machine_facts(sorted(os.sched_getaffinity(0))))
    for audited in bench.audited:
        for cheats in Cheats:
            scene = Scene(Rates(audited, bench.microbatches, bench.steps), bench.passes, cheats)
            each = met_in_round(scene)
            measured = curve(scene, bench.rounds, bench.members, b"detection")
            expected = [1 - (1 - each) ** (number + 1) for number in range(bench.rounds)]
            spread = [math.sqrt(max(one * (1 - one), 1e-12) / bench.members) for one in expected]
            apart = max(abs(a - b) / s for a, b, s in zip(measured, expected, spread, strict=True))
            rounds_to_99 = math.inf if each <= 0 else 1.0 if each >= 1 else math.ceil(math.log(0.01) / math.log(1 - each))
            result.rows.append({
                "row": f"{audited:.0%} | {cheats.value}", "audited": audited, "cheats": cheats.value, "each_round": each,
                "within_5_measured": measured[WITHIN - 1], "within_5_expected": expected[WITHIN - 1],
                "measured": measured, "expected": expected, "rounds_to_99_percent": rounds_to_99, "most_sigmas_apart": apart,
            })  # fmt: skip
            shares = f"{measured[WITHIN - 1]:.3f} within {WITHIN} rounds, expected {expected[WITHIN - 1]:.3f}"
            say(f"{result.rows[-1]['row']}: {shares}")
    return result
