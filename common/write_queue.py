"""What a background writer does next: which save is taken, replaces another, makes room, is written, is put in place.

A pure decider. It holds names and sizes, never bytes: a save is offered, filled by its caller, written by the writer's thread
beside its target, and put in place. Four rules:

* A newer save of a path takes the place of an older one that still waits; the older one is given up.
* To make room, plain saves that wait are dropped, the oldest first. A pinned save never is, nor is one that is ranked among
  the best; when only such ones wait, the caller waits too.
* A file is put in place only while it is the newest of its path. But a path that missed its turn so is owed one: its next
  file is not dropped, and is put in place even though a newer one waits. So a fast caller cannot starve the disk.
* Of the ranked files on disk the best few stay; another one is removed only after a better one is in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

KEEP_RANKED = 5


class Keep(Enum):
    """How firmly a save that waits is held."""

    PLAIN = "plain"  # may be dropped to make room: an older file of its path, or a later save, does as well
    RANKED = "ranked"  # held while its score is among the best
    PINNED = "pinned"  # always held


@dataclass(frozen=True)
class Save:
    """A file that is to be written.

    Args:
        path: of the target; saves of equal paths replace each other.
        size_bytes: that it takes of the buffer.
        keep: how firmly it is held.
        score: of a RANKED save, lower is better, as with a held-out loss; None for the others.
    """

    path: str
    size_bytes: int
    keep: Keep = Keep.PLAIN
    score: float | None = None

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ValueError(f"a save of {self.size_bytes} bytes")
        if (self.keep is Keep.RANKED) != (self.score is not None):
            raise ValueError("a ranked save has a score, and no other has")
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"a score of {self.score}")


class Answer(Enum):
    """What becomes of an offered save."""

    TAKEN = "taken"
    WAIT = "wait"
    OUTRANKED = "outranked"
    TOO_LARGE = "too large"


@dataclass(frozen=True)
class Offer:
    """The answer to a save; nothing was changed unless it was TAKEN.

    Args:
        number: of the save, -1 unless it was taken.
        freed: numbers of the saves that were given up for it: replaced, or dropped to make room.
    """

    answer: Answer
    reason: str
    number: int = -1
    freed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placing:
    """Whether a file that was written beside its target may be put in place."""

    replace: bool
    reason: str


class _State(Enum):
    FILLING = "filling"
    READY = "ready"
    WRITING = "writing"
    FORGOTTEN = "forgotten"  # is being written, but must not be put in place


@dataclass
class _Held:
    save: Save
    place: int
    firm: bool
    state: _State = _State.FILLING


class WriteQueue:
    """The saves between their callers and the disk.

    Args:
        limit_bytes: of all saves held, the one being written included.
        keep_ranked: ranked files that stay on disk.
        on_disk: score by path of the ranked files that are there already.
    """

    def __init__(self, limit_bytes: int, *, keep_ranked: int = KEEP_RANKED, on_disk: Mapping[str, float] | None = None) -> None:
        if limit_bytes < 1 or keep_ranked < 1:
            raise ValueError(f"a buffer of {limit_bytes} bytes, {keep_ranked} ranked files")
        self._limit_bytes = limit_bytes
        self._keep_ranked = keep_ranked
        self._ranked = dict(on_disk or {})
        self._held: dict[int, _Held] = {}
        self._owed: set[str] = set()
        self._numbers = 0

    @property
    def held_bytes(self) -> int:
        return sum(held.save.size_bytes for held in self._held.values())

    @property
    def idle(self) -> bool:
        """Nothing is held: everything that was taken is on disk, given up or failed."""
        return not self._held

    @property
    def ranked_on_disk(self) -> dict[str, float]:
        """Score by path of the ranked files that are in place."""
        return dict(self._ranked)

    def waiting(self) -> list[int]:
        """Numbers of the saves that no writer has begun, in the order in which they will be written."""
        found = [number for number, held in self._held.items() if held.state in (_State.FILLING, _State.READY)]
        return sorted(found, key=lambda number: self._held[number].place)

    def _among_best(self, number: int) -> bool:
        """Whether fewer than `keep_ranked` others, held or on disk, have a score as good as that of this ranked save."""
        mine = self._held[number].save
        assert mine.score is not None
        better = {path for path, score in self._ranked.items() if path != mine.path and score <= mine.score}
        for other, held in self._held.items():
            score = held.save.score
            if other != number and held.save.path != mine.path and score is not None and score <= mine.score:
                better.add(held.save.path)
        return len(better) < self._keep_ranked

    def protected(self, number: int) -> bool:
        """Whether a save may not be dropped to make room."""
        held = self._held[number]
        if held.state is not _State.READY or held.firm or held.save.path in self._owed:
            return True
        return held.save.keep is Keep.RANKED and self._among_best(number)

    # ---- the caller's side ------------------------------------------------------------------------------------------

    def offer(self, save: Save) -> Offer:
        """Ask to take a save; one that is TAKEN is then filled, and `ready` or `abandon` follows."""
        if save.size_bytes > self._limit_bytes:
            return Offer(Answer.TOO_LARGE, f"{save.size_bytes} bytes are more than the whole buffer of {self._limit_bytes}")
        if save.score is not None:
            better = sum(score <= save.score for path, score in self._ranked.items() if path != save.path)
            if better >= self._keep_ranked:
                return Offer(Answer.OUTRANKED, f"{better} files in place have a score of {save.score:.6g} or better")
        same = [number for number, held in self._held.items() if held.save.path == save.path]
        filling = [number for number in same if self._held[number].state is _State.FILLING]
        if filling:
            return Offer(Answer.WAIT, f"an older save of {save.path} is being filled")
        replaced = [number for number in same if self._held[number].state is _State.READY]
        free_bytes = self._limit_bytes - self.held_bytes + sum(self._held[number].save.size_bytes for number in replaced)
        dropped: list[int] = []
        for number in self.waiting():
            if free_bytes >= save.size_bytes:
                break
            if number not in replaced and not self.protected(number):
                dropped.append(number)
                free_bytes += self._held[number].save.size_bytes
        if free_bytes < save.size_bytes:
            return Offer(Answer.WAIT, f"{free_bytes} bytes can be made free, {save.size_bytes} are wanted")
        self._numbers += 1
        # What replaces a save that is held firmly stands in for it, so that dropping it would lose both.
        live = [self._held[number] for number in same if self._held[number].state is not _State.FORGOTTEN]
        firm = save.keep is Keep.PINNED or any(held.firm or held.save.keep is not Keep.PLAIN for held in live)
        place = min((self._held[number].place for number in replaced), default=self._numbers)
        for number in (*replaced, *dropped):
            del self._held[number]
        self._held[self._numbers] = _Held(save, place, firm)
        what = [f"{len(replaced)} older one replaced"] * bool(replaced) + [f"{len(dropped)} dropped"] * bool(dropped)
        return Offer(Answer.TAKEN, ", ".join(what) or "there is room", self._numbers, (*replaced, *dropped))

    def ready(self, number: int) -> None:
        """The save is filled and may be written."""
        self._held[number].state = _State.READY

    def abandon(self, number: int) -> None:
        """The save could not be filled."""
        del self._held[number]

    def forget(self, path: str) -> tuple[int, ...]:
        """Nothing of this path is wanted any more: give up what waits, and let what is being written come to nothing.

        Returns: numbers of the saves given up; one that is being filled stays, as if it came after this.
        """
        same = {number: held for number, held in self._held.items() if held.save.path == path}
        freed = tuple(number for number, held in same.items() if held.state is _State.READY)
        for number in freed:
            del self._held[number]
        for held in same.values():
            if held.state is _State.WRITING:
                held.state = _State.FORGOTTEN
        self._ranked.pop(path, None)
        self._owed.discard(path)
        return freed

    # ---- the writer's side ------------------------------------------------------------------------------------------

    def begin(self) -> tuple[int, Save] | None:
        """The save to write now, the one that has waited longest; None when no filled one waits."""
        for number in self.waiting():
            held = self._held[number]
            if held.state is _State.READY:
                held.state = _State.WRITING
                return number, held.save
        return None

    def written(self, number: int) -> Placing:
        """The file lies whole beside its target: whether to put it in place. When not, the save is given up here."""
        held = self._held[number]
        path = held.save.path
        if held.state is _State.FORGOTTEN:
            del self._held[number]
            return Placing(False, "its path was forgotten meanwhile")
        newer = any(
            other > number and entry.save.path == path and entry.state is _State.READY for other, entry in self._held.items()
        )
        if not newer:
            return Placing(True, "the newest of its path")
        if path in self._owed:
            return Placing(True, "a newer one waits, but the one before was given up for this one")
        self._owed.add(path)
        del self._held[number]
        return Placing(False, "a newer one of its path waits")

    def placed(self, number: int) -> tuple[str, ...]:
        """The file is in place.

        Returns: paths of ranked files that are among the best no more, to be removed now.
        """
        held = self._held.pop(number)
        save = held.save
        if held.state is _State.FORGOTTEN:
            return ()  # between the renaming and now: whoever forgot the path has removed the file
        self._owed.discard(save.path)
        self._ranked.pop(save.path, None)
        if save.score is None:
            return ()
        self._ranked[save.path] = save.score
        order = sorted(self._ranked, key=lambda path: (self._ranked[path], path))
        gone = tuple(order[self._keep_ranked :])
        for path in gone:
            del self._ranked[path]
        return gone

    def failed(self, number: int) -> None:
        """The file could not be written or put in place."""
        del self._held[number]
