"""Token buckets: never more than the burst and what time has brought, in bounded memory, and nobody pays for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.rate_limits import Buckets, Limits, Rate, source

steps = st.lists(st.tuples(st.floats(0, 3), st.sampled_from("abcde"), st.floats(0.1, 4)), max_size=60)


@given(steps, st.floats(0.5, 5), st.floats(4, 12))
def test_no_key_gets_more_than_the_burst_and_what_time_has_brought(
    taken: list[tuple[float, str, float]], per_s: float, burst: float
) -> None:
    buckets, now = Buckets(Rate(per_s, burst)), 100.0
    got: dict[str, list[tuple[float, float]]] = {}
    for pause_s, key, cost in taken:
        now += pause_s
        wait_s = buckets.take(key, now, cost)
        if wait_s == 0.0:
            got.setdefault(key, []).append((now, cost))
        else:
            # Exactly when it says, it is there.
            assert buckets.take(key, now + 0.99 * wait_s, cost) > 0 or wait_s < 1e-6
    for calls in got.values():
        for first, (begin, _) in enumerate(calls):
            spent = 0.0
            for at, cost in calls[first:]:
                spent += cost
                assert spent <= burst + (at - begin) * per_s + 1e-6


@given(steps)
def test_one_that_waits_as_long_as_it_is_told_is_let_in(taken: list[tuple[float, str, float]]) -> None:
    buckets, now = Buckets(Rate(1.0, 4.0)), 0.0
    for pause_s, key, cost in taken:
        now += pause_s
        wait_s = buckets.take(key, now, cost)
        if wait_s > 0:
            now += wait_s + 1e-6
            assert buckets.take(key, now, cost) == 0.0


def test_memory_is_bounded_and_a_flood_of_keys_frees_nobody() -> None:
    buckets = Buckets(Rate(1.0, 2.0), max_keys=10)
    assert buckets.take("greedy", 0.0, 2.0) == 0.0
    for number in range(1000):
        buckets.take(f"k{number}", 0.0)
        assert len(buckets) <= 11  # and the one that newcomers share
    assert buckets.take("greedy", 0.0) > 0
    assert buckets.take("another newcomer", 0.0) > 0  # what they share is used up
    assert buckets.take("another newcomer", 5.0) == 0.0 and len(buckets) == 1  # all full again: forgotten


def test_what_a_refused_call_cost_is_taken_even_where_it_is_not_there() -> None:
    buckets = Buckets(Rate(1.0, 5.0))
    buckets.charge("a", 0.0, 10.0)
    assert buckets.take("a", 0.0) == 1.0 and buckets.take("a", 1.0) == 0.0


def test_strangers_behind_an_address_use_up_nothing_of_a_members() -> None:
    limits = Limits()
    while limits.of_address("1.2.3.4", "", 0.0) == 0.0:
        limits.refused("1.2.3.4", "", 0.0)
    assert limits.of_address("1.2.3.4", "member", 0.0) == 0.0
    assert limits.of_address("1.2.3.5", "", 0.0) == 0.0


def test_a_crowd_of_honest_workers_behind_one_address_never_waits() -> None:
    """Forty members at 127.0.0.1, a minute: each watches ten times a second, leases, commits, hands in, joins anew."""
    limits = Limits()
    address = source("127.0.0.1")
    for second in range(60):
        for member in range(40):
            name = f"m{member}"
            for call in range(14):
                now = second + call / 14
                assert limits.of_address(address, name, now) == 0.0 and limits.of_member(name, "watch", now) == 0.0
            if second % 5 == 0:
                assert limits.streams.take(address, second + 0.99) == 0.0
        if second % 30 == 0:  # the coordinator starts anew, and all join again at once
            for member in range(40):
                assert limits.joins.take(address, second + 0.99) == 0.0
                assert limits.of_member(f"m{member}", "join", second + 0.99) == 0.0
        assert limits.status.take(address, second + 0.99) == 0.0


@pytest.mark.parametrize(("address", "bucket"), [
    ("9.8.7.6", "9.8.7.6"), ("::ffff:9.8.7.6", "9.8.7.6"), ("2a01:4f8:1:2::3", "2a01:4f8:1:2::/64"), ("unix:", "unix:"),
])  # fmt: skip
def test_whose_bucket_an_address_uses(address: str, bucket: str) -> None:
    assert source(address) == bucket


def test_bounds_of_nothing_are_refused() -> None:
    for rate, keys in ((Rate(0.0, 1.0), 1), (Rate(1.0, 0.5), 1), (Rate(1.0, 1.0), 0)):
        with pytest.raises(ValueError):
            Buckets(rate, max_keys=keys)
