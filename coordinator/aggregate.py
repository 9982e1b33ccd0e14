"""From the updates of one stage to its new weights: check, leave out, combine, outer step. Memory: some chunks of each file.

Runs in a worker thread; touches nothing but the files it is given. The same files give the same bytes, so it can be done again
after a crash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.errors import Code, HocketError
from coordinator.outer import nesterov
from coordinator.rules.pipeline import Aggregation
from coordinator.rules.plan import Plan, plan
from coordinator.stage_writer import StageWriter
from coordinator.update_checks import Submitted, check_updates, measure
from protocol.flat_file import FlatFile
from protocol.tensor_files import TensorInfo

# From here on, of an update less than half of what an equal share would be went in.
TRIMMED = 0.5


@dataclass(frozen=True)
class StageOutcome:
    """What became of one stage.

    Args:
        plan: the rule that was applied; n = 0: the stage stays as it was.
        accepted: members whose updates the rule saw, by member; refused: (member, reason); kinds: of the refusals, as
            `update_checks` names them.
        norms, digests: L2 norm and, in hex, the digest of the tensors of each update that could be read, by member.
        clips: what each accepted update was multiplied by, at most 1.
        trimmed_shares: how much of each accepted update did not go in, compared with an equal share, from 0 to 1.
        sha256, size_bytes: of the new weights file; empty and 0 when nothing was accepted.
        momentum: whether a momentum file was written.
        step_norm: L2 norm of the aggregated pseudo-gradient.
    """

    plan: Plan
    accepted: list[str]
    refused: list[tuple[str, str]]
    kinds: dict[str, str] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    clips: dict[str, float] = field(default_factory=dict)
    trimmed_shares: dict[str, float] = field(default_factory=dict)
    sha256: str = ""
    size_bytes: int = 0
    momentum: bool = False
    step_norm: float = 0.0

    @property
    def outcomes(self) -> dict[str, str]:
        """By member: accepted, trimmed (less than half of it went in) or refused."""
        return {
            **{member: "trimmed" if self.trimmed_shares[member] > TRIMMED else "accepted" for member in self.accepted},
            **{member: "refused" for member, _ in self.refused},
        }


class FileUpdates:
    """Open update files as the rules read them."""

    def __init__(self, files: Sequence[FlatFile]) -> None:
        self._files = files
        self.count, self.size = len(files), files[0].size

    def read(self, index: int, start: int, into: np.ndarray) -> None:
        self._files[index].read(start, into)


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
    prepare: str = "none",
    seed: bytes = b"",
    threads: int = 2,
) -> StageOutcome:
    """Make one stage's next weights.

    Args:
        base: the stage file that the round started from; momentum: the outer optimizer's file, None at first.
        tensors: of the stage, from its version's manifest; updates and momentum hold the same.
        rule, tolerate, prepare: as `rules.plan` takes them. seed: of the draw of buckets.
        new_weights, new_momentum: where to write; untouched when no update counts.

    Raises:
        HocketError: CHECKPOINT_INVALID, NOT_FINITE for our own files; DISK_FULL, STATE_UNREADABLE.
    """
    order = sorted(tensors, key=lambda info: info.name)
    base_norm = measure(base, order, Code.CHECKPOINT_INVALID).norm
    checked = check_updates(submitted, base_norm, order, threads=threads)
    norms = {member: one.norm for member, one in checked.measured.items()}
    digests = {member: one.digest for member, one in checked.measured.items()}
    accepted = [one.member for one in checked.sound]
    chosen = plan(rule, tolerate, len(accepted), prepare)
    if not accepted:
        return StageOutcome(chosen, [], checked.refused, checked.kinds, norms, digests)
    squares = 0.0
    with ExitStack() as stack:
        weights = stack.enter_context(FlatFile(base, order, Code.CHECKPOINT_INVALID))
        moments = stack.enter_context(FlatFile(momentum, order, Code.CHECKPOINT_INVALID)) if momentum is not None else None
        files = [stack.enter_context(FlatFile(one.path, order, Code.UPDATE_REFUSED)) for one in checked.sound]
        weights_file = stack.enter_context(StageWriter(new_weights, order))
        momentum_file = stack.enter_context(StageWriter(new_momentum, order)) if outer_momentum > 0 else None
        aggregation = Aggregation(FileUpdates(files), chosen, [norms[member] for member in accepted], seed, threads=threads)
        position = 0
        for gradient in stack.enter_context(closing(aggregation.chunks())):
            exact = gradient.astype(np.float64)
            squares += float(np.dot(exact, exact))
            moved, fresh = nesterov(
                _piece(weights, position, gradient), gradient, None if moments is None else _piece(moments, position, gradient),
                lr=outer_lr, mu=outer_momentum,
            )  # fmt: skip
            if not np.isfinite(moved).all():
                raise HocketError(Code.NOT_FINITE, f"the outer step of values {position} to {position + moved.size}")
            weights_file.write(moved)
            if momentum_file is not None and fresh is not None:
                momentum_file.write(fresh)
            position += gradient.size
        if momentum_file is not None:
            momentum_file.finish()
        sha256 = weights_file.finish()
    return StageOutcome(
        chosen, accepted, checked.refused, checked.kinds, norms, digests,
        dict(zip(accepted, aggregation.clips, strict=True)),
        dict(zip(accepted, aggregation.trimmed_shares(), strict=True)),
        sha256, weights_file.size_bytes, momentum_file is not None, math.sqrt(squares),
    )  # fmt: skip


def _piece(file: FlatFile, position: int, like: np.ndarray) -> np.ndarray:
    """Values of a file from `position` on, float32, as many as `like` has."""
    values = np.empty_like(like)
    file.read(position, values)
    return values
