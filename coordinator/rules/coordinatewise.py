"""Trimmed mean and median, coordinate by coordinate, by networks of minima and maxima over whole rows.

Few rows and long columns are the rule here, where a sort along the first axis would be far slower. Each column is put in order by
Batcher's odd-even merge network (Batcher, 1968; for any n as in Knuth 5.2.2 M), of which only what the ranks in the middle depend
on is carried out. The result is a function of the values in a column alone: neither the order of the rows nor the length of the
chunk changes a bit of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Exchange:
    """Rows `low` and `high` are compared; the smaller values are wanted in the first, the larger ones in the second."""

    low: int
    high: int
    smaller: bool
    larger: bool


def ends_trimmed(rule: str, rows: int, f: int) -> int:
    """How many values at either end of a column are left out: all but the middle one or two for the median."""
    return (rows - 1) // 2 if rule == "median" else f


@lru_cache(maxsize=256)
def middle_network(n: int, trimmed: int) -> tuple[Exchange, ...]:
    """What brings the ranks `trimmed` to n - trimmed - 1 of any n values to their places, in order."""
    needed = set(range(trimmed, n - trimmed))
    exchanges: list[Exchange] = []
    for low, high in reversed(sorting_network(n)):
        if low in needed or high in needed:
            exchanges.append(Exchange(low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(exchanges))


def sorting_network(n: int) -> list[tuple[int, int]]:
    """Compare-exchanges (i, j), i < j, that sort any n values."""
    pairs: list[tuple[int, int]] = []
    top = 1
    while top < n:
        top *= 2
    p = top // 2
    while p > 0:
        q, r, d = top // 2, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def middle(rows: list[np.ndarray], spare: np.ndarray, trimmed: int) -> list[np.ndarray]:
    """The rows of the middle ranks, in order: n - 2 trimmed arrays, float32 [m].

    Args:
        rows: float32 [m] each, finite; their content is used up. spare: room for another one.
    """
    rows = list(rows)
    for one in middle_network(len(rows), trimmed):
        low, high = rows[one.low], rows[one.high]
        if one.smaller and one.larger:
            np.minimum(low, high, out=spare)
            np.maximum(low, high, out=high)
            rows[one.low], spare = spare, low
        elif one.smaller:
            np.minimum(low, high, out=low)
        else:
            np.maximum(low, high, out=high)
    return rows[trimmed : len(rows) - trimmed]


def mean_of(rows: list[np.ndarray], out: np.ndarray) -> None:
    """The mean of float32 [m] rows, summed in their order in float32."""
    if len(rows) == 1:
        out[:] = rows[0]
        return
    np.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        out += row
    out /= np.float32(len(rows))


def trimmed_mean(rows: list[np.ndarray], spare: np.ndarray, trimmed: int, out: np.ndarray) -> list[np.ndarray]:
    """Mean of what is left of each column when `trimmed` values at either end are gone; as `middle`, into `out`.

    Returns:
        What is left, in order of rank.
    """
    kept = middle(rows, spare, trimmed) if trimmed else rows
    mean_of(kept, out)
    if trimmed:
        # Which of -0.0 and 0.0 counts as the smaller depends on the instruction: both become 0.0.
        out += np.float32(0.0)
    return kept
