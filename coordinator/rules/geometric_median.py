"""Geometric median: the point with the least sum of distances to the updates.

Smoothed Weiszfeld iterations (Pillutla, Kakade, Harchaoui, 2022, arXiv 1912.13445), on the inner products of the updates alone.
"""

from __future__ import annotations

import numpy as np

from coordinator.rules.gram import distances_to

ITERATIONS = 64
# A distance counts as at least this share of the largest norm, so that a point that meets an update divides by no zero.
SMOOTHING = 1e-6


def geometric_median_weights(gram: np.ndarray) -> np.ndarray:
    """Weights [n], not negative, that sum to 1. Their sum over the updates is the geometric median.

    Args:
        gram: inner products [n, n].
    """
    n = len(gram)
    weights = np.full(n, 1.0 / n)
    least = SMOOTHING * float(np.sqrt(np.diag(gram).max()))
    if least == 0:
        return weights
    for _ in range(ITERATIONS):
        pulls = 1.0 / np.maximum(distances_to(gram, weights), least)
        weights = pulls / pulls.sum()
    return weights
