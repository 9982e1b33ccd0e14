"""Whole frames from predicted durations, at any speaking rate, with an exact total. Pure functions, no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stretch(durations: NDArray[Any], rate: float) -> NDArray[np.int64]:
    """Durations in whole frames, `rate` times as long.

    The ends of the phonemes are rounded, not their lengths, so that errors do not add up: the total is
    round(rate * sum(durations)), at least 1. Where there are enough frames, every phoneme keeps at least one.

    Args:
        durations: float or int [P], frames at rate 1, not negative.
        rate: factor on the durations: above 1 is slower, below 1 faster.

    Returns: int64 [P].
    """
    return _whole_frames(np.cumsum(np.asarray(durations, np.float64)) * rate)


def fit(durations: NDArray[Any], n_frames: int) -> NDArray[np.int64]:
    """Durations stretched or shrunk to sum to `n_frames` exactly; all equal where the given ones are all zero."""
    values = np.asarray(durations, np.float64)
    total = values.sum()
    shares = np.cumsum(values) / total if total > 0 else np.arange(1, len(values) + 1) / len(values)
    return _whole_frames(shares * n_frames)


def _whole_frames(ends: NDArray[np.float64]) -> NDArray[np.int64]:
    count = len(ends)
    rounded = np.floor(ends + 0.5).astype(np.int64)
    total = max(1, int(rounded[-1]))
    rounded[-1] = total
    if total >= count:
        # Push each end far enough right for its own frame and those before it, then far enough left for those after it.
        places = np.arange(count)
        rounded = np.maximum.accumulate(rounded - places) + places
        rounded = np.maximum(rounded, places + 1)
        rounded = np.minimum(rounded, total - (count - 1 - places))
    return np.diff(rounded, prepend=0)
