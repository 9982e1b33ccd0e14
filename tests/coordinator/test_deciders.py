"""The pure deciders of the coordinator, by properties."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.deadlines import deadline
from coordinator.leases import Cursor, Fate, Held, Range, Sizes, due_again, next_range, overdue, repeated_rows
from coordinator.rounds import Facts, Phase, StageFacts, decide

seconds = st.floats(min_value=0, max_value=1e6)


# ---- deadlines -----------------------------------------------------------------------------------------------------------


@given(st.lists(seconds, max_size=20), seconds, seconds)
def test_a_deadline_stays_between_floor_and_ceiling(history: list[float], one: float, other: float) -> None:
    floor, ceiling = sorted((one, other))
    limit, reason = deadline(history, floor_s=floor, ceiling_s=ceiling)
    assert floor <= limit <= ceiling and reason


def test_a_deadline_is_median_plus_spread_times_deviation() -> None:
    history = [10.0, 11.0, 12.0, 13.0, 14.0]
    assert deadline(history, floor_s=0, ceiling_s=100, spread=6, slack=1)[0] == 12 + 6 * 1
    assert deadline(history, floor_s=0, ceiling_s=100, spread=0, slack=3)[0] == 36
    assert deadline(history[:2], floor_s=0, ceiling_s=100)[0] == 100


def test_one_straggler_does_not_move_a_deadline() -> None:
    usual, _ = deadline([10.0, 10.5, 11.0, 9.5, 10.0, 10.2], floor_s=0, ceiling_s=1e6)
    with_one, _ = deadline([10.0, 10.5, 11.0, 9.5, 10.0, 10.2, 5000.0], floor_s=0, ceiling_s=1e6)
    assert with_one < 2 * usual


# ---- leases --------------------------------------------------------------------------------------------------------------

sizes = st.builds(
    Sizes, rows=st.integers(1, 300), frames=st.integers(300, 60_000),
    frames_per_inner_step=st.integers(1, 5000), microbatches_per_inner_step=st.integers(1, 8),
)  # fmt: skip


@given(sizes, st.integers(1, 60))
def test_leases_tile_every_epoch_to_its_last_row(shape: Sizes, number: int) -> None:
    cursor, ranges = Cursor(), []
    for _ in range(number):
        grant = next_range(cursor, [], shape)
        assert not grant.recycled
        usual = shape.rows_per_lease
        assert usual <= 2 * grant.range.rows and 2 * grant.range.rows < 3 * usual
        assert grant.range.rows == usual or grant.range.stop == shape.rows
        ranges.append(grant.range)
        cursor = grant.cursor
    assert (ranges[0].epoch, ranges[0].start) == (0, 0)
    for before, after in pairwise(ranges):
        if before.stop == shape.rows:
            assert (after.epoch, after.start) == (before.epoch + 1, 0)
        else:
            assert (after.epoch, after.start) == (before.epoch, before.stop)


@given(sizes, st.lists(st.builds(Range, st.integers(0, 3), st.integers(0, 9), st.integers(10, 20)), min_size=1, max_size=5))
def test_what_came_back_is_leased_first(shape: Sizes, returned: list[Range]) -> None:
    cursor = Cursor(4, 0)
    grant = next_range(cursor, returned, shape)
    assert grant.recycled and grant.range == min(returned) and grant.cursor == cursor


@given(sizes, st.integers(1, 50), st.integers(1, 8))
def test_a_target_is_a_whole_number_of_leases(shape: Sizes, inner_steps: int, replicas: int) -> None:
    rows, frames = shape.target(inner_steps, replicas)
    assert rows == inner_steps * replicas * shape.rows_per_lease
    assert abs(frames - rows * shape.frames / shape.rows) <= 0.5
    assert min(shape.rows, shape.microbatches_per_inner_step) <= shape.rows_per_lease <= shape.rows


@given(sizes, st.integers(1, 50), st.integers(1, 8), st.integers(1, 10**6))
def test_a_target_in_frames_is_the_same_for_any_number_of_replicas(shape: Sizes, steps: int, replicas: int, wanted: int) -> None:
    rows, frames = shape.target(steps, replicas, wanted)
    assert (rows, frames) == shape.target(1, 1, wanted)
    assert rows % shape.rows_per_lease == 0 and rows > 0
    lease = shape.rows_per_lease * shape.mean_frames
    assert abs(frames - wanted) <= max(lease / 2, lease - wanted) + 0.5


def test_leases_go_back_when_late_or_orphaned() -> None:
    held = [Held(1, "a", 5.0, 0), Held(2, "a", 50.0, 0), Held(3, "b", 5.0, 2), Held(4, "b", 5.0, 1)]
    assert [lease for lease, _ in overdue(held, 10.0)] == [2, 3]


def test_what_no_update_of_stage_0_holds_is_due_again_and_what_others_counted_of_it_is_a_repeat() -> None:
    fates = [
        Fate(1, 10, range(0, 2), 2, done=True, returned=False),    # held
        Fate(2, 10, range(2, 4), 2, done=True, returned=False),    # its holder died after it; stage 1 has it
        Fate(3, 10, range(4, 6), 2, done=True, returned=False),    # its holder died after it; nobody has it
        Fate(4, 10, range(6, 8), 0, done=False, returned=True),    # its holder died over it; stage 1 has a part
        Fate(5, 10, range(8, 10), 0, done=False, returned=True),   # its holder died over it; nobody has it
        Fate(6, 10, range(10, 12), 2, done=True, returned=True),   # late, after somebody else was given the range
        Fate(7, 10, range(12, 14), 0, done=False, returned=False),
        Fate(8, 1, range(14, 16), 1, done=True, returned=False),   # one row is one microbatch
    ]  # fmt: skip
    due = due_again(fates, {0, 14})
    assert list(due) == [2, 3] and all("stage 0" in reason for reason in due.values())
    assert repeated_rows(fates, due, {0, 1, 3, 7, 10, 11, 14}) == 10 + 10 + 10
    assert repeated_rows(fates, due, set()) == 10
    assert due_again(fates, {0, 2, 5, 14}) == {} and repeated_rows(fates, [], {0, 1, 2, 3, 4, 5, 14}) == 10


@pytest.mark.parametrize("trained", [0, 1])
def test_what_fails_is_due_again_a_few_times_only(trained: int) -> None:
    def failed(retried: int) -> Fate:
        return Fate(1, 10, range(0, 2), trained, done=True, returned=False, retried=retried)

    held = {0} if trained else set()
    assert [list(due_again([failed(retried)], held)) for retried in range(4)] == [[1], [1], [], []]
    assert repeated_rows([failed(0)], [1], held) == 10 * trained


# ---- rounds --------------------------------------------------------------------------------------------------------------

FULL = StageFacts(live=2, ready=2, awaited=0, updates=2)
FACTS = Facts(
    phase=Phase.GATHERING, since=1000.0, stages=(FULL, FULL), covered_since=1000.0, replicas_wanted=2, gather_s=60.0,
    versions_left=3, base_evaluated=True, planned_rows=10, target_rows=10, leases_outstanding=0, frames_done=100,
    prepare_limit_s=20.0, open_limit_s=30.0, close_limit_s=15.0, evaluate_limit_s=40.0,
)  # fmt: skip


def facts(phase: Phase, *stages: StageFacts, **changes: object) -> Facts:
    return replace(FACTS, phase=phase, stages=stages or FACTS.stages, **changes)  # type: ignore[arg-type]


def stage(**changes: int) -> StageFacts:
    return replace(FULL, **changes)


@pytest.mark.parametrize(("case", "now", "enter"), [
    (facts(Phase.GATHERING), 1000.0, Phase.PREPARING),
    (facts(Phase.GATHERING, FULL, stage(live=1)), 1059.0, None),
    (facts(Phase.GATHERING, FULL, stage(live=1)), 1060.0, Phase.PREPARING),
    (facts(Phase.GATHERING, FULL, stage(live=0), covered_since=None), 9999.0, None),
    (facts(Phase.PREPARING), 1000.0, Phase.OPEN),
    (facts(Phase.PREPARING, FULL, stage(ready=1)), 1019.0, None),
    (facts(Phase.PREPARING, FULL, stage(ready=1)), 1020.0, Phase.OPEN),
    (facts(Phase.PREPARING, FULL, stage(ready=0)), 9999.0, None),
    (facts(Phase.PREPARING, FULL, stage(live=0, ready=0)), 1000.0, Phase.GATHERING),
    (facts(Phase.PREPARING, audits_open=1, audits_behind=3), 1000.0, Phase.OPEN),
    (facts(Phase.PREPARING, audits_open=1, audits_behind=4), 1039.0, None),
    (facts(Phase.PREPARING, audits_open=1, audits_behind=4), 1040.0, Phase.OPEN),
    (facts(Phase.PREPARING, versions_left=0), 1000.0, Phase.FINISHED),
    (facts(Phase.PREPARING, versions_left=0, base_evaluated=False), 1039.0, None),
    (facts(Phase.PREPARING, versions_left=0, base_evaluated=False), 1040.0, Phase.FINISHED),
    (facts(Phase.PREPARING, versions_left=0), 1000.0, Phase.FINISHED),
    (facts(Phase.PREPARING, versions_left=0, audits_open=2), 1039.0, None),
    (facts(Phase.PREPARING, versions_left=0, audits_open=2), 1040.0, Phase.FINISHED),
    (facts(Phase.OPEN), 1000.0, Phase.CLOSING),
    (facts(Phase.OPEN, leases_outstanding=1), 1029.0, None),
    (facts(Phase.OPEN, planned_rows=9), 1029.0, None),
    (facts(Phase.OPEN, leases_outstanding=1), 1030.0, Phase.CLOSING),
    (facts(Phase.OPEN, leases_outstanding=1, frames_done=0), 9999.0, None),
    (facts(Phase.OPEN, leases_outstanding=1, covered_since=1020.0), 1049.0, None),
    (facts(Phase.OPEN, leases_outstanding=1, covered_since=1020.0), 1050.0, Phase.CLOSING),
    (facts(Phase.CLOSING), 1000.0, Phase.AGGREGATING),
    (facts(Phase.CLOSING, stage(awaited=1)), 1014.0, None),
    (facts(Phase.CLOSING, stage(awaited=1)), 1015.0, Phase.AGGREGATING),
    (facts(Phase.CLOSING, stage(updates=0), stage(updates=0)), 1000.0, Phase.GATHERING),
    (facts(Phase.CLOSING, stage(updates=0, awaited=1), stage(updates=0)), 1014.0, None),
    (facts(Phase.AGGREGATING), 9999.0, None),
    (facts(Phase.AGGREGATING, aggregated=True), 1000.0, Phase.PREPARING),
    (facts(Phase.FINISHED), 9999.0, None),
])  # fmt: skip
def test_phase_changes(case: Facts, now: float, enter: Phase | None) -> None:
    decision = decide(case, now)
    assert decision.enter is enter
    assert decision.reason and "\n" not in decision.reason
    assert decision.new_round == (enter is Phase.PREPARING)


few = st.integers(0, 3)
stage_facts = st.builds(StageFacts, live=few, ready=few, awaited=few, updates=few)
any_facts = st.builds(
    Facts, phase=st.sampled_from(Phase), since=st.just(1000.0), stages=st.lists(stage_facts, min_size=1, max_size=4).map(tuple),
    covered_since=st.none() | st.just(1000.0), replicas_wanted=st.integers(1, 3), gather_s=seconds,
    versions_left=st.integers(0, 2), base_evaluated=st.booleans(), planned_rows=st.integers(0, 20),
    target_rows=st.integers(0, 20), leases_outstanding=st.integers(0, 3), frames_done=st.integers(0, 5),
    prepare_limit_s=seconds, open_limit_s=seconds,
    close_limit_s=seconds, evaluate_limit_s=seconds, aggregated=st.booleans(),
)  # fmt: skip

ALLOWED = {
    Phase.GATHERING: {Phase.PREPARING},
    Phase.PREPARING: {Phase.OPEN, Phase.GATHERING, Phase.FINISHED},
    Phase.OPEN: {Phase.CLOSING},
    Phase.CLOSING: {Phase.AGGREGATING, Phase.GATHERING},
    Phase.AGGREGATING: {Phase.PREPARING},
    Phase.FINISHED: set(),
}


@given(any_facts, st.floats(1000.0, 3e6))
def test_any_decision_is_allowed_and_wakes_when_it_would_change(case: Facts, now: float) -> None:
    decision = decide(case, now)
    if decision.enter is not None:
        assert decision.enter in ALLOWED[case.phase]
        return
    if decision.wake_at is not None:
        # A sleeper that was told when to look again finds another decision then, or another reason.
        assert decision.wake_at > now
        later = decide(case, decision.wake_at)
        assert later.enter is not None or later.reason != decision.reason


@given(any_facts, st.floats(1000.0, 3e6))
def test_no_round_opens_with_a_stage_that_nobody_serves(case: Facts, now: float) -> None:
    decision = decide(case, now)
    if decision.enter is Phase.OPEN:
        assert all(one.live for one in case.stages)
        assert all(one.ready for one in case.stages)
