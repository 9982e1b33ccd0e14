"""How fast the replicas of a stage answer one sender, as ratios that the router can divide work by.

What a replica does for us shows in the time between two of its answers while it had something of ours to do: its own speed,
its other senders' share of it and the stages behind it, but not the way to it, which is hidden while several microbatches are
under way. An answer to a lone microbatch shows the whole wait, the way included. The median of the last answers is taken, so
that a single slow one says nothing.

A replica of which little is known counts as the fastest, so that it is tried. Replicas within half of the fastest's time count as
equally fast: equal machines get exactly equal shares, whatever the noise. Pure: times come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median

REMEMBERED = 32         # answers of one replica
MINIMUM_HISTORY = 16    # fewer answers say nothing
EQUAL = 1.5             # times the pace of the fastest
STEPS = 4               # a ratio is a multiple of 1 / STEPS
SLOWEST = 8             # a slower one still gets this part of the fastest one's work, and so a chance to recover


@dataclass
class _Seen:
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    last_answer: float = float("-inf")


class Pace:
    """What one sender has seen of the replicas of the next stage; lives as long as the sender serves its stage."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def answered(self, peer: str, share: Fraction, *, sent: float, now: float) -> None:
        """A microbatch was answered.

        Args:
            share: of an inner step that it was. sent, now: on one clock [s].
        """
        seen = self._seen.setdefault(peer, _Seen())
        seen.paces.append(max(0.0, now - max(sent, seen.last_answer)) / float(share))
        seen.last_answer = now

    def keep(self, peers: Collection[str]) -> None:
        """Forget the replicas that are not among `peers`."""
        self._seen = {peer: seen for peer, seen in self._seen.items() if peer in peers}

    def seconds(self, peer: str) -> float | None:
        """Seconds that the replica takes for a whole inner step of ours; None while too little is known."""
        seen = self._seen.get(peer)
        return median(seen.paces) if seen is not None and len(seen.paces) >= MINIMUM_HISTORY else None

    def slowness(self, peers: Collection[str]) -> dict[str, Fraction]:
        """For each of `peers`, how many times as long as the fastest of them it takes: 1 for those that count as equal to it."""
        known = {peer: seconds for peer in peers if (seconds := self.seconds(peer)) is not None}
        fastest = min(known.values(), default=0.0)
        return {peer: _ratio(known[peer] / fastest) if peer in known and fastest > 0 else Fraction(1) for peer in peers}


def _ratio(slowness: float) -> Fraction:
    if slowness < EQUAL:
        return Fraction(1)
    return Fraction(min(round(slowness * STEPS), SLOWEST * STEPS), STEPS)
