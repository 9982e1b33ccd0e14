"""Shortening updates to the median of their norms, so that none has more weight than its length would honestly give it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def clip_factors(norms: Sequence[float]) -> list[float]:
    """What each update is multiplied by, at most 1.

    Args:
        norms: L2 norms, finite. While fewer than half are false, their median lies within the range of the honest ones.
    """
    usual = median(norms)
    return [1.0 if norm <= usual else usual / norm for norm in norms]
