"""What is left of an epoch, and how several readers share it. Pure.

An epoch's state is the set of its positions that nobody has read: a few ranges, whatever the number of readers was. So a run
that stops in the middle goes on with another number of readers, and no sample is lost or read twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int]
"""Positions [start, stop)."""


@dataclass(frozen=True)
class EpochState:
    """Positions of an epoch that are left: disjoint spans, rising, none empty, none touching the next."""

    epoch: int
    left: tuple[Span, ...]

    @classmethod
    def whole(cls, epoch: int, n: int) -> EpochState:
        """An epoch of `n` samples of which none has been read."""
        return cls(epoch, ((0, n),) if n > 0 else ())

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.left)

    def without(self, done: Iterable[Span]) -> EpochState:
        """The state once the positions of `done` have been read; they may overlap, and lie outside of what is left."""
        left = list(self.left)
        for start, stop in done:
            if stop <= start:
                continue
            rest: list[Span] = []
            for first, last in left:
                rest += [span for span in ((first, min(last, start)), (max(first, stop), last)) if span[0] < span[1]]
            left = rest
        return EpochState(self.epoch, tuple(left))

    def shares(self, readers: int) -> list[tuple[Span, ...]]:
        """What is left, in `readers` shares that differ by one sample at most, in order.

        Raises:
            ValueError: without readers.
        """
        if readers < 1:
            raise ValueError("at least one reader")
        total = len(self)
        sizes = [(total * (reader + 1)) // readers - (total * reader) // readers for reader in range(readers)]
        shares: list[tuple[Span, ...]] = []
        spans = list(self.left)
        for size in sizes:
            mine: list[Span] = []
            while size:
                start, stop = spans[0]
                taken = min(size, stop - start)
                mine.append((start, start + taken))
                size -= taken
                spans[0:1] = [(start + taken, stop)] if start + taken < stop else []
            shares.append(tuple(mine))
        return shares
