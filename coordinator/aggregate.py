"""From the updates of one stage to its new weights: check, leave out, combine, outer step. Memory: some chunks of each file.

Runs in a worker thread; touches nothing but the files it is given. The same files give the same bytes, so it can be done again
after a crash.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from common.errors import Code, HocketError
from coordinator.outer import nesterov
from coordinator.rules import Plan, combine, plan
from coordinator.stage_writer import StageWriter
from protocol.tensor_files import TensorInfo, read_checked

CHUNK_VALUES = 1 << 18
LEAST_SHARE = 0.25
# An inner step moves a weight by about its learning rate, so a whole round stays far below this times the weights' own size
# (or times 1, for weights that start near zero). It keeps float32 sums from overflowing; the rule does the rest.
RMS_BOUND = 10.0


@dataclass(frozen=True)
class Submitted:
    """An acknowledged update, as the aggregation needs it."""

    member: str
    path: Path
    frames: int


@dataclass(frozen=True)
class StageOutcome:
    """What became of one stage.

    Args:
        plan: the rule that was applied; n = 0: the stage stays as it was.
        accepted: members whose updates went in, in the order in which they were summed; refused: (member, reason).
        norms: L2 norm of each checked update, by member.
        sha256, size_bytes: of the new weights file; empty and 0 when nothing was accepted.
        momentum: whether a momentum file was written.
        step_norm: L2 norm of the aggregated pseudo-gradient.
    """

    plan: Plan
    accepted: list[str]
    refused: list[tuple[str, str]]
    norms: dict[str, float] = field(default_factory=dict)
    sha256: str = ""
    size_bytes: int = 0
    momentum: bool = False
    step_norm: float = 0.0


def _slices(size: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK_VALUES, size)) for start in range(0, size, CHUNK_VALUES))


def _open(path: Path, tensors: Sequence[TensorInfo], code: Code) -> dict[str, np.ndarray]:
    """Maps of a file that was compared with what it must hold. Taking a tensor out of the table and dropping it unmaps it."""
    return read_checked(path, tensors, code=code, finite=False, mapped=True)


def norm_of(path: Path, tensors: Sequence[TensorInfo], code: Code) -> float:
    """L2 norm of a whole file, in float64.

    Raises:
        HocketError: `code` when it does not hold exactly `tensors`, NOT_FINITE for a NaN or an infinity.
    """
    try:
        with path.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
    except OSError as error:
        raise HocketError(code, f"{path} ({error.strerror})") from error
    if header_bytes % 8:
        # Such a file could not be mapped and would be read into memory whole.
        raise HocketError(code, f"{path.name}: its data is not aligned")
    arrays = _open(path, tensors, code)
    squares = 0.0
    for info in tensors:
        flat = arrays.pop(info.name).reshape(-1)
        for part in _slices(flat.size):
            values = flat[part].astype(np.float64)
            square = float(np.dot(values, values))
            # One NaN or infinity makes the sum so; float64 has room for the square of any finite float32.
            if not math.isfinite(square):
                raise HocketError(Code.NOT_FINITE, f"{info.name[:80]!r}")
            squares += square
    return math.sqrt(squares)


def check_updates(
    submitted: Sequence[Submitted], base_norm: float, tensors: Sequence[TensorInfo]
) -> tuple[list[Submitted], list[tuple[str, str]], dict[str, float]]:
    """Part the updates into those that count and those that do not, with the reason; norms of all that could be read.

    Args:
        base_norm: L2 norm of the stage's weights.
    """
    sound: list[Submitted] = []
    refused: list[tuple[str, str]] = []
    norms: dict[str, float] = {}
    values = sum(math.prod(info.shape) for info in tensors)
    bound = RMS_BOUND * max(base_norm, math.sqrt(values))
    for one in sorted(submitted, key=lambda one: one.member):
        try:
            norm = norm_of(one.path, tensors, Code.UPDATE_REFUSED)
        except HocketError as error:
            refused.append((one.member, f"H{int(error.code)} {error.detail}".replace(str(one.path), "the file")))
            continue
        norms[one.member] = norm
        if norm > bound:
            refused.append((one.member, f"its norm of {norm:.3g} is above {bound:.3g}"))
        elif one.frames == 0:
            refused.append((one.member, "no frames were trained"))
        else:
            sound.append(one)
    if not sound:
        return [], refused, norms
    usual = median(one.frames for one in sound)
    for one in [one for one in sound if one.frames < LEAST_SHARE * usual]:
        sound.remove(one)
        refused.append((one.member, f"{one.frames} frames are under a quarter of the median of {usual:g}"))
    return sound, sorted(refused), norms


def aggregate_stage(
    base: Path,
    momentum: Path | None,
    submitted: Sequence[Submitted],
    tensors: Sequence[TensorInfo],
    *,
    rule: str,
    tolerate: int,
    outer_lr: float,
    outer_momentum: float,
    new_weights: Path,
    new_momentum: Path,
) -> StageOutcome:
    """Make one stage's next weights.

    Args:
        base: the stage file that the round started from; momentum: the outer optimizer's file, None at first.
        tensors: of the stage, from its version's manifest; updates and momentum hold the same.
        new_weights, new_momentum: where to write; untouched when no update counts.

    Raises:
        HocketError: CHECKPOINT_INVALID, NOT_FINITE for our own files; DISK_FULL, STATE_UNREADABLE.
    """
    order = sorted(tensors, key=lambda info: info.name)
    sound, refused, norms = check_updates(submitted, norm_of(base, order, Code.CHECKPOINT_INVALID), order)
    chosen = plan(rule, tolerate, len(sound))
    if not sound:
        return StageOutcome(chosen, [], refused, norms)
    weights = _open(base, order, Code.CHECKPOINT_INVALID)
    moments = _open(momentum, order, Code.CHECKPOINT_INVALID) if momentum is not None else None
    updates = [_open(one.path, order, Code.UPDATE_REFUSED) for one in sound]
    squares = 0.0
    with ExitStack() as stack:
        weights_file = stack.enter_context(StageWriter(new_weights, order))
        momentum_file = stack.enter_context(StageWriter(new_momentum, order)) if outer_momentum > 0 else None
        for info in order:
            base_values = weights.pop(info.name).reshape(-1)
            old_moments = moments.pop(info.name).reshape(-1) if moments is not None else None
            rows = [update.pop(info.name).reshape(-1) for update in updates]
            for part in _slices(base_values.size):
                gradient = combine(np.stack([row[part] for row in rows]), chosen)
                squares += float(np.dot(gradient.astype(np.float64), gradient.astype(np.float64)))
                moved, fresh = nesterov(
                    base_values[part], gradient, None if old_moments is None else old_moments[part],
                    lr=outer_lr, mu=outer_momentum,
                )  # fmt: skip
                if not np.isfinite(moved).all():
                    raise HocketError(Code.NOT_FINITE, f"the outer step of {info.name!r}")
                weights_file.write(moved)
                if momentum_file is not None and fresh is not None:
                    momentum_file.write(fresh)
        if momentum_file is not None:
            momentum_file.finish()
        sha256 = weights_file.finish()
    return StageOutcome(
        chosen, [one.member for one in sound], refused, norms, sha256, weights_file.size_bytes,
        momentum_file is not None, math.sqrt(squares),
    )  # fmt: skip
