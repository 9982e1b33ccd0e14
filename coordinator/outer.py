"""The outer optimizer: Nesterov momentum over aggregated pseudo-gradients (DiLoCo, arXiv 2311.08105)."""

from __future__ import annotations

import numpy as np


def nesterov(
    weights: np.ndarray, gradient: np.ndarray, momentum: np.ndarray | None, *, lr: float, mu: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """One outer step of one chunk; all arrays float32 [m], none is changed.

    m' = mu m + g;  w' = w - lr (g + mu m')

    Args:
        gradient: aggregated pseudo-gradient: base weights minus trained weights.
        momentum: m; None stands for zeros, and is what comes back when `mu` is 0.

    Returns:
        New weights and new momentum.
    """
    rate, decay = np.float32(lr), np.float32(mu)
    if mu == 0:
        return weights - rate * gradient, None
    fresh = gradient.copy() if momentum is None else decay * momentum + gradient
    return weights - rate * (gradient + decay * fresh), fresh
