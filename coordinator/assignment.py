"""Who serves which stage, and who is kept ready for one. Pure: from the members alone, and what was drawn for them.

In order: standbys are promoted where their own stage lacks a replica; whoever is free goes to an uncovered stage, then to one
that has fewer replicas than wanted, then becomes a standby, then goes to the slowest stage; a stage that is still uncovered takes
a member from where it can be spared; and standbys of other stages fill those that have fewer replicas than wanted. Among
stages that want a newcomer equally, its lot decides. No operator and no range of addresses gets more of a stage than its cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

# Speeds that differ by less count as equal: a member's own figure varies by as much from one round to the next.
EQUAL_SHARE = 0.1


class Role(StrEnum):
    REPLICA = "replica"
    STANDBY = "standby"


@dataclass(frozen=True)
class Candidate:
    """A live member, as the assignment sees it.

    Args:
        stage: that it serves now, or keeps warm as a standby; None: unassigned.
        last_stage: that it served before it was lost or started anew; it may still hold its files.
        ready: it has loaded the round's base.
        frames_per_s: measured at its present stage while it was computing; None: not known.
        memory_limit_bytes: 0: not limited.
        lot: drawn for it; operator, range: whose it is, and where it calls from; empty: not known, so alone.
    """

    member: str
    stage: int | None
    last_stage: int | None = None
    role: Role = Role.REPLICA
    ready: bool = False
    frames_per_s: float | None = None
    memory_limit_bytes: int = 0
    lot: int = 0
    operator: str = ""
    range: str = ""


@dataclass(frozen=True)
class Wanted:
    """What there should be.

    Args:
        stages: number of them. replicas: wanted of each. standbys: members kept as such, of all stages together.
        stage_bytes: memory that each stage takes; empty: not known, and every stage fits every member.
        per_operator, per_range: most members that one operator, or one range of addresses, may have at a stage; 0: not limited.
    """

    stages: int
    replicas: int = 1
    standbys: int = 0
    stage_bytes: tuple[int, ...] = ()
    per_operator: int = 0
    per_range: int = 0

    def fitting(self, memory_limit_bytes: int) -> list[int]:
        """The stages that a member with this limit can hold."""
        if not self.stage_bytes or memory_limit_bytes == 0:
            return list(range(self.stages))
        return [stage for stage, needed in enumerate(self.stage_bytes) if needed <= memory_limit_bytes]


@dataclass(frozen=True)
class Assignment:
    """One member is to serve one stage, or to stand by for it, under a new generation."""

    member: str
    stage: int
    reason: str
    role: Role = Role.REPLICA


def assign(candidates: Sequence[Candidate], wanted: Wanted) -> list[Assignment]:
    """What to change; nothing when all is in order. The order of `candidates` does not matter, and no stage is uncovered."""
    board = Board(candidates, wanted)
    given: dict[str, Assignment] = {}

    def give(one: Candidate, stage: int, reason: str, role: Role = Role.REPLICA) -> None:
        # Who was just given a place may be needed elsewhere all the more: the last word counts.
        board.place(one, stage, role)
        given[one.member] = Assignment(one.member, stage, reason, role)

    for stage in range(wanted.stages):
        while (count := len(board.replicas[stage])) < wanted.replicas and board.standbys[stage]:
            ready = min(board.standbys[stage], key=lambda one: (not one.ready, one.member))
            give(ready, stage, f"promoted: {count} of {wanted.replicas} replicas are left")
    # Who can hold least chooses first: what it can hold, the others can as well.
    for one in sorted(board.free, key=lambda one: (one.memory_limit_bytes or float("inf"), one.member)):
        if (place := _place(board, one)) is not None:
            give(one, *place)
    for stage in range(wanted.stages):
        if not board.replicas[stage] and (spared := _spared(board, stage)) is not None:
            moved, reason = spared
            give(moved, stage, reason)
    for stage in sorted(range(wanted.stages), key=lambda stage: len(board.replicas[stage])):
        while 0 < (count := len(board.replicas[stage])) < wanted.replicas:
            other = _standby_of_another(board, stage)
            if other is None:
                break
            give(other, stage, f"promoted from stage {other.stage}: {count} of {wanted.replicas} replicas are left")
    before = {one.member: (one.stage, one.role) for one in candidates}
    return [one for one in given.values() if before[one.member] != (one.stage, one.role)]


class Board:
    """Who is where, while changes are tried.

    Args:
        candidates: in any order.
    """

    def __init__(self, candidates: Sequence[Candidate], wanted: Wanted) -> None:
        self.wanted = wanted
        self.free: list[Candidate] = []
        self.replicas: list[list[Candidate]] = [[] for _ in range(wanted.stages)]
        self.standbys: list[list[Candidate]] = [[] for _ in range(wanted.stages)]
        for one in sorted(candidates, key=lambda one: one.member):
            if one.stage is None:
                self.free.append(one)
            else:
                self._there(one.role)[one.stage].append(one)
        measured = [[one.frames_per_s for one in there if one.frames_per_s is not None] for there in self.replicas]
        everywhere = [figure for figures in measured for figure in figures]
        usual = median(everywhere) if everywhere else 1.0
        self._usual = [median(figures) if figures else usual for figures in measured]
        self.all_measured = all(measured)

    def place(self, one: Candidate, stage: int, role: Role) -> None:
        """Put a member somewhere, away from where it was."""
        if one.stage is not None:
            self._there(one.role)[one.stage].remove(one)
        measured = None if one.frames_per_s is None else self.speed_of(one, stage)
        ready = one.ready and one.stage == stage
        self._there(role)[stage].append(replace(one, stage=stage, role=role, frames_per_s=measured, ready=ready))

    def open_to(self, one: Candidate) -> list[int]:
        """The stages that a member can hold, and that its operator and its range of addresses may have another member at."""
        return [stage for stage in self.wanted.fitting(one.memory_limit_bytes) if self._within_caps(one, stage)]

    def _within_caps(self, one: Candidate, stage: int) -> bool:
        wanted = self.wanted
        others = [other for other in (*self.replicas[stage], *self.standbys[stage]) if other.member != one.member]
        for most, hand, hands in (
            (wanted.per_operator, one.operator, [other.operator for other in others]),
            (wanted.per_range, one.range, [other.range for other in others]),
        ):
            if most and hand and hands.count(hand) >= most:
                return False
        return True

    def _there(self, role: Role) -> list[list[Candidate]]:
        return self.replicas if role is Role.REPLICA else self.standbys

    def speed(self, stage: int) -> float:
        """Frames per second that a stage's replicas can do together."""
        return sum(self.speed_of(one, stage) for one in self.replicas[stage])

    def speed_of(self, one: Candidate, stage: int) -> float:
        """Frames per second of a member at a stage: measured, carried over by the two stages' usual figures, or the usual one."""
        if one.frames_per_s is None or one.stage is None:
            return self._usual[stage]
        if one.stage == stage:
            return one.frames_per_s
        return one.frames_per_s * self._usual[stage] / self._usual[one.stage] if self._usual[one.stage] > 0 else 0.0

    def slowest(self, stages: Sequence[int], one: Candidate) -> int:
        """The slowest of `stages`; among those about as slow, the one that `one` served last, else the one that its lot says."""
        speeds = {stage: self.speed(stage) for stage in stages}
        least = min(speeds.values())
        return drawn([stage for stage in stages if speeds[stage] <= (1 + EQUAL_SHARE) * least], one)


def drawn(stages: Sequence[int], one: Candidate) -> int:
    """One of `stages`: that which `one` served last, else the one that its lot says."""
    if one.last_stage is not None and one.last_stage in stages:
        return one.last_stage
    return stages[one.lot % len(stages)]


def _place(board: Board, one: Candidate) -> tuple[int, str, Role] | None:
    """Where a free member goes, and why; None: no stage fits it, or is open to it."""
    wanted, replicas = board.wanted, board.replicas
    fitting = board.open_to(one)
    if not fitting:
        return None
    uncovered = [stage for stage in fitting if not replicas[stage]]
    if uncovered:
        return drawn(uncovered, one), "no replica served it", Role.REPLICA
    fewest = min(len(replicas[stage]) for stage in fitting)
    if fewest < wanted.replicas:
        thin = [stage for stage in fitting if len(replicas[stage]) == fewest]
        return board.slowest(thin, one), f"{fewest} of {wanted.replicas} replicas are there", Role.REPLICA
    if all(replicas) and sum(map(len, board.standbys)) < wanted.standbys:
        counts = {stage: (len(board.standbys[stage]), len(replicas[stage])) for stage in fitting}
        thin = [stage for stage in fitting if counts[stage] == min(counts.values())]
        return board.slowest(thin, one), "kept ready", Role.STANDBY
    stage = board.slowest(fitting, one)
    return stage, f"the slowest stage, with {len(replicas[stage])} replicas", Role.REPLICA


def _spared(board: Board, stage: int) -> tuple[Candidate, str] | None:
    """Who can be spared for an uncovered stage: a standby of another stage, else one of at least two replicas."""
    if (standby := _standby_of_another(board, stage)) is not None:
        return standby, f"promoted from stage {standby.stage}: no replica was left"
    for donor in sorted(range(board.wanted.stages), key=lambda other: (-len(board.replicas[other]), other)):
        movable = _movable(board, board.replicas[donor], stage)
        if len(board.replicas[donor]) >= 2 and movable:
            # The last in order moves, so that two looks at the same members move the same one.
            return movable[-1], f"moved from stage {donor}, which has more, to cover this one"
    return None


def _standby_of_another(board: Board, stage: int) -> Candidate | None:
    for donor in sorted(range(board.wanted.stages), key=lambda other: (-len(board.standbys[other]), other)):
        movable = _movable(board, board.standbys[donor], stage)
        if donor != stage and movable:
            return movable[-1]
    return None


def _movable(board: Board, there: Sequence[Candidate], stage: int) -> list[Candidate]:
    able = [one for one in there if stage in board.open_to(one)]
    return sorted(able, key=lambda one: one.member)
