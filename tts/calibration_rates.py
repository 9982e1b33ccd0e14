"""How well a limit tells honest results from lies: rates, their upper bounds, and the receiver operating characteristic.

A pass has one score, its largest statistic over that statistic's limit: above 1 it is taken for a lie. Scaling all limits alike
moves that threshold, so the scores of honest passes and of lies give the whole curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def upper_bound(failed: int, of: int, confidence: float = CONFIDENCE) -> float:
    """The rate not exceeded with this confidence where `failed` of `of` independent trials did (Clopper & Pearson 1934)."""
    if failed >= of:
        return 1.0
    low, high = failed / of, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _at_most(failed, of, rate) > 1 - confidence else (low, rate)
    return high


def _at_most(failed: int, of: int, rate: float) -> float:
    """The chance of at most `failed` of `of`, each with chance `rate`."""
    if rate >= 1.0:
        return 0.0
    terms = [
        math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * math.log(rate) + (of - k) * math.log1p(-rate)
        for k in range(failed + 1)
    ]
    return sum(math.exp(term) for term in terms)


def roc_area(honest: Sequence[float], lies: Sequence[float]) -> float:
    """The chance that a lie's score is above an honest pass's, ties counted half: 1 when some threshold tells all apart."""
    calm = np.sort(np.asarray(honest, np.float64))
    told = np.asarray(lies, np.float64)
    below, up_to = np.searchsorted(calm, told, "left"), np.searchsorted(calm, told, "right")
    return float((below + up_to).sum() / (2 * len(calm) * len(told)))


def roc_pairs(honest: Sequence[float], lies: Sequence[float]) -> list[dict[str, float]]:
    """Rates of false and true positives where all limits are taken times a scale."""
    calm, told = np.asarray(honest, np.float64), np.asarray(lies, np.float64)
    return [
        {"scale": scale, "false_positives": float((calm > scale).mean()), "true_positives": float((told > scale).mean())}
        for scale in SCALES
    ]
