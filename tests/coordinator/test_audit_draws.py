"""Draws: fixed by secret and link, unforeseeable, as frequent as the rates say; standings; witnesses of another operator."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from coordinator.audit_draw import Able, Rates, fraction, on_close, on_commit, ranked, seed_of, witnesses
from coordinator.audit_rates import CLEARED_BY, GONE_ALLOWED, SILENCES_ALLOWED, Kind, Outcome, Standing, class_alarm, rates_of
from coordinator.audit_secret import AuditSecrets, commitment_of
from protocol.identity import MemberKey

KEY = MemberKey.from_seed(b"the key of a draw's coordinator.")
seeds = st.binary(min_size=32, max_size=32)


def link(number: int) -> bytes:
    return hashlib.sha256(f"link {number}".encode()).digest()


def test_secrets_follow_from_key_run_and_round_and_nothing_else() -> None:
    ours, again = AuditSecrets(KEY, "r"), AuditSecrets(MemberKey.from_seed(b"the key of a draw's coordinator."), "r")
    assert ours.secret(3) == again.secret(3) and ours.commitment(3) == commitment_of(ours.secret(3))
    others = {ours.secret(3), ours.secret(4), AuditSecrets(KEY, "s").secret(3), AuditSecrets(MemberKey.generate(), "r").secret(3)}
    assert len(others) == 4
    assert KEY.derive(b"audit|r") != KEY.derive(b"audit|s")


def test_each_part_of_a_draw_is_as_frequent_as_its_rate() -> None:
    secret = AuditSecrets(KEY, "r").secret(1)
    rates = Rates(0.3, 2, 5)
    first = late = 0
    rounds = 1500
    for number in range(rounds):
        first += bool(on_commit(seed_of(secret, link(number)), 1, range(8), rates).microbatches)
        drawn = [on_commit(seed_of(secret, link(10_000 + 7 * number + step)), step, range(8), rates) for step in range(1, 6)]
        late += any(one.step for one in drawn)
    # Five standard deviations of a share over so many rounds.
    for share in (first / rounds, late / rounds):
        assert abs(share - 0.3) < 5 * (0.3 * 0.7 / rounds) ** 0.5


def test_each_step_is_drawn_as_a_whole_as_often_as_every_other_and_the_first_one_beside_its_passes() -> None:
    rates = Rates(1.0, 1, 4)
    counts = [0] * 5
    for number in range(2000):
        for step in range(1, 5):
            draw = on_commit(seed_of(b"s", link(4 * number + step)), step, range(5), rates)
            assert len(draw.microbatches) == (step == 1)
            counts[step] += draw.step
    assert counts[0] == 0 and min(counts[1:]) > 410 and max(counts) < 590


def test_every_microbatch_of_a_first_step_is_drawn_as_often() -> None:
    counts = [0] * 5
    for number in range(2000):
        for one in on_commit(seed_of(b"s", link(number)), 1, range(5), Rates(1.0, 1, 4)).microbatches:
            counts[one] += 1
    assert sum(counts) == 2000 and min(counts) > 310 and max(counts) < 490


@given(
    seed=seeds, step=st.integers(0, 20), ids=st.lists(st.integers(0, 2**63), unique=True, max_size=12), steps=st.integers(1, 9),
    audited=st.floats(0, 1), microbatches=st.integers(0, 4),
)  # fmt: skip
def test_a_draw_names_committed_microbatches_of_the_first_step_only_and_never_the_beginning(
    seed: bytes, step: int, ids: list[int], steps: int, audited: float, microbatches: int
) -> None:
    rates = Rates(audited, microbatches, steps)
    assert 0 <= rates.each_step <= 1
    draw = on_commit(seed, step, ids, rates)
    assert draw == on_commit(seed, step, list(reversed(ids)), rates) and draw.reason
    assert set(draw.microbatches) <= set(ids) and len(draw.microbatches) <= microbatches
    if step != 1:
        assert not draw.microbatches
    if step < 1 or audited == 0 or not ids:
        assert not draw.step


@given(seed=seeds, step=st.integers(1, 20))
def test_a_round_that_is_audited_always_has_a_step_opened_at_the_end_unless_one_was_before(seed: bytes, step: int) -> None:
    assert on_close(seed, step, Rates(1.0, 1, 8), opened=False).step
    assert not on_close(seed, step, Rates(1.0, 1, 8), opened=True).step
    assert not on_close(seed, 0, Rates(1.0, 1, 8), opened=False).step  # nothing was trained
    assert not on_close(seed, step, Rates(0.0, 1, 8), opened=False).step


@given(seed=seeds, names=st.lists(st.text(max_size=4), max_size=8))
def test_an_order_is_the_same_whatever_order_the_names_come_in(seed: bytes, names: list[str]) -> None:
    assert ranked(seed, "x", names) == ranked(seed, "x", reversed(names))
    assert sorted(ranked(seed, "x", names)) == sorted(set(names))
    assert 0 <= fraction(seed, "x") < 1


def test_witnesses_are_members_of_others_and_first_those_that_compute_alike() -> None:
    prover = Able("p", "alice", "cpu")
    able = [prover, Able("a2", "alice", "cpu"), Able("b", "bob", "gpu"), Able("c", "carol", "cpu"), Able("d", "", "cpu")]
    for number in range(20):
        order = witnesses(link(number), 7, prover, able)
        assert set(order[:2]) == {"c", "d"} and order[2:] == ["b"]
    assert {witnesses(link(number), 7, prover, able)[0] for number in range(20)} == {"c", "d"}
    # Who names no operator is not taken for the same one as another who names none.
    assert witnesses(b"s", 7, Able("x", ""), [Able("y", "")]) == ["y"]


outcomes = st.lists(st.tuples(st.sampled_from(Outcome), st.integers(1, 6)), max_size=40)


@given(history=outcomes)
def test_a_suspicion_ends_after_audits_that_pass_in_a_row_and_a_lapse_is_neither(history: list[tuple[Outcome, int]]) -> None:
    standing, row = Standing(), 0
    for outcome, round in history:
        before = standing
        standing = standing.after(outcome, round, "why")
        if outcome is Outcome.PASSED:
            row += 1
        elif outcome is Outcome.SILENT:
            row = 0 if standing.silent else row
            assert not standing.silent or standing.suspected == "why"
        elif outcome is Outcome.LAPSED:
            assert standing == before, "nobody's doing"
        else:
            row = 0
            assert standing.suspected == (before.suspected if outcome is Outcome.GONE else "why")
        if row >= CLEARED_BY:
            assert not standing.suspected
        assert standing.kind(2) is not Kind.NORMAL or standing.rounds >= 2


def test_new_and_suspected_members_are_audited_always_and_the_others_at_their_rate() -> None:
    def audited(standing: Standing, rate: float = 0.25) -> float:
        return rates_of(standing, rate=rate, new_rounds=2, microbatches=1, steps=4).audited

    new = Standing()
    normal = new.after(Outcome.PASSED, 1, "").after(Outcome.PASSED, 1, "").after(Outcome.PASSED, 2, "")
    suspected = normal.after(Outcome.NOT_OPENED, 3, "it did not open")
    assert (audited(new), audited(normal), audited(suspected)) == (1.0, 0.25, 1.0)
    assert audited(suspected, rate=0) == audited(new, rate=0) == 0.0
    assert not suspected.must_go and suspected.after(Outcome.NOT_OPENED, 4, "again").must_go


def test_what_was_drawn_of_one_step_and_did_not_come_is_one_fault() -> None:
    standing = Standing()
    for _ in range(3):
        standing = standing.after(Outcome.NOT_OPENED, 1, "too slow", step=1)
    assert standing.suspected and not standing.must_go
    assert standing.after(Outcome.NOT_OPENED, 1, "too slow", step=2).must_go
    assert standing.after(Outcome.NOT_OPENED, 2, "too slow", step=1).must_go


@given(words=st.lists(st.booleans(), max_size=12))
def test_a_witness_is_silent_after_silences_in_a_row_until_its_own_audits_clear_it(words: list[bool]) -> None:
    standing, row = Standing(), 0
    for answers in words:
        standing = standing.answered() if answers else standing.after(Outcome.SILENT, 1, "no answer")
        row = 0 if answers else row + 1
        assert bool(standing.silent) == (row > SILENCES_ALLOWED) and not standing.must_go
        assert not standing.silent or standing.kind(0) is Kind.SUSPECTED
    for number in range(CLEARED_BY):
        standing = standing.after(Outcome.PASSED, 2 + number, "")
    assert not standing.silent and not standing.suspected


def test_a_member_that_is_always_gone_when_it_is_audited_is_left_out_until_it_has_made_up_for_it() -> None:
    standing = Standing()
    for round in range(1, GONE_ALLOWED + 1):
        assert not standing.unverified
        for _ in range(2):  # of one round both
            standing = standing.after(Outcome.GONE, round, "it was gone")
    assert standing.unverified and not standing.must_go and not standing.suspected
    for passed in range(CLEARED_BY):
        assert standing.unverified, f"{passed} audits passed"
        standing = standing.after(Outcome.PASSED, 9, "")
    assert not standing.unverified


def test_a_referee_that_can_recompute_nothing_keeps_nobody_out() -> None:
    standing = Standing()
    for round in range(20):
        standing = standing.after(Outcome.LAPSED, round, "the referee failed")
    assert standing == Standing()


def test_work_that_could_not_be_confirmed_keeps_updates_out_until_an_audit_passes() -> None:
    doubted = Standing().after(Outcome.UNRESOLVED, 1, "calibration")
    assert doubted.unverified and not doubted.must_go
    assert not doubted.after(Outcome.PASSED, 2, "").unverified


def test_two_openings_left_out_far_apart_are_no_reason_to_go() -> None:
    standing = Standing().after(Outcome.NOT_OPENED, 1, "not opened")
    for _ in range(CLEARED_BY):
        standing = standing.after(Outcome.PASSED, 2, "")
    assert not standing.after(Outcome.NOT_OPENED, 9, "not opened").must_go


def test_a_class_that_fails_as_a_whole_raises_an_alarm_and_one_cheat_in_it_does_not() -> None:
    honest = [("cpu", f"m{number}", True) for number in range(8)]
    assert class_alarm([*honest, ("cpu", "cheat", False), ("cpu", "cheat", False), ("cpu", "cheat", False)], {}, {}) == {}
    broken = [("gpu", f"g{number}", number > 2) for number in range(5)]
    assert list(class_alarm([*honest, *broken], {"gpu": 5}, {})) == ["gpu"]
    # Three of one operator, who says of them that they are of a class, are one that cheats.
    assert class_alarm([*honest, *broken], {"gpu": 5}, {"g0": "mallory", "g1": "mallory"}) == {}
    # The same three in a large class are three that cheat, even where nobody else was audited yet.
    assert class_alarm(broken[:3], {"gpu": 12}, {}) == {}
    assert class_alarm([("tpu", "t", False)], {}, {}) == {}  # one member says nothing about a class
