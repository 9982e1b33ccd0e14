"""At most once, and the account of an inner step: which microbatches a replica takes, counts and answers again.

Two pure deciders. `Ledger` knows for each microbatch id of the round whether its gradient was counted here, and for
which input; `StepAccount` knows how full the inner step is and when it may be taken. Both change a private state in
place and name the reason of what they decide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

CLOSE_MINIMUM = Fraction(1, 4)


class Outcome(Enum):
    """What to do with a microbatch that arrives."""

    NEW = "new"  # compute, count, store the answer
    SAME = "same"  # answer from the store
    PENDING = "pending"  # the same input is being computed: wait for that answer
    REPEATED = "repeated"  # done before, but the stored answer was evicted: compute again, count nothing
    DRIFTED = "drifted"  # another input under a known id: compute, count nothing


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Settled:
    """A microbatch whose gradient this replica has in its weights, or has thrown away (`counted` is False then).

    Args:
        digest: of its input. frames: of the microbatch.
    """

    identifier: int
    digest: bytes
    frames: int
    counted: bool


class _State(Enum):
    TAKEN = "taken"
    COUNTED = "counted"
    DISCARDED = "discarded"


@dataclass
class _Known:
    digest: bytes
    frames: int
    state: _State = _State.TAKEN


class Ledger(Generic[Answer]):
    """Which microbatches of one round this replica has counted, and the answers that it can give again.

    Args:
        limit_bytes: of stored answers; the least recently used go first.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._known: dict[int, _Known] = {}
        self._answers: OrderedDict[tuple[int, bytes], tuple[Answer, int]] = OrderedDict()
        self._stored_bytes = 0
        self._duplicates = 0
        self._dropped = 0

    @property
    def duplicates(self) -> int:
        """Arrivals of this round that were not counted because their id was known."""
        return self._duplicates

    @property
    def dropped(self) -> int:
        """Microbatches of this round that were lost here: given up for good, or discarded with their inner step."""
        return self._dropped

    @property
    def stored_bytes(self) -> int:
        return self._stored_bytes

    def counted(self) -> list[tuple[int, int]]:
        """(id, frames) of every microbatch whose gradient this replica has counted, in id order."""
        return sorted((identifier, known.frames) for identifier, known in self._known.items() if known.state is _State.COUNTED)

    def settled(self) -> list[Settled]:
        """Every microbatch that is decided about, in id order: what a later process must know to count none again."""
        return [
            Settled(identifier, known.digest, known.frames, known.state is _State.COUNTED)
            for identifier, known in sorted(self._known.items())
            if known.state is not _State.TAKEN
        ]

    def restore(self, settled: Iterable[Settled], *, duplicates: int, dropped: int) -> None:
        """Begin, instead of empty, with what an earlier ledger of the same round said; its answers are not kept."""
        if self._known:
            raise RuntimeError(f"{len(self._known)} microbatches are known already")
        for one in settled:
            self._known[one.identifier] = _Known(one.digest, one.frames, _State.COUNTED if one.counted else _State.DISCARDED)
        self._duplicates, self._dropped = duplicates, dropped

    def arrive(self, identifier: int, digest: bytes, frames: int) -> Verdict:
        """Decide about an arrival; a NEW one is noted as taken.

        Args:
            identifier: of the microbatch.
            digest: of its input.
            frames: of the microbatch.
        """
        known = self._known.get(identifier)
        if known is None:
            self._known[identifier] = _Known(digest, frames)
            return Verdict(Outcome.NEW, "first arrival")
        self._duplicates += 1
        if (identifier, digest) in self._answers:
            return Verdict(Outcome.SAME, "answered before with the same input")
        if known.digest != digest:
            return Verdict(Outcome.DRIFTED, "another input under a known id, as after a retry through another replica")
        if known.state is _State.TAKEN:
            return Verdict(Outcome.PENDING, "the same input is being computed")
        return Verdict(Outcome.REPEATED, f"{known.state.value} before, its stored answer was evicted")

    def answer(self, identifier: int, digest: bytes) -> Answer | None:
        """The stored answer, which becomes the most recently used; None if there is none."""
        stored = self._answers.get((identifier, digest))
        if stored is None:
            return None
        self._answers.move_to_end((identifier, digest))
        return stored[0]

    def count(self, identifier: int) -> None:
        """The gradient of a NEW microbatch has been added to this replica's sum."""
        self._known[identifier].state = _State.COUNTED

    def store(self, identifier: int, digest: bytes, answer: Answer, size_bytes: int) -> None:
        """Keep an answer for a repeat of the same input; one that is larger than the whole store is not kept."""
        key = (identifier, digest)
        if key in self._answers:
            self._stored_bytes -= self._answers.pop(key)[1]
        if size_bytes > self._limit_bytes:
            return
        self._answers[key] = (answer, size_bytes)
        self._stored_bytes += size_bytes
        while self._stored_bytes > self._limit_bytes:
            _, (_, freed_bytes) = self._answers.popitem(last=False)
            self._stored_bytes -= freed_bytes

    def give_up(self, identifier: int, *, lost: bool) -> None:
        """A NEW microbatch came to nothing: the next arrival of its id is new again.

        Args:
            lost: nobody will try it again, so it is counted as dropped.
        """
        known = self._known.get(identifier)
        if known is not None and known.state is _State.TAKEN:
            del self._known[identifier]
            self._dropped += lost

    def discard(self, identifiers: list[int]) -> None:
        """Counted gradients were thrown away with their inner step; the ids stay known, so they are not counted later."""
        for identifier in identifiers:
            known = self._known.get(identifier)
            if known is not None and known.state is _State.COUNTED:
                known.state = _State.DISCARDED
                self._dropped += 1


@dataclass(frozen=True)
class Admission:
    """Whether a forward pass may start; `token` names it in the account, and is -1 when it may not."""

    token: int
    reason: str

    @property
    def admitted(self) -> bool:
        return self.token >= 0


class Close(Enum):
    """What becomes of a partial inner step when the round closes."""

    STEP = "step"
    DISCARD = "discard"
    EMPTY = "empty"


@dataclass
class _Taken:
    identifier: int
    frames: int
    credit: Fraction


class StepAccount:
    """How full the current inner step is.

    Every microbatch is worth frames / (frames of its sender's inner step), an exact fraction. The step is full when
    what was taken is worth 1 or more; then no forward pass starts until every pass in flight has come back or was
    given up, and the step is taken. So no backward pass can meet other weights than its forward pass.
    """

    def __init__(self) -> None:
        self.step = 0
        self._tokens = 0
        self._in_flight: dict[int, _Taken] = {}
        self._done: list[_Taken] = []

    @property
    def credit(self) -> Fraction:
        """Worth of what is in flight and done in this step."""
        return sum((taken.credit for taken in (*self._in_flight.values(), *self._done)), Fraction(0))

    @property
    def done_credit(self) -> Fraction:
        return sum((taken.credit for taken in self._done), Fraction(0))

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def full(self) -> bool:
        return self.credit >= 1

    @property
    def may_step(self) -> bool:
        """The step is full and every pass is back."""
        return self.full and not self._in_flight

    @property
    def frames(self) -> int:
        """Frames whose gradients are in this step's sum: its divisor."""
        return sum(taken.frames for taken in self._done)

    def identifiers(self) -> list[int]:
        """Ids of the microbatches whose gradients are in this step's sum."""
        return [taken.identifier for taken in self._done]

    def admit(self, identifier: int, frames: int, inner_step_frames: int, *, counts: bool = True) -> Admission:
        """Ask to start a forward pass.

        Args:
            identifier: of the microbatch.
            frames: of the microbatch, at least 1.
            inner_step_frames: of the sender's inner step, at least `frames`.
            counts: False for a pass whose gradient is returned but not added: it has no worth, but holds the step open.
        """
        if not 1 <= frames <= inner_step_frames:
            raise ValueError(f"a microbatch of {frames} frames in an inner step of {inner_step_frames}")
        if self.full:
            return Admission(-1, f"the inner step {self.step} is full and waits for {self.in_flight} passes")
        self._tokens += 1
        credit = Fraction(frames, inner_step_frames) if counts else Fraction(0)
        self._in_flight[self._tokens] = _Taken(identifier, frames if counts else 0, credit)
        return Admission(self._tokens, "the inner step has room")

    def finish(self, token: int) -> None:
        """The backward pass is done and, if it counts, its gradient is in the sum."""
        taken = self._in_flight.pop(token)
        if taken.credit:
            self._done.append(taken)

    def give_up(self, token: int) -> None:
        """The pass came to nothing: its worth is taken back, so that another microbatch can fill the step."""
        self._in_flight.pop(token, None)

    def stepped(self) -> list[int]:
        """The optimizer has stepped, or the sum was discarded: begin the next step; returns the ids of the ended one."""
        if self._in_flight:
            raise RuntimeError(f"inner step {self.step} ended with {self.in_flight} passes in flight")
        identifiers = self.identifiers()
        self._done = []
        self.step += 1
        return identifiers

    def close(self, minimum: Fraction = CLOSE_MINIMUM) -> tuple[Close, str]:
        """Decide about a partial step once nothing is in flight any more."""
        credit = self.done_credit
        if not self._done:
            return Close.EMPTY, "no gradient is waiting"
        if credit >= minimum:
            return Close.STEP, f"worth {float(credit):.3f} of an inner step, at least {float(minimum):.2f}"
        return Close.DISCARD, f"worth {float(credit):.3f} of an inner step, under {float(minimum):.2f}"
