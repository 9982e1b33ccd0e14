"""Aggregation rules over the replicas of one stage, coordinate by coordinate, so that they can run chunk by chunk.

Sources: coordinate-wise median and trimmed mean of Yin et al., 2018 (arXiv 1803.01498). Trimming counts updates, never a
truncated fraction of them; the median of an even number is the mean of the two in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RULES = ("trimmed_mean", "median", "mean")


@dataclass(frozen=True)
class Plan:
    """What will be computed from `n` updates.

    Args:
        rule: that is applied; `mean` where the configured one has nothing to work with.
        f: updates trimmed at either end (trimmed mean), or the lies that the median stands.
        tolerates: arbitrary updates that cannot move the result outside the range of the honest ones.
    """

    rule: str
    n: int
    f: int
    tolerates: int


def plan(rule: str, tolerate: int, n: int) -> Plan:
    """The rule that `n` updates allow: f = min(tolerate, (n - 1) // 2); one or two updates have no majority: the mean.

    Args:
        rule: one of RULES.
        tolerate: how many false updates the organiser wants to stand.
    """
    if rule not in RULES:
        raise ValueError(f"no rule {rule!r}")
    most = max((n - 1) // 2, 0)
    if rule == "mean" or most == 0:
        return Plan("mean", n, 0, 0)
    if rule == "median":
        return Plan("median", n, most, most)
    f = min(tolerate, most)
    return Plan("trimmed_mean", n, f, f)


def combine(updates: np.ndarray, plan: Plan) -> np.ndarray:
    """One chunk: `updates` float32 [n, m] (its content is used up) to float32 [m].

    Sums run over the rows in order, in float32, so the result is a function of the rows alone.
    """
    n = updates.shape[0]
    if n != plan.n or n == 0:
        raise ValueError(f"{n} updates for a plan of {plan.n}")
    if plan.rule == "mean" or (plan.rule == "trimmed_mean" and plan.f == 0):
        return _mean(updates)
    _sort_rows(updates)
    if plan.rule == "median":
        return updates[n // 2].copy() if n % 2 else _mean(updates[n // 2 - 1 : n // 2 + 1])
    return _mean(updates[plan.f : n - plan.f])


def _mean(rows: np.ndarray) -> np.ndarray:
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    total /= np.float32(len(rows))
    return total


def _sort_rows(rows: np.ndarray) -> None:
    """Sort each column of [n, m] in place by Batcher's odd-even merge network: whole rows are compared at once.

    Few rows and long columns are the rule here, where a sort along the first axis would be far slower.
    """
    n = len(rows)
    lower = np.empty_like(rows[0])
    for first, second in _network(n):
        np.minimum(rows[first], rows[second], out=lower)
        np.maximum(rows[first], rows[second], out=rows[second])
        rows[first] = lower


def _network(n: int) -> list[tuple[int, int]]:
    """Compare-exchanges (i, j), i < j, that sort any n values (Batcher, 1968; for any n as in Knuth 5.2.2 M)."""
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
