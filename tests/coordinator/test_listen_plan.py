"""Which version is listened to next, and which previews stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.listen_plan import choose, outdated


def published(rounds: int) -> list[dict[str, object]]:
    return [{"version": number, "round": number, "cid": f"cid-{number}"} for number in range(rounds + 1)]


def test_each_nth_round_and_the_last_are_due() -> None:
    heard: set[int] = set()
    for rounds in range(1, 9):
        choice = choose(published(rounds), heard, every=3, last=8)
        if choice.round is not None:
            assert choice.cid == f"cid-{choice.round}" and choice.skipped == ()
            heard.add(choice.round)
    assert heard == {3, 6, 8}


def test_whoever_is_behind_goes_on_with_the_newest() -> None:
    choice = choose(published(9), {2}, every=2, last=20)
    assert (choice.round, choice.skipped) == (8, (4, 6)) and "4, 6 passed over" in choice.reason
    assert choose(published(9), {2, 8}, every=2, last=20).round is None


def test_nothing_is_due_before_training_nor_when_previews_are_off() -> None:
    assert choose(published(0), (), every=1, last=5).round is None
    off = choose(published(5), (), every=0, last=5)
    assert off.round is None and off.reason == "previews are off"


@given(st.integers(0, 30), st.sets(st.integers(1, 30)), st.integers(0, 8), st.integers(1, 30))
def test_a_choice_is_published_due_and_newer_than_all_that_was_heard(
    rounds: int, done: set[int], every: int, last: int
) -> None:
    choice = choose(published(rounds), done, every=every, last=last)
    if choice.round is None:
        candidates = {number for number in range(1, rounds + 1) if every and (number % every == 0 or number == last)}
        assert not {number for number in candidates if number > max(done, default=0)}
        return
    for number in (choice.round, *choice.skipped):
        assert max(done, default=0) < number <= rounds and (number % every == 0 or number == last)
    assert all(number < choice.round for number in choice.skipped) and choice.reason
    assert choose(published(rounds), done | {choice.round}, every=every, last=last).round is None


@given(st.integers(1, 12), st.integers(1, 40), st.data())
def test_the_last_round_is_always_heard_however_slow_the_listener(every: int, last: int, data: st.DataObject) -> None:
    """Rounds go by at any pace; when all are published, two more looks are enough."""
    done: set[int] = set()
    rounds = 0
    while rounds < last:
        rounds = min(last, rounds + data.draw(st.integers(1, 7)))
        if (choice := choose(published(rounds), done, every=every, last=last)).round is not None:
            done.add(choice.round)
    assert last in done


@given(st.sets(st.integers(1, 99)), st.integers(1, 9))
def test_the_newest_previews_stay(rounds: set[int], keep: int) -> None:
    gone = outdated(rounds, keep)
    stays = rounds - set(gone)
    assert len(stays) == min(keep, len(rounds))
    assert not gone or not stays or max(gone) < min(stays)
