"""How long a silent callee is trusted: as long as its signs of life have been seen to keep one waiting, and not much longer.

A callee sends a sign of life every quarter of a second while it works, so the gaps between them say how busy its machine and the
way to it are. The bound is the median gap plus some median absolute deviations, never under three signs missed in a row and
never above the run's own bound. A gap that has been seen may come again: the longest one remembered is always granted, with
something on top. A callee of which little is known is judged by what is known of its siblings.

A pure decider: gaps come in, a bound and its reason come out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from swarm.carrier import WAITING_EVERY_S

SIGN_EVERY_S = WAITING_EVERY_S  # a gap shorter than the period of the signs says no more than one of that length
FLOOR_S = 3 * SIGN_EVERY_S
SPREAD = 6.0            # median absolute deviations above the median
SLACK = 2.0             # times the longest gap remembered
REMEMBERED = 64         # calls of one callee
MINIMUM_HISTORY = 8     # fewer calls say nothing about the spread


@dataclass(frozen=True)
class Bound:
    """How long [s] a callee may be silent, and why."""

    silence_s: float
    reason: str


class Arrivals:
    """Gaps between signs of life of the replicas of one stage.

    Args:
        sign_every_s: period of the signs.
        floor_s: the least bound; the ceiling, which comes with each question, goes before it.
    """

    def __init__(self, *, sign_every_s: float = SIGN_EVERY_S, floor_s: float = FLOOR_S) -> None:
        self._sign_every_s = sign_every_s
        self._floor_s = floor_s
        self._gaps: dict[str, deque[float]] = {}

    def came(self, peer: str, longest_gap_s: float) -> None:
        """A call was answered; no sign of life was further from the one before it than `longest_gap_s`."""
        gaps = self._gaps.setdefault(peer, deque(maxlen=REMEMBERED))
        gaps.append(max(longest_gap_s, self._sign_every_s))

    def keep(self, peers: Collection[str]) -> None:
        """Forget the callees that are not among `peers`."""
        self._gaps = {peer: gaps for peer, gaps in self._gaps.items() if peer in peers}

    def bound(self, peer: str, ceiling_s: float) -> Bound:
        """How long the callee may be silent now.

        Args:
            ceiling_s: of the run; granted in full while nothing is known.
        """
        gaps = list(self._gaps.get(peer, ()))
        whose = "its"
        if len(gaps) < MINIMUM_HISTORY:
            gaps, whose = [gap for known in self._gaps.values() for gap in known], "its siblings'"
        if len(gaps) < MINIMUM_HISTORY:
            return Bound(ceiling_s, f"{ceiling_s:.2f} s, the run's: only {len(gaps)} answers known")
        middle = median(gaps)
        deviation = median(abs(gap - middle) for gap in gaps)
        wanted_s = max(middle + SPREAD * deviation, SLACK * max(gaps), self._floor_s)
        bound_s = min(wanted_s, ceiling_s)
        seen = f"median gap {middle:.2f} s, MAD {deviation:.2f} s, longest {max(gaps):.2f} s"
        return Bound(bound_s, f"{bound_s:.2f} s by {whose} last {len(gaps)} answers: {seen}")
