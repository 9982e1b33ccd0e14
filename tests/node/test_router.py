"""The router: balanced within every inner step, and away from what fails."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.router import Router


def peers(count: int) -> list[str]:
    return [f"peer-{index}" for index in range(count)]


@given(
    count=st.integers(1, 6),
    start=st.integers(0, 5),
    steps=st.lists(st.lists(st.fractions(Fraction(1, 400), 1), min_size=1, max_size=24), min_size=1, max_size=8),
)
def test_every_replica_gets_its_share_of_every_inner_step(count: int, start: int, steps: list[list[Fraction]]) -> None:
    router = Router(peers(count), start=start)
    carried = Fraction(0)
    for step, microbatches in enumerate(steps):
        router.begin_step(step)
        assigned = dict.fromkeys(peers(count), Fraction(0))
        for share in microbatches:
            choice = router.choose(share, now=0.0)
            assert choice.peer is not None
            assigned[choice.peer] += share
        largest = max(microbatches)
        assert max(assigned.values()) - min(assigned.values()) <= largest + carried
        carried = largest


@given(count=st.integers(1, 6), per_replica=st.integers(1, 6), start=st.integers(0, 7), step=st.integers(0, 9))
def test_equal_microbatches_are_split_exactly(count: int, per_replica: int, start: int, step: int) -> None:
    router = Router(peers(count), start=start)
    router.begin_step(step)
    chosen = Counter(router.choose(Fraction(100), now=0.0).peer for _ in range(count * per_replica))
    assert set(chosen.values()) == {per_replica}


@given(count=st.integers(2, 6), step=st.integers(0, 20))
def test_senders_begin_with_different_replicas(count: int, step: int) -> None:
    first = []
    for start in range(count):
        router = Router(peers(count), start=start)
        router.begin_step(step)
        first.append(router.choose(Fraction(1), now=0.0).peer)
    assert len(set(first)) == count


def test_a_failed_replica_is_left_alone_longer_each_time_and_then_tried_again() -> None:
    router = Router(peers(2), back_off_s=2.0, back_off_limit_s=5.0)
    now = 0.0
    waits = []
    for _ in range(4):
        while (choice := router.choose(Fraction(10), now=now)).peer != "peer-0":
            assert choice.peer == "peer-1"
        waits.append(router.failed("peer-0", Fraction(10), now=now, why="silent"))
        assert router.choose(Fraction(10), now=now).peer == "peer-1"
        assert router.choose(Fraction(10), now=now + waits[-1] - 0.001).peer == "peer-1"
        now += waits[-1]
    assert waits == [2.0, 4.0, 5.0, 5.0]
    router.succeeded("peer-0")
    assert router.failed("peer-0", Fraction(0), now=now, why="silent") == 2.0


def test_microbatches_that_fail_together_count_as_one_failure() -> None:
    router = Router(peers(2), back_off_s=2.0)
    assert router.failed("peer-0", Fraction(1), now=0.0, why="silent") == 2.0
    assert router.failed("peer-0", Fraction(1), now=0.5, why="silent") == 1.5
    assert router.choose(Fraction(1), now=2.0, avoid={"peer-1"}).peer == "peer-0"
    assert router.failed("peer-0", Fraction(1), now=2.0, why="silent") == 4.0


def test_after_a_back_off_one_microbatch_finds_out_whether_the_replica_is_back() -> None:
    router = Router(peers(2), back_off_s=2.0)
    router.failed("peer-0", Fraction(1), now=0.0, why="silent")
    assert router.choose(Fraction(1), now=2.0).peer == "peer-0"
    assert {router.choose(Fraction(1), now=2.0).peer for _ in range(5)} == {"peer-1"}
    assert router.failed("peer-0", Fraction(1), now=2.5, why="silent") == 4.0
    assert {router.choose(Fraction(1), now=6.4).peer for _ in range(3)} == {"peer-1"}
    assert router.choose(Fraction(1), now=6.5).peer == "peer-0"
    router.succeeded("peer-0")
    assert router.choose(Fraction(1), now=6.5).peer == "peer-0"


def test_a_probe_that_finds_the_replica_busy_clears_its_name() -> None:
    router = Router(peers(1), back_off_s=2.0, busy_s=0.1)
    router.failed("peer-0", Fraction(1), now=0.0, why="silent")
    assert router.choose(Fraction(1), now=2.0).peer == "peer-0"
    router.pause("peer-0", Fraction(1), now=2.0, why="busy")
    assert router.choose(Fraction(1), now=2.1).peer == "peer-0"
    assert router.choose(Fraction(1), now=2.1).peer == "peer-0"


def test_with_no_replica_left_the_reason_and_the_wait_are_given() -> None:
    router = Router(peers(2), back_off_s=2.0)
    for peer in peers(2):
        router.failed(peer, Fraction(0), now=1.0, why="went silent")
    choice = router.choose(Fraction(10), now=1.5)
    assert choice.peer is None and choice.wait_s == pytest.approx(1.5) and "went silent" in choice.reason


def test_a_microbatch_goes_back_to_a_tried_replica_only_when_no_other_can_be_tried() -> None:
    router = Router(peers(3))
    assert router.choose(Fraction(10), now=0.0, avoid={"peer-0", "peer-1"}).peer == "peer-2"
    router.failed("peer-2", Fraction(10), now=0.0, why="broken")
    assert router.choose(Fraction(10), now=0.0, avoid={"peer-0", "peer-1"}).peer in {"peer-0", "peer-1"}


def test_a_draining_replica_is_not_chosen_again_and_the_others_take_its_share() -> None:
    router = Router(peers(3))
    router.drained("peer-1", Fraction(0))
    chosen = Counter(router.choose(Fraction(10), now=0.0).peer for _ in range(8))
    assert chosen == {"peer-0": 4, "peer-2": 4}
    router.drained("peer-0", Fraction(0))
    router.drained("peer-2", Fraction(0))
    assert router.choose(Fraction(10), now=0.0).wait_s == math.inf


def test_a_busy_replica_gets_a_short_pause_and_keeps_its_good_name() -> None:
    router = Router(peers(1), busy_s=0.1, back_off_s=2.0)
    assert router.choose(Fraction(10), now=0.0).peer == "peer-0"
    router.pause("peer-0", Fraction(10), now=0.0, why="busy")
    waiting = router.choose(Fraction(10), now=0.05)
    assert waiting.peer is None and waiting.wait_s == pytest.approx(0.05)
    assert router.choose(Fraction(10), now=0.1).peer == "peer-0"
    assert router.failed("peer-0", Fraction(10), now=0.2, why="silent") == 2.0


def test_a_returning_replica_is_not_flooded() -> None:
    router = Router(peers(2), back_off_s=1.0)
    router.failed("peer-0", Fraction(0), now=0.0, why="silent")
    for _ in range(20):
        assert router.choose(Fraction(10), now=0.0).peer == "peer-1"
    router.begin_step(1)
    chosen = [router.choose(Fraction(10), now=2.0).peer]
    assert chosen == ["peer-0"]
    router.succeeded("peer-0")
    chosen += [router.choose(Fraction(10), now=2.0).peer for _ in range(8)]
    assert chosen.count("peer-0") == 5


def test_a_new_roster_keeps_what_is_known_and_starts_new_replicas_level() -> None:
    router = Router(["a", "b"], back_off_s=2.0)
    for _ in range(10):
        router.choose(Fraction(10), now=0.0)
    router.failed("a", Fraction(10), now=0.0, why="silent")
    router.replace(["a", "c"])
    assert router.replicas == ("a", "c")
    assert {router.choose(Fraction(10), now=0.0).peer for _ in range(3)} == {"c"}
    router.succeeded("a")
    assert Counter(router.choose(Fraction(10), now=3.0).peer for _ in range(9))["c"] <= 5
