"""Leases: which positions of the data order a stage-0 replica may read, and which microbatch ids are its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Range:
    """Positions [start, stop) of one epoch's order."""

    epoch: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Cursor:
    """Up to where the data order has been handed out."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class Grant:
    """A range to lease, and where the cursor stands after it; `recycled`: the range came back from another holder."""

    range: Range
    cursor: Cursor
    recycled: bool


@dataclass(frozen=True)
class Sizes:
    """The dataset and the leases cut from it.

    Args:
        rows, frames: of the whole training set.
        frames_per_inner_step: that one lease should hold.
        microbatches_per_inner_step: into which the lease's rows are cut.
    """

    rows: int
    frames: int
    frames_per_inner_step: int
    microbatches_per_inner_step: int

    @property
    def mean_frames(self) -> float:
        return self.frames / self.rows

    @property
    def rows_per_lease(self) -> int:
        """One lease is one inner step: as many rows as hold its frames on average, at least one a microbatch."""
        wanted = max(round(self.frames_per_inner_step / self.mean_frames), self.microbatches_per_inner_step, 1)
        return min(wanted, self.rows)

    def target(self, inner_steps: int, replicas: int, frames: int = 0) -> tuple[int, int]:
        """Rows and mean frames of a round in which each of `replicas` stage-0 replicas makes `inner_steps` steps.

        Args:
            frames: that the round is to have instead, however many replicas there are, in whole leases; 0: as above.
        """
        leases = max(round(frames / (self.rows_per_lease * self.mean_frames)), 1) if frames else inner_steps * replicas
        rows = leases * self.rows_per_lease
        return rows, round(rows * self.mean_frames)


def next_range(cursor: Cursor, returned: Sequence[Range], sizes: Sizes) -> Grant:
    """The next range to lease: one that came back first, else the next stretch of the order.

    The rest of an epoch that is too short for a lease is skipped: every epoch has another order, so no row is always left out,
    and every inner step has the frames that its divisor and its learning rate are planned for.
    """
    if returned:
        return Grant(min(returned), cursor, recycled=True)
    size = sizes.rows_per_lease
    if cursor.position + size > sizes.rows:
        cursor = Cursor(cursor.epoch + 1, 0)
    taken = Range(cursor.epoch, cursor.position, cursor.position + size)
    return Grant(taken, Cursor(cursor.epoch, taken.stop), recycled=False)


@dataclass(frozen=True)
class Held:
    """An unfinished lease, as the overdue decision sees it."""

    lease_id: int
    member: str
    held_s: float
    later_done: int     # leases that the same member was granted after this one and has finished


def overdue(held: Sequence[Held], limit_s: float) -> list[tuple[int, str]]:
    """Leases whose range should go to somebody else, with the reason.

    A holder that has finished two later leases never heard of this one (its grant was lost with the connection).
    """
    lost = []
    for one in held:
        if one.later_done >= 2:
            lost.append((one.lease_id, "its holder has finished two later ones"))
        elif one.held_s > limit_s:
            lost.append((one.lease_id, f"unfinished after {one.held_s:.1f} s, the limit is {limit_s:.1f} s"))
    return lost
