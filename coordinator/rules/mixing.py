"""Nearest-neighbour mixing: each update is replaced by the mean of the n - f nearest to it.

Source: Allouah et al., 2023, arXiv 2302.01772.
"""

from __future__ import annotations

import numpy as np

from coordinator.rules.gram import squared_distances


def mixing_matrix(gram: np.ndarray, f: int) -> np.ndarray:
    """Shares of the updates in each mixed one: float64 [n, n]; each counts itself. Ties go to the earlier row.

    Args:
        gram: [n, n] with n >= 2 f + 1.
    """
    n = len(gram)
    distances = squared_distances(gram)
    np.fill_diagonal(distances, -1.0)
    matrix = np.zeros((n, n))
    for row, order in enumerate(np.argsort(distances, axis=1, kind="stable")):
        matrix[row, order[: n - f]] = 1.0 / (n - f)
    return matrix
