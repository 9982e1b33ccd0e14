"""Centred clipping (Karimireddy, He, Jaggi, 2021, arXiv 2012.10333), around the coordinate-wise median.

    v <- v + mean_i (x_i - v) min(1, tau / |x_i - v|)

The radius tau is the median distance of the updates to v, so that no number has to be chosen for a model and a phase of training,
and the start is the median of the round itself, which no earlier round can have poisoned.

One factor for a whole update bounds its length, not where the length is: a lie that puts all of it into one coordinate would
move that one far. So each coordinate of the result is kept within the n - 2f middle values of its column: f lies cannot carry it
out of the range of the honest ones.
"""

from __future__ import annotations

import numpy as np

from coordinator.rules.gram import distances_to

ITERATIONS = 3


def centred_clipping_weights(gram: np.ndarray) -> np.ndarray:
    """Weights [n + 1] that sum to 1: of the updates and, last, of the centre.

    Args:
        gram: inner products [n + 1, n + 1] of the updates and of the centre, which is the last row.
    """
    n = len(gram) - 1
    weights = np.zeros(n + 1)
    weights[n] = 1.0
    for _ in range(ITERATIONS):
        away = distances_to(gram, weights)[:n]
        radius = float(np.median(away))
        pulls = np.ones(n)
        np.divide(radius, away, out=pulls, where=away > radius)
        weights *= 1.0 - pulls.sum() / n
        weights[:n] += pulls / n
    return weights
