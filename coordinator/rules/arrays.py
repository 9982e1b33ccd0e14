"""Aggregation of updates that are in memory, by the same code that works on files: for measurements and small models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.rules.pipeline import Aggregation, ArrayUpdates
from coordinator.rules.plan import Plan, plan


@dataclass(frozen=True)
class Aggregated:
    """What became of some updates.

    Args:
        values: the aggregate, float32 [P]; zeros when nothing was accepted.
        plan: what was computed. accepted: indices of the updates that the rule saw; refused: index and reason of the others.
        clips, trimmed_shares: of the accepted ones.
    """

    values: np.ndarray
    plan: Plan
    accepted: list[int]
    refused: list[tuple[int, str]]
    clips: list[float]
    trimmed_shares: list[float]


def aggregate_arrays(
    updates: np.ndarray, *, rule: str, tolerate: int, prepare: str = "none", seed: bytes = b"", threads: int = 1,
    chunk: int | None = None,
) -> Aggregated:  # fmt: skip
    """Validate, clip, prepare and combine.

    Args:
        updates: float32 [n, P]. A row that holds a NaN or an infinity is refused.
        rule, tolerate, prepare: as `rules.plan` takes them. threads, chunk: change no bit of the result.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [float(np.linalg.norm(row.astype(np.float64))) for row in updates]
    accepted = [index for index, norm in enumerate(norms) if np.isfinite(norm)]
    refused = [(index, "not finite") for index, norm in enumerate(norms) if not np.isfinite(norm)]
    chosen = plan(rule, tolerate, len(accepted), prepare)
    values = np.zeros(updates.shape[1], np.float32)
    if not accepted:
        return Aggregated(values, chosen, [], refused, [], [])
    sound = updates[accepted] if refused else updates
    kept = [norms[index] for index in accepted]
    aggregation = Aggregation(ArrayUpdates(sound), chosen, kept, seed, threads=threads, chunk=chunk)
    position = 0
    for part in aggregation.chunks():
        values[position : position + part.size] = part
        position += part.size
    return Aggregated(values, chosen, accepted, refused, aggregation.clips, aggregation.trimmed_shares())
