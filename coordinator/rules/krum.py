"""Krum and Multi-Krum (Blanchard et al., 2017, arXiv 1703.02757)."""

from __future__ import annotations

import numpy as np

from coordinator.rules.gram import squared_distances


def krum_weights(gram: np.ndarray, f: int, kept: int) -> np.ndarray:
    """Equal weights for the `kept` updates with the least sum of squared distances to their n - f - 2 nearest others.

    Args:
        gram: [n, n] with n >= 2 f + 3. kept: 1 for Krum, n - f for Multi-Krum. Ties go to the earlier row.

    Returns:
        Weights [n] that sum to 1.
    """
    n = len(gram)
    if n < 2 * f + 3:
        raise ValueError(f"{n} updates cannot stand {f} false ones under Krum")
    near = np.sort(squared_distances(gram), axis=1)[:, 1 : n - f - 1]
    best = np.argsort(near.sum(axis=1), kind="stable")[:kept]
    weights = np.zeros(n)
    weights[best] = 1.0 / kept
    return weights
