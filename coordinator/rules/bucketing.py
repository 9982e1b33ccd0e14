"""Bucketing: the rule sees averages of two updates drawn at random (Karimireddy, He, Jaggi, 2022, arXiv 2006.09365)."""

from __future__ import annotations

import hashlib

import numpy as np


def bucket_matrix(n: int, seed: bytes) -> np.ndarray:
    """Shares of the `n` updates in each bucket: float64 [ceil(n / 2), n]. An odd one has a bucket of its own.

    Args:
        seed: of the draw; anyone who knows it can draw again.
    """
    drawn = sorted(range(n), key=lambda index: hashlib.sha256(seed + index.to_bytes(4, "big")).digest())
    matrix = np.zeros(((n + 1) // 2, n))
    for place, index in enumerate(drawn):
        matrix[place // 2, index] = 1.0
    shares: np.ndarray = matrix / matrix.sum(axis=1, keepdims=True)
    return shares
