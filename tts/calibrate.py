"""Measures how far honest results lie apart on this machine, sets limits by it, and counts what the limits do.

Half of the microbatches set the limits; the other half counts false positives against them, so that the count says something.
Limits are a multiple of the largest distance seen, and not below a floor that allows for machines that were never measured here.
"""

from __future__ import annotations

import math
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from protocol.agreement import judge
from protocol.calibration import Calibration, Row, StepLimits, TensorLimits, device_class
from protocol.tensors import ENCODINGS
from tts.calibration_cases import Gradients, Work, lies, threads, travelled, ways, works
from tts.config import ModelConfig
from tts.optimizer import BETAS
from tts.replay_step import moment_distances

STATISTICS = ("median", "maximum", "norm", "projection")
PAIRS = (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"))
MARGIN = 3.0
FLOORS = {
    ("float32", "fp32"): (1e-4, 1e-3, 1e-4, 2e-4),
    ("float32", "bf16"): (5e-4, 6e-3, 2e-4, 5e-4),
    ("float32", "int8"): (1e-3, 1.5e-2, 2e-4, 1e-3),
    ("bfloat16", "fp32"): (0.01, 0.02, 0.004, 0.01),
    ("bfloat16", "bf16"): (0.01, 0.02, 0.004, 0.01),
    ("bfloat16", "int8"): (0.02, 0.03, 0.004, 0.02),
}
"""By the coarser dtype and the encoding, for each of STATISTICS. A coarse encoding makes a jump of its own step out of the least
difference: a wide model, or a machine that differs more than one here, makes more of them than were seen."""
LOSS_FLOORS = {"float32": 1e-4, "bfloat16": 5e-3}
STEP_FLOORS = {"float32": (2e-4, 2e-3), "bfloat16": (0.05, 0.3)}
MOST = 0.5  # no limit on a whole tensor is wider
MOST_VALUE = 4.0  # nor one on a single value of a moment

Pair = tuple[str, str]
Case = tuple[Pair, str, str]  # dtypes, wire, tensor


@dataclass
class Measured:
    """What was seen.

    Args:
        drift: largest statistics by (pair, wire, tensor) over honest comparisons; `step`: of a step's gradients, by pair.
        compared: honest comparisons that counted false positives, and how many failed, by pair and wire.
        caught: lies told and found out, by (lie, pair, wire).
    """

    drift: dict[Case, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    step: dict[Pair, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    compared: dict[tuple[Pair, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    caught: dict[tuple[str, Pair, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))


@dataclass(frozen=True)
class Result:
    """A table and what it was measured by."""

    table: Calibration
    measured: Measured
    honest: int
    false_positives: int


def calibrate(
    config: ModelConfig,
    stages: int,
    microbatches: int,
    *,
    progress: Callable[[int, int], None] = lambda done, of: None,
    table: Calibration | None = None,
) -> Result:
    """Measure, set limits, count.

    Args:
        microbatches: of which every second pair sets the limits; at least 8, so that each half has all kinds of passes.
        progress: called with passes done and in all.
        table: whose limits are counted against, instead of those that are measured.
    """
    if microbatches < 8:
        raise ValueError(f"{microbatches} microbatches are too few to measure with")
    measured = Measured()
    halves = [[number for number in range(microbatches) if number // 4 % 2 == half] for half in (0, 1)]
    done = 0
    with threads(1):
        for work in works(config, stages, halves[0]):
            look(work, measured, None)
            done += 1
            progress(done, stages * microbatches)
        limits = table if table is not None else _table(measured, config, stages)
        for work in works(config, stages, halves[1]):
            look(work, measured, limits)
            done += 1
            progress(done, stages * microbatches)
    honest, failed = (sum(count[index] for count in measured.compared.values()) for index in (0, 1))
    return Result(limits, measured, honest, failed)


def look(work: Work, measured: Measured, table: Calibration | None) -> None:
    """One pass: its honest variants and, once there are limits, the lies about it."""
    plain, half = ways("float32"), ways("bfloat16")
    reference = {"float32": (work.ours, work.gradients), "bfloat16": half["as it comes"](work)}
    for pair in PAIRS:
        ours, own_gradients = reference[pair[0]]
        for name, way in (plain if pair[1] == "float32" else half).items():
            if pair == ("bfloat16", "bfloat16") and name == "as it comes":
                continue
            theirs, gradients = way(work)
            if theirs and table is None:
                _widen(measured.step[pair], step_distances(own_gradients, gradients))
            for wire in ENCODINGS if theirs else ():
                found = travelled(ours, theirs, wire)
                if table is None:
                    for tensor, statistics in found.items():
                        _widen(measured.drift[pair, wire, tensor], statistics)
                    continue
                count = measured.compared[pair, wire]
                count[0] += len(found)
                count[1] += len(found) - sum(within(found, _row(table, pair, wire)).values())
    if table is None:
        return
    for lie, told in lies(work):
        for wire in ENCODINGS:
            found = travelled(work.ours, told, wire)
            for pair in PAIRS[:2]:
                count = measured.caught[lie, pair, wire]
                count[0] += 1
                count[1] += not all(within(found, _row(table, pair, wire)).values())


def _row(table: Calibration, pair: Pair, wire: str) -> Row:
    return table.row_for(device_class(pair[0]), device_class(pair[1]), wire)


def _widen(into: dict[str, float], found: Mapping[str, float]) -> None:
    for name, value in found.items():
        into[name] = max(into.get(name, 0.0), abs(value))


def within(found: Mapping[str, Mapping[str, float]], row: Row) -> dict[str, bool]:
    """Which tensors of a pass are within the limits of a row."""
    verdicts = {}
    for name, statistics in found.items():
        if name == "ce":
            verdicts[name] = statistics["loss"] <= row.loss
        else:
            verdicts[name] = judge(dict(statistics), (row.hidden if name == "hidden" else row.grad).limits()).ok
    return verdicts


def step_distances(ours: Gradients, theirs: Gradients) -> dict[str, float]:
    """What `replay_step` would find of a first step of one microbatch: the largest distances over the parameters."""
    worst = {"tensor": 0.0, "value": 0.0}
    for name, gradient in theirs.items():
        own, their = ours[name].double().numpy(), gradient.double().numpy()
        for share, added, other, slack in (
            (1 - BETAS[0], own, their, 1.0), (1 - BETAS[1], np.square(own), np.square(their), 2.0)
        ):  # fmt: skip
            tensor, value = moment_distances(share, added, np.zeros_like(added), share * other)
            worst = {"tensor": max(worst["tensor"], tensor / slack), "value": max(worst["value"], value / slack)}
    return worst


def _table(measured: Measured, config: ModelConfig, stages: int) -> Calibration:
    rows = []
    for pair in PAIRS:
        kind = pair[1]
        step = measured.step[pair]
        for wire in ENCODINGS:
            tensors = {
                tensor: TensorLimits(**{
                    name: _limit(measured.drift[pair, wire, tensor].get(name, 0.0), floor)
                    for name, floor in zip(STATISTICS, FLOORS[kind, wire], strict=True)
                })
                for tensor in ("hidden", "grad")
            }  # fmt: skip
            tensor_floor, value_floor = STEP_FLOORS[kind]
            rows.append(
                Row(
                    classes=(f"*-{pair[0]}", f"*-{pair[1]}"),
                    wire=wire,  # type: ignore[arg-type]
                    loss=_limit(measured.drift[pair, wire, "ce"].get("loss", 0.0), LOSS_FLOORS[kind]),
                    step=StepLimits(
                        tensor=_limit(step.get("tensor", 0.0), tensor_floor),
                        value=_limit(step.get("value", 0.0), value_floor, MOST_VALUE),
                    ),
                    **tensors,
                )
            )
    machine = f"{platform.machine()}, torch {torch.__version__.split('+')[0]}, {torch.backends.cpu.get_cpu_capability()}"
    return Calibration(measured=f"model {config.preset} in {stages} stages on {machine}", rows=tuple(rows))


def _limit(seen: float, floor: float, most: float = MOST) -> float:
    """Two digits, rounded up."""
    wanted = min(most, max(MARGIN * seen, floor))
    unit = 10.0 ** (math.floor(math.log10(wanted)) - 1)
    return min(most, float(f"{math.ceil(wanted / unit - 1e-9) * unit:.2g}"))
