"""Adaptive deadlines: how long to wait for the last ones, judged by how long the others took before."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

SPREAD = 6.0            # how many median absolute deviations a straggler may be late
MINIMUM_HISTORY = 3     # fewer arrivals say nothing about the spread
# With arrivals that agree to the millisecond the deviation is nearly nil, so some multiple of the median is always granted.
SLACK = 1.5


def deadline(
    history: Sequence[float], *, floor_s: float, ceiling_s: float, spread: float = SPREAD, slack: float = SLACK
) -> tuple[float, str]:
    """How long to wait, in seconds, and why.

    Args:
        history: past arrival times, in seconds after the wait began.
        floor_s, ceiling_s: the answer lies between these.
        spread: multiples of the median absolute deviation (MAD) added to the median.
        slack: multiple of the median that is granted at least.
    """
    if len(history) < MINIMUM_HISTORY:
        return ceiling_s, f"{ceiling_s:.1f} s, the ceiling: only {len(history)} arrivals known"
    middle = median(history)
    deviation = median(abs(arrival - middle) for arrival in history)
    wanted = max(middle + spread * deviation, slack * middle)
    bounded = min(max(wanted, floor_s), ceiling_s)
    edge = "" if bounded == wanted else ", the floor" if bounded == floor_s else ", the ceiling"
    return bounded, f"{bounded:.1f} s{edge}: median {middle:.1f} s, MAD {deviation:.1f} s of {len(history)} arrivals"
