"""Who serves what: coverage first, standbys in time, memory respected, and an end of the changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from coordinator.assignment import Assignment, Board, Candidate, Role, Wanted, assign
from coordinator.rebalancing import LEAST_GAIN, UNKNOWN_COST, move_cost, rebalance

MIB = 2**20


@st.composite
def memberships(draw: st.DrawFn, *, limits: bool = True) -> tuple[list[Candidate], Wanted]:
    stages = draw(st.integers(1, 5))
    need = st.lists(st.integers(1, 4).map(lambda size: size * MIB), min_size=stages, max_size=stages).map(tuple)
    wanted = Wanted(
        stages, draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.just(()) | need) if limits else ()
    )  # fmt: skip
    at = st.none() | st.integers(0, stages - 1)
    candidates = []
    for name in draw(st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, max_size=14)):
        limit = draw(st.sampled_from([0, MIB, 2 * MIB, 3 * MIB, 4 * MIB]))
        stage = draw(at)
        if stage is not None and stage not in wanted.fitting(limit):
            stage = None
        candidates.append(Candidate(
            name, stage, draw(at), draw(st.sampled_from(Role)) if stage is not None else Role.REPLICA, draw(st.booleans()),
            draw(st.none() | st.floats(1, 100)), limit,
        ))  # fmt: skip
    return candidates, wanted


def after(candidates: Sequence[Candidate], given_out: Sequence[Assignment]) -> list[Candidate]:
    """The members once these assignments are taken up; a moved member's speed is not known any more."""
    changed = {one.member: one for one in given_out}
    return [
        replace(one, stage=new.stage, last_stage=new.stage, role=new.role, ready=False, frames_per_s=None)
        if (new := changed.get(one.member)) is not None else one
        for one in candidates
    ]  # fmt: skip


def covered(candidates: Sequence[Candidate]) -> set[int]:
    return {one.stage for one in candidates if one.role is Role.REPLICA and one.stage is not None}


@given(memberships(), st.randoms())
def test_no_stage_is_uncovered_and_the_order_does_not_matter(
    case: tuple[list[Candidate], Wanted], random: Random
) -> None:
    candidates, wanted = case
    given_out = assign(candidates, wanted)
    assert len({one.member for one in given_out}) == len(given_out) and all(one.reason for one in given_out)
    assert covered(after(candidates, given_out)) >= covered(candidates)
    limits = {one.member: one.memory_limit_bytes for one in candidates}
    assert all(one.stage in wanted.fitting(limits[one.member]) for one in given_out)
    random.shuffle(candidates)
    assert assign(candidates, wanted) == given_out


@given(memberships(), st.floats(0, 1))
def test_it_comes_to_rest_within_as_many_moves_as_there_are_members(
    case: tuple[list[Candidate], Wanted], cost: float
) -> None:
    """Assignments and moves together."""
    candidates, wanted = case
    moves = 0
    while True:
        given_out = assign(candidates, wanted)
        if not given_out and (move := rebalance(candidates, wanted, cost)) is not None:
            given_out = [move]
        if not given_out:
            break
        moves += len(given_out)
        assert moves <= len(candidates)
        candidates = after(candidates, given_out)
    free = [one for one in candidates if one.stage is None]
    assert all(not wanted.fitting(one.memory_limit_bytes) for one in free)


@given(memberships(limits=False))
def test_with_enough_members_every_stage_is_covered(case: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = case
    settled = after(candidates, assign(candidates, wanted))
    assert len(covered(settled)) == min(len(candidates), wanted.stages)
    assert sum(one.role is Role.STANDBY for one in settled) <= max(
        wanted.standbys, sum(one.role is Role.STANDBY for one in candidates)
    )


@given(memberships())
def test_as_many_stages_are_covered_as_the_members_memory_allows(case: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = case
    free = [replace(one, stage=None, role=Role.REPLICA) for one in candidates]
    needs = sorted(wanted.stage_bytes or [0] * wanted.stages)
    limits = sorted(one.memory_limit_bytes or 10 * MIB for one in free)
    # Stages by rising need, each with the least of the members left that can hold it: no assignment covers more.
    possible = 0
    for limit in limits:
        if possible < len(needs) and needs[possible] <= limit:
            possible += 1
    assert len(covered(after(free, assign(free, wanted)))) == possible


@given(st.integers(1, 6), st.integers(0, 20))
def test_newcomers_spread_evenly(stages: int, number: int) -> None:
    given_out = assign([Candidate(f"{index:03}", None) for index in range(number)], Wanted(stages))
    sizes = Counter(one.stage for one in given_out)
    assert max(sizes.values(), default=0) - min(sizes[stage] for stage in range(stages)) <= 1


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 20))
def test_replicas_come_first_then_standbys_then_more_replicas(stages: int, replicas: int, standbys: int, number: int) -> None:
    given_out = assign([Candidate(f"{index:03}", None) for index in range(number)], Wanted(stages, replicas, standbys))
    roles = Counter(one.role for one in given_out)
    assert len(given_out) == number
    assert roles[Role.STANDBY] == min(standbys, max(number - stages * replicas, 0))
    held = Counter(one.stage for one in given_out if one.role is Role.STANDBY)
    assert max(held.values(), default=0) - min(held[stage] for stage in range(stages)) <= 1


def test_a_returning_member_gets_its_old_stage_among_equals_only() -> None:
    held = [Candidate("a", 0), Candidate("b", 1), Candidate("c", 2)]
    assert assign([*held, Candidate("d", None, last_stage=2)], Wanted(3))[0].stage == 2
    assert assign([*held[:1], *held[2:], Candidate("d", None, last_stage=2)], Wanted(3))[0].stage == 1


def test_an_uncovered_stage_takes_a_replica_from_the_thickest() -> None:
    held = [Candidate("a", 0), Candidate("b", 0), Candidate("c", 1), Candidate("d", 1), Candidate("e", 1)]
    (moved,) = assign(held, Wanted(3))
    assert (moved.member, moved.stage) == ("e", 2) and "stage 1" in moved.reason


def test_a_lost_replica_is_replaced_by_the_standby_that_is_ready() -> None:
    held = [
        Candidate("a", 0), Candidate("b", 0), Candidate("c", 1),
        Candidate("s", 1, role=Role.STANDBY), Candidate("t", 1, role=Role.STANDBY, ready=True),
    ]  # fmt: skip
    (promoted,) = assign(held, Wanted(2, 2, 2))
    assert (promoted.member, promoted.stage, promoted.role) == ("t", 1, Role.REPLICA)
    # Nobody is promoted where nobody is missing.
    assert assign([*held, Candidate("d", 1)], Wanted(2, 2, 2)) == []


def test_a_standby_of_another_stage_steps_in_where_a_stage_has_none_of_its_own() -> None:
    spare = Candidate("s", 0, role=Role.STANDBY)
    for held in ([Candidate("a", 0), Candidate("b", 0), Candidate("c", 1)], [Candidate("a", 0), Candidate("b", 0)]):
        (filled,) = assign([*held, spare], Wanted(2, 2, 1))
        assert (filled.member, filled.stage, filled.role) == ("s", 1, Role.REPLICA) and "from stage 0" in filled.reason


def test_a_large_member_makes_room_on_a_small_stage_for_a_small_one() -> None:
    sizes = Wanted(2, stage_bytes=(MIB, 3 * MIB))
    large, small = Candidate("a", 0, memory_limit_bytes=4 * MIB), Candidate("b", None, memory_limit_bytes=MIB)
    given_out = {one.member: one.stage for one in assign([large, small], sizes)}
    assert given_out == {"b": 0, "a": 1}
    assert assign([Candidate("c", None, memory_limit_bytes=MIB // 2)], sizes) == []


def test_a_newcomer_goes_to_the_slowest_stage_not_to_the_thinnest() -> None:
    held = [
        Candidate("a", 0, frames_per_s=50.0), Candidate("b", 0, frames_per_s=50.0), Candidate("c", 1, frames_per_s=400.0),
        Candidate("d", None, last_stage=1),
    ]  # fmt: skip
    (given_out,) = assign(held, Wanted(2))
    assert given_out.stage == 0 and "slowest" in given_out.reason


def test_a_replica_moves_only_where_the_gain_beats_the_cost() -> None:
    held = [*(Candidate(name, 0, frames_per_s=100.0) for name in "abcd"), Candidate("e", 1, frames_per_s=100.0)]
    move = rebalance(held, Wanted(2), cost=0.3)
    assert move is not None and (move.member, move.stage) == ("a", 1)
    # The pace doubles: a round and more of it would have to be lost for the move not to pay.
    assert rebalance(held, Wanted(2), cost=1.1) is None
    assert rebalance(held, Wanted(2, replicas=4), cost=0.0) is None
    assert rebalance([*held[:3], held[4]], Wanted(2), cost=0.0) is not None
    assert rebalance([*held[:2], held[4]], Wanted(2), cost=0.0) is None
    # Nothing rests on a guess.
    assert rebalance([*held[:4], replace(held[4], frames_per_s=None)], Wanted(2), cost=0.0) is None
    assert rebalance([replace(one, frames_per_s=None) for one in held[:4]] + held[4:], Wanted(2), cost=0.0) is None


def test_a_move_costs_the_download_as_a_share_of_a_round() -> None:
    assert move_cost(5.0, 20.0) == 0.25
    assert move_cost(None, 20.0) == move_cost(5.0, None) == UNKNOWN_COST


@given(memberships(), st.floats(0, 2))
def test_a_move_never_slows_the_slowest_stage(case: tuple[list[Candidate], Wanted], cost: float) -> None:
    candidates, wanted = case
    move = rebalance(candidates, wanted, cost)
    if move is None:
        return
    moved = next(one for one in candidates if one.member == move.member)
    held = Counter(one.stage for one in candidates if one.role is Role.REPLICA)
    assert moved.stage is not None and moved.stage != move.stage and held[moved.stage] > max(wanted.replicas, 1)
    board = Board(candidates, wanted)
    before = min(board.speed(stage) for stage in range(wanted.stages))
    board.place(moved, move.stage, move.role)
    assert min(board.speed(stage) for stage in range(wanted.stages)) > (1 + max(cost, LEAST_GAIN)) * before - 1e-9
