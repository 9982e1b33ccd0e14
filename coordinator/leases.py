"""Leases: which positions of the data order a stage-0 replica may read, and which microbatch ids are its own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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

    An epoch is leased to its last row. What would be left of it after this lease goes with it when that is under half a lease,
    and is a lease of its own else; so a lease has at least half and less than one and a half times its usual rows, unless the
    whole dataset has fewer.
    """
    if returned:
        return Grant(min(returned), cursor, recycled=True)
    if cursor.position >= sizes.rows:
        cursor = Cursor(cursor.epoch + 1, 0)
    size, left = sizes.rows_per_lease, sizes.rows - cursor.position
    rows = left if 2 * left < 3 * size else size
    taken = Range(cursor.epoch, cursor.position, cursor.position + rows)
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


MOST_RETRIES = 2    # of a range whose microbatches fail at every replica, again and again


@dataclass(frozen=True)
class Fate:
    """What became of a lease by the end of its round.

    Args:
        microbatches: ids that were issued for it. trained: of these, how many its holder says went all the way.
        done: its holder has finished it. returned: its range was given back. retried: times that the range was finished with
            failures and was due again.
    """

    lease_id: int
    rows: int
    microbatches: range
    trained: int
    done: bool
    returned: bool
    retried: int = 0

    @property
    def whole(self) -> bool:
        """Whether no microbatch of it failed. A lease of few rows is cut into fewer microbatches than were issued."""
        return self.trained >= min(self.rows, len(self.microbatches))


def due_again(fates: Sequence[Fate], held: Collection[int]) -> dict[int, str]:
    """Finished leases whose rows must be leased once more, with the reason.

    Their holder died with its update, so that no update of stage 0 holds any of it; or some microbatch failed at every replica
    that was tried, which is tried again a few times only: it may be the data's fault.

    Args:
        held: ids of the microbatches that the round's acknowledged updates of stage 0 count.
    """
    due = {}
    for one in fates:
        if not one.done or one.returned:
            continue
        if one.trained and not any(id in held for id in one.microbatches):
            due[one.lease_id] = "no update of stage 0 holds it"
        elif not one.whole and one.retried < MOST_RETRIES:
            due[one.lease_id] = "some of its microbatches failed"
    return due


def repeated_rows(fates: Sequence[Fate], due: Collection[int], counted: Collection[int]) -> int:
    """Rows that the round has trained although they were, or will be, trained by somebody else as well.

    They are the rows of leases whose range was given back, or is due again, and which were finished all the same or of which
    some update counts a microbatch: a later stage had worked on it before its holder was lost. The rows of such a lease count
    whole, so this is an upper bound.

    Args:
        due: lease ids, as `due_again` names them. counted: ids of the microbatches that any update of the round counts.
    """
    return sum(
        one.rows for one in fates
        if (one.returned and ((one.done and one.trained) or any(id in counted for id in one.microbatches)))
        or (one.lease_id in due and any(id in counted for id in one.microbatches))
    )  # fmt: skip
