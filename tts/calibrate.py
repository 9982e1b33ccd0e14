"""Measures how far honest results lie apart on this machine, sets limits by it, and counts what the limits do.

Half of the microbatches set the limits; the other half counts false positives against them, so that the count says something.
Limits are a multiple of the largest distance seen, and not below a floor that allows for machines that were never measured here.
Each pair of device class and dtype has limits of its own, measured between these two: neither the tighter nor the looser of two.
"""

from __future__ import annotations

import math
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np
import torch

from common.errors import Code, HocketError
from protocol.agreement import judge
from protocol.calibration import Calibration, Row, StepLimits, TensorLimits, device_class
from protocol.tensors import ENCODINGS
from tts.calibration_cases import Gradients, Made, Work, travelled, works
from tts.calibration_lies import lies
from tts.calibration_processors import OtherProcessor, other_processors
from tts.calibration_ways import AS_IT_COMES, DTYPES, threads, ways
from tts.config import ModelConfig
from tts.optimizer import BETAS
from tts.replay_step import moment_distances

STATISTICS = ("median", "maximum", "norm", "projection")
MARGIN = 3.0
FLOORS = {
    ("float32", "fp32"): (1e-4, 1e-3, 1e-4, 2e-4),
    ("float32", "bf16"): (5e-4, 6e-3, 2e-4, 5e-4),
    ("float32", "int8"): (1e-3, 1.5e-2, 2e-4, 1e-3),
    ("tf32", "fp32"): (1.3e-3, 2.5e-3, 5e-4, 1.3e-3),
    ("tf32", "bf16"): (1.3e-3, 6e-3, 5e-4, 1.3e-3),
    ("tf32", "int8"): (2.5e-3, 1.5e-2, 5e-4, 2.5e-3),
    ("bfloat16", "fp32"): (0.01, 0.02, 0.004, 0.01),
    ("bfloat16", "bf16"): (0.01, 0.02, 0.004, 0.01),
    ("bfloat16", "int8"): (0.02, 0.03, 0.004, 0.02),
}
"""By the coarser dtype and the encoding, for each of STATISTICS. A coarse encoding makes a jump of its own step out of the least
difference: a wide model, or a machine that differs more than one here, makes more of them than were seen. TensorFloat-32 has
three bits more than bfloat16, so an eighth of its floors, and never less than float32's."""
LOSS_FLOORS = {"float32": 1e-4, "tf32": 6.3e-4, "bfloat16": 5e-3}
STEP_FLOORS = {"float32": (2e-4, 2e-3), "tf32": (0.0063, 0.038), "bfloat16": (0.05, 0.3)}
MOST = 0.5  # no limit on a whole tensor is wider
MOST_VALUE = 4.0  # nor one on a single value of a moment

Kind = tuple[str, str]
"""What a pass is computed on and in: `("cpu", "float32")`."""
REFEREE: Kind = ("cpu", "float32")
Pair = tuple[Kind, Kind]
Case = tuple[Pair, str, str]  # kinds, wire, tensor


def pairs(device: str = "cpu") -> list[Pair]:
    """Whose results are compared: the referee's and those of each dtype of a device, and these with each other."""
    kinds = dict.fromkeys([REFEREE, *((device, dtype) for dtype in DTYPES[device])])
    return list(combinations_with_replacement(kinds, 2))


@dataclass
class Measured:
    """What was seen.

    Args:
        drift: largest statistics by (pair, wire, tensor) over honest comparisons; `step`: of a step's gradients, by pair.
        honest: scores (`score`) of passes that had no part in the limits, by (pair, wire, way).
        told: scores of lies, by (lie, direction, pair, wire).
    """

    drift: dict[Case, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    step: dict[Pair, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    honest: dict[tuple[Pair, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    told: dict[tuple[str, str, Pair, str], list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Result:
    """A table and what it was measured by."""

    table: Calibration
    measured: Measured


def calibrate(
    config: ModelConfig,
    stages: int,
    microbatches: int,
    *,
    device: str = "cpu",
    told: int = 16,
    progress: Callable[[int, int], None] = lambda done, of: None,
    table: Calibration | None = None,
) -> Result:
    """Measure, set limits, count.

    Args:
        microbatches: of which every second group of four sets the limits; at least 8, so that each half has all kinds of passes.
        device: `cpu` or `cuda`, that is measured beside the referee's processor.
        told: microbatches about which lies are told, at most.
        progress: called with passes done and in all.
        table: whose limits are counted against, instead of those that are measured.

    Raises:
        HocketError: DEVICE_FAILED when there is no such device; CHILD_FAILED; CALIBRATION_INVALID when `table` has no row for it.
    """
    if microbatches < 8:
        raise ValueError(f"{microbatches} microbatches are too few to measure with")
    if device == "cuda" and not torch.cuda.is_available():
        raise HocketError(Code.DEVICE_FAILED, "torch finds no GPU here", remedy="measure on a machine that has one")
    measured = Measured()
    halves = [[number for number in range(microbatches) if number // 4 % 2 == half] for half in (0, 1)]
    with threads(1), other_processors() as processors:
        look = Look(device, processors, measured)
        numbered = enumerate((work, half) for half in (0, 1) for work in works(config, stages, halves[half]))
        limits = table
        for done, (work, half) in numbered:
            if half and limits is None:
                limits = make_table(measured, config, stages, device)
            if half and limits is not None:
                look.count(work, limits, tell=work.number in halves[1][:told])
            else:
                look.widen(work)
            progress(done + 1, stages * microbatches)
    assert limits is not None
    return Result(limits, measured)


class Look:
    """Looks at passes, one at a time, computed in all ways of a device.

    Args:
        processors: that compute passes as other processors would. measured: is added to.
    """

    def __init__(self, device: str, processors: Mapping[str, OtherProcessor], measured: Measured) -> None:
        self._pairs = pairs(device)
        self._kinds = list(dict.fromkeys(kind for pair in self._pairs for kind in pair))
        self._processors = processors
        self._measured = measured

    def widen(self, work: Work) -> None:
        """Let the drift of a pass have its part in the limits."""
        for pair, _, ours, theirs in self._honest(work):
            if work.number // 8 % 2 == 0:  # the dearest part of a pass, and the steadiest
                _widen(self._measured.step[pair], step_distances(ours[1], theirs[1]))
            for wire in ENCODINGS:
                for tensor, statistics in travelled(ours[0], theirs[0], wire).items():
                    _widen(self._measured.drift[pair, wire, tensor], statistics)

    def count(self, work: Work, table: Calibration, *, tell: bool) -> None:
        """Hold a pass against limits and, where `tell`, lies about it."""
        for pair, way, ours, theirs in self._honest(work):
            for wire in ENCODINGS:
                found = score(travelled(ours[0], theirs[0], wire), row_of(table, pair, wire))
                self._measured.honest[pair, wire, way].append(found)
        if not tell:
            return
        references = {pair[0]: self._reference(work, pair[0]) for pair in self._pairs}
        for lie in lies(work):
            for kind, reference in references.items():
                for wire in ENCODINGS if reference[0] else ():
                    statistics = travelled(reference[0], lie.arrays, wire)
                    for pair in self._pairs:
                        if pair[0] == kind:
                            told = self._measured.told[lie.name, lie.direction, pair, wire]
                            told.append(score(statistics, row_of(table, pair, wire)))

    def _honest(self, work: Work) -> Iterator[tuple[Pair, str, Made, Made]]:
        """A pass as the first of a pair computes it, and as the second does in one of its ways."""
        made = {kind: self._made(work, kind) for kind in self._kinds}
        for pair in self._pairs:
            ours = self._reference(work, pair[0])
            for way, theirs in made[pair[1]].items():
                comparable = work.calm or pair[0][0] == pair[1][0]  # random masks are those of a kind of device
                if ours[0] and theirs[0] and comparable and not (pair[0] == pair[1] and way == AS_IT_COMES):
                    yield pair, way, ours, theirs

    def _made(self, work: Work, kind: Kind) -> dict[str, Made]:
        device, dtype = kind
        found = {name: way(work) for name, way in ways(dtype, device).items()}
        others = self._processors if device == "cpu" else {}
        return found | {name: processor.run(work, dtype) for name, processor in others.items()}

    @staticmethod
    def _reference(work: Work, kind: Kind) -> Made:
        if kind == REFEREE:
            return work.ours, work.gradients
        return ways(kind[1], kind[0])[AS_IT_COMES](work)


def row_of(table: Calibration, pair: Pair, wire: str) -> Row:
    """The row of a table for two kinds, as members of them would be judged."""
    first, second = (device_class(dtype, device) for device, dtype in pair)
    return table.row_for(first, second, wire)


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


def score(found: Mapping[str, Mapping[str, float]], row: Row) -> float:
    """The largest statistic of a pass over its limit: above 1 for just those passes that are not `within`."""
    shares = [0.0]
    for name, statistics in found.items():
        if name == "ce":
            shares.append(statistics["loss"] / row.loss)
        else:
            limits = row.hidden if name == "hidden" else row.grad
            shares += [abs(statistics[one]) / getattr(limits, one) for one in STATISTICS]
    return max(shares)


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


def make_table(measured: Measured, config: ModelConfig, stages: int, device: str = "cpu") -> Calibration:
    """Limits from the drift that was seen."""
    rows = []
    for pair in pairs(device):
        coarser = max((dtype for _, dtype in pair), key=list(LOSS_FLOORS).index)
        step = measured.step[pair]
        for wire in ENCODINGS:
            tensors = {
                tensor: TensorLimits(**{
                    name: _limit(measured.drift[pair, wire, tensor].get(name, 0.0), floor)
                    for name, floor in zip(STATISTICS, FLOORS[coarser, wire], strict=True)
                })
                for tensor in ("hidden", "grad")
            }  # fmt: skip
            tensor_floor, value_floor = STEP_FLOORS[coarser]
            first, second = (f"{device}-*-{dtype}" for device, dtype in pair)
            rows.append(
                Row(
                    classes=(first, second),
                    wire=wire,  # type: ignore[arg-type]
                    loss=_limit(measured.drift[pair, wire, "ce"].get("loss", 0.0), LOSS_FLOORS[coarser]),
                    step=StepLimits(
                        tensor=_limit(step.get("tensor", 0.0), tensor_floor),
                        value=_limit(step.get("value", 0.0), value_floor, MOST_VALUE),
                    ),
                    **tensors,
                )
            )
    machine = f"{platform.machine()}, torch {torch.__version__.split('+')[0]}, {torch.backends.cpu.get_cpu_capability()}"
    if device == "cuda":
        machine += f", {torch.cuda.get_device_name()}"
    return Calibration(measured=f"model {config.preset} in {stages} stages on {machine}", rows=tuple(rows))


def _limit(seen: float, floor: float, most: float = MOST) -> float:
    """Two digits, rounded up."""
    wanted = min(most, max(MARGIN * seen, floor))
    unit = 10.0 ** (math.floor(math.log10(wanted)) - 1)
    return min(most, float(f"{math.ceil(wanted / unit - 1e-9) * unit:.2g}"))
