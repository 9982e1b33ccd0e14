"""Inner products of all pairs of updates, from which every rule over distances follows without reading the updates again.

The mean of some updates, weighted in whatever way, has its distances to all of them in these products: geometric median, centred
clipping, Krum and mixing cost one pass over the files, however often they iterate.
"""

from __future__ import annotations

import numpy as np


def gram_of(rows: np.ndarray) -> np.ndarray:
    """Inner products of one chunk of rows, float32 [n, m], as float64 [n, n]."""
    exact = rows.astype(np.float64)
    products: np.ndarray = exact @ exact.T
    return products


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """Squared distances of all pairs, [n, n], never below zero, exactly zero from each to itself."""
    lengths = np.diag(gram)
    found = np.maximum(lengths[:, None] + lengths[None, :] - 2 * gram, 0.0)
    found = (found + found.T) / 2
    np.fill_diagonal(found, 0.0)
    return found


def distances_to(gram: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Distances of all rows to the sum of the rows under `weights` [n]: [n]."""
    towards = gram @ weights
    found: np.ndarray = np.sqrt(np.maximum(np.diag(gram) - 2 * towards + weights @ towards, 0.0))
    return found
