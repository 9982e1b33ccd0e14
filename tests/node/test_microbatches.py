"""At most once, and the exact account of an inner step."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.microbatches import Close, Ledger, Outcome, StepAccount


def test_a_microbatch_is_new_once_then_pending_then_the_same() -> None:
    ledger: Ledger[str] = Ledger(100)
    assert ledger.arrive(7, b"x", 10).outcome is Outcome.NEW
    assert ledger.arrive(7, b"x", 10).outcome is Outcome.PENDING
    ledger.count(7)
    ledger.store(7, b"x", "answer", 10)
    assert ledger.arrive(7, b"x", 10).outcome is Outcome.SAME
    assert ledger.answer(7, b"x") == "answer"
    assert ledger.counted() == [(7, 10)] and ledger.duplicates == 2


def test_another_input_under_a_known_id_has_drifted_and_its_own_answer_is_kept_apart() -> None:
    ledger: Ledger[str] = Ledger(100)
    ledger.arrive(7, b"x", 10)
    ledger.count(7)
    ledger.store(7, b"x", "first", 10)
    assert ledger.arrive(7, b"y", 10).outcome is Outcome.DRIFTED
    ledger.store(7, b"y", "second", 10)
    assert ledger.arrive(7, b"y", 10).outcome is Outcome.SAME
    assert (ledger.answer(7, b"x"), ledger.answer(7, b"y")) == ("first", "second")
    assert ledger.counted() == [(7, 10)]


def test_a_given_up_microbatch_is_new_again_and_dropped_only_when_lost() -> None:
    ledger: Ledger[str] = Ledger(100)
    ledger.arrive(7, b"x", 10)
    ledger.give_up(7, lost=False)
    assert ledger.dropped == 0 and ledger.counted() == []
    assert ledger.arrive(7, b"y", 10).outcome is Outcome.NEW
    ledger.give_up(7, lost=True)
    assert ledger.dropped == 1


def test_a_counted_microbatch_cannot_be_given_up() -> None:
    ledger: Ledger[str] = Ledger(100)
    ledger.arrive(7, b"x", 10)
    ledger.count(7)
    ledger.give_up(7, lost=True)
    assert ledger.counted() == [(7, 10)] and ledger.dropped == 0


def test_a_discarded_microbatch_is_never_counted_later() -> None:
    ledger: Ledger[str] = Ledger(5)
    ledger.arrive(7, b"x", 10)
    ledger.count(7)
    ledger.store(7, b"x", "too large to keep", 6)
    ledger.discard([7])
    assert ledger.counted() == [] and ledger.dropped == 1
    assert ledger.arrive(7, b"x", 10).outcome is Outcome.REPEATED


@given(
    limit=st.integers(0, 60),
    actions=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([b"a", b"b"]), st.integers(1, 30)), max_size=40),
)
def test_stored_answers_never_pass_their_bound_and_no_id_counts_twice(limit: int, actions: list[tuple[int, bytes, int]]) -> None:
    ledger: Ledger[tuple[int, bytes]] = Ledger(limit)
    counted: list[int] = []
    for identifier, digest, size in actions:
        outcome = ledger.arrive(identifier, digest, 1).outcome
        if outcome is Outcome.NEW:
            ledger.count(identifier)
            counted.append(identifier)
        if outcome is Outcome.SAME:
            assert ledger.answer(identifier, digest) == (identifier, digest)
        else:
            assert outcome is not Outcome.PENDING
            ledger.store(identifier, digest, (identifier, digest), size)
        assert ledger.stored_bytes <= limit
    assert sorted(counted) == [identifier for identifier, _ in ledger.counted()]
    assert len(set(counted)) == len(counted)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40))
def test_a_lease_cut_in_any_way_fills_exactly_one_step(frames: list[int]) -> None:
    account = StepAccount()
    total = sum(frames)
    for index, one in enumerate(frames):
        assert not account.full
        admission = account.admit(index, one, total)
        assert admission.admitted
        account.finish(admission.token)
    assert account.credit == 1 and account.may_step and account.frames == total
    assert account.stepped() == list(range(len(frames)))
    assert account.step == 1 and account.credit == 0


def test_a_full_step_takes_nothing_more_and_steps_when_every_pass_is_back() -> None:
    account = StepAccount()
    first, second = account.admit(0, 60, 100), account.admit(1, 40, 100)
    refused = account.admit(2, 10, 100)
    assert not refused.admitted and "full" in refused.reason
    account.finish(first.token)
    assert account.full and not account.may_step
    with pytest.raises(RuntimeError):
        account.stepped()
    account.finish(second.token)
    assert account.may_step


def test_a_given_up_pass_opens_the_step_again() -> None:
    account = StepAccount()
    first, second = account.admit(0, 60, 100), account.admit(1, 40, 100)
    account.finish(first.token)
    account.give_up(second.token)
    assert not account.full and account.admit(2, 40, 100).admitted
    assert account.frames == 60


def test_a_pass_that_does_not_count_holds_the_step_open_but_has_no_worth() -> None:
    account = StepAccount()
    drifted = account.admit(9, 50, 100, counts=False)
    counted = account.admit(1, 100, 100)
    account.finish(counted.token)
    assert account.full and not account.may_step
    account.finish(drifted.token)
    assert account.may_step and account.frames == 100 and account.identifiers() == [1]


@pytest.mark.parametrize(("frames", "close"), [(0, Close.EMPTY), (24, Close.DISCARD), (25, Close.STEP), (99, Close.STEP)])
def test_a_partial_step_is_taken_from_a_quarter_on(frames: int, close: Close) -> None:
    account = StepAccount()
    if frames:
        account.finish(account.admit(0, frames, 100).token)
    decision, reason = account.close()
    assert decision is close and reason


@pytest.mark.parametrize(("frames", "total"), [(0, 10), (11, 10), (-1, 10)])
def test_frames_that_cannot_be_are_refused(frames: int, total: int) -> None:
    with pytest.raises(ValueError):
        StepAccount().admit(0, frames, total)


@given(
    senders=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=10), min_size=1, max_size=4),
)
def test_shares_of_several_senders_are_added_exactly(senders: list[list[int]]) -> None:
    account = StepAccount()
    expected = Fraction(0)
    for sender in senders:
        for frames in sender:
            if account.full:
                assert expected >= 1
                return
            account.finish(account.admit(0, frames, sum(sender)).token)
            expected += Fraction(frames, sum(sender))
    assert account.credit == expected
