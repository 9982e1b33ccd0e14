"""Whether a quantity of a process that runs for hours stays where it is. Pure: from samples to a verdict and its reason.

The slope is Theil and Sen's: the median of the slopes between all pairs of samples, which a few outliers do not move (Sen 1968).
Samples of the beginning, in which caches fill and connections are made, are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP_SHARE = 0.25
MIN_SAMPLES = 8
MAX_POINTS = 120
"""More samples than that are put together, by the median of neighbours: slopes are counted between all pairs."""
FLOOR_WINDOWS = 24


@dataclass(frozen=True)
class Bound:
    """How much a quantity may grow over the time that is looked at: the larger of a share of its median and a fixed amount.

    Args:
        floor: the least of each of `FLOOR_WINDOWS` is looked at. For what rises and falls by many with the traffic, such as the
            streams under way: what is never given back raises the least too, a busier hour raises the rest alone.
    """

    share: float
    amount: float
    floor: bool = False

    def over(self, median: float) -> float:
        return max(self.share * median, self.amount)


BOUNDS = {
    "memory_bytes": Bound(0.05, 8 * 2**20),
    "threads": Bound(0.0, 2.0, floor=True),
    "descriptors": Bound(0.05, 4.0, floor=True),
    "sockets": Bound(0.05, 4.0, floor=True),
}
"""Of what a soak samples."""


@dataclass(frozen=True)
class Verdict:
    """What came of it.

    Args:
        per_hour: the slope. growth: over the time looked at, by the slope. allowed: of that.
        first, last: medians of the first and the last quarter of that time.
    """

    flat: bool
    per_hour: float
    growth: float
    allowed: float
    first: float
    last: float
    reason: str


def _thinned(samples: Sequence[tuple[float, float]], floor: bool) -> list[tuple[float, float]]:
    size = -(-len(samples) // (FLOOR_WINDOWS if floor else MAX_POINTS))
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    of_values = min if floor else statistics.median
    return [(statistics.median(at for at, _ in group), of_values([value for _, value in group])) for group in groups]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of samples of different times; 0 where there is no such pair."""
    points = sorted(samples)
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(points)
        for later in points[number + 1 :]
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def judge(samples: Sequence[tuple[float, float]], bound: Bound, *, warm_up_s: float = 0.0) -> Verdict | None:
    """Whether a quantity is flat.

    Args:
        samples: (seconds, value), the earliest first.
        warm_up_s: what is left out of the beginning is at least so long.

    Returns: None where too few samples are left after the warm-up to tell.
    """
    if not samples:
        return None
    begin, end = samples[0][0], samples[-1][0]
    from_s = begin + max(WARM_UP_SHARE * (end - begin), warm_up_s)
    settled = [(at, value) for at, value in samples if at >= from_s]
    if len(settled) < MIN_SAMPLES or end <= begin:
        return None
    points = _thinned(settled, bound.floor)
    each_s = slope(points)
    span_s = settled[-1][0] - settled[0][0]
    quarter = max(len(points) // 4, 1)
    median = statistics.median(value for _, value in settled)
    growth, allowed = each_s * span_s, bound.over(median)
    flat = growth <= allowed
    return Verdict(
        flat=flat,
        per_hour=each_s * 3600.0,
        growth=growth,
        allowed=allowed,
        first=statistics.median(value for _, value in points[:quarter]),
        last=statistics.median(value for _, value in points[-quarter:]),
        reason=f"grows by {growth:.4g} in {span_s:.0f} s, {'no more than' if flat else 'more than'} {allowed:.4g}",
    )
