"""Work follows the pace of the replicas: a small discrete-event model of senders and replicas with the router itself in it."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.pace import EQUAL, MINIMUM_HISTORY, Pace
from node.router import Router

MICROBATCHES = 12
SHARE = Fraction(1, MICROBATCHES)
SILENCE_S = 1.0


class EvenPace(Pace):
    """What the router did before it knew of pace: every replica counts as equally fast."""

    def slowness(self, peers: object) -> dict[str, Fraction]:
        return dict.fromkeys(peers, Fraction(1))  # type: ignore[call-overload]


@dataclass
class Model:
    """`senders` senders, each with all microbatches of its inner step under way at once; replicas serve in order of arrival.

    Args:
        service_s: what a microbatch takes at a replica, by its name, from the time given on.
        dies: when a replica stops to answer. joins: when one appears on the roster.
    """

    service_s: dict[str, float]
    pace: Callable[[], Pace] = Pace
    senders: int = 2
    dies: dict[str, float] = field(default_factory=dict)
    joins: dict[str, float] = field(default_factory=dict)
    jitter: Callable[[], float] = lambda: 1.0

    def run(self, until: float) -> tuple[int, Counter[str]]:
        """Whole inner steps taken by `until`, and microbatches answered by each replica."""
        present = [name for name in self.service_s if name not in self.joins]
        routers = [Router(present, start=number, pace=self.pace()) for number in range(self.senders)]
        free_at = dict.fromkeys(self.service_s, 0.0)
        steps, left = [0] * self.senders, [0] * self.senders
        answered: Counter[str] = Counter()
        order = count()
        events: list[tuple[float, int, str, int, str, float]] = []

        def send(sender: int, now: float) -> None:
            choice = routers[sender].choose(SHARE, now=now)
            if choice.peer is None:
                heapq.heappush(events, (now + choice.wait_s, next(order), "send", sender, "", now))
                return
            done = max(now, free_at[choice.peer]) + self.service_s[choice.peer] * self.jitter()
            if done >= self.dies.get(choice.peer, float("inf")):
                silent = max(now, self.dies[choice.peer]) + SILENCE_S
                heapq.heappush(events, (silent, next(order), "failed", sender, choice.peer, now))
                return
            free_at[choice.peer] = done
            heapq.heappush(events, (done, next(order), "answered", sender, choice.peer, now))

        for name, at in self.joins.items():
            heapq.heappush(events, (at, next(order), "join", 0, name, at))
        for sender in range(self.senders):
            heapq.heappush(events, (0.0, next(order), "step", sender, "", 0.0))
        while events and events[0][0] <= until:
            now, _, kind, sender, peer, sent = heapq.heappop(events)
            if kind == "join":
                present.append(peer)
                for router in routers:
                    router.replace(present)
            elif kind == "send":
                send(sender, now)
            elif kind == "failed":
                routers[sender].failed(peer, SHARE, now=now, why="silent")
                send(sender, now)
            else:
                if kind == "answered":
                    routers[sender].answered(peer, SHARE, sent=sent, now=now)
                    answered[peer] += 1
                    left[sender] -= 1
                if kind == "step" or left[sender] == 0:
                    steps[sender] += kind == "answered"
                    left[sender] = MICROBATCHES
                    routers[sender].begin_step(steps[sender])
                    for _ in range(MICROBATCHES):
                        send(sender, now)
        return sum(steps), answered


def test_equal_replicas_get_the_shares_that_they_got_before() -> None:
    speeds = {"a": 0.1, "b": 0.1, "c": 0.1}
    assert Model(speeds).run(200.0) == Model(speeds, EvenPace).run(200.0)
    _, answered = Model(speeds).run(200.0)
    assert max(answered.values()) - min(answered.values()) <= MICROBATCHES


def test_a_slow_replica_gets_less_and_the_steps_come_sooner() -> None:
    speeds = {"a": 0.1, "b": 0.1, "slow": 0.2}
    before, even = Model(speeds, EvenPace).run(400.0)
    after, divided = Model(speeds).run(400.0)
    assert even["slow"] == pytest.approx(even["a"], rel=0.02)
    assert divided["slow"] == pytest.approx(divided["a"] / 2, rel=0.15)
    # The speeds allow 1 / 0.6 of the steps that equal shares do.
    assert after >= 1.5 * before


def test_a_fast_joiner_and_a_dying_replica_are_taken_into_account() -> None:
    speeds = {"a": 0.1, "b": 0.1, "dying": 0.1, "joiner": 0.05}
    changes = {"dies": {"dying": 100.0}, "joins": {"joiner": 150.0}}
    before, _ = Model(speeds, EvenPace, **changes).run(600.0)
    after, answered = Model(speeds, **changes).run(600.0)
    assert after > 1.1 * before
    assert answered["joiner"] > 1.2 * answered["a"] and answered["dying"] > 0


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_noise_does_not_part_equal_replicas(seed: int) -> None:
    draw = random.Random(seed)
    model = Model({"a": 0.1, "b": 0.1, "c": 0.1}, jitter=lambda: draw.uniform(0.7, 1.3))
    _, answered = model.run(60.0)
    assert max(answered.values()) <= 1.1 * min(answered.values())


@given(
    paces=st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 1e3), min_size=1),
    peers=st.sets(st.sampled_from("abcdefg"), min_size=1),
)
def test_slowness_is_bounded_starts_at_one_and_needs_some_history(paces: dict[str, float], peers: set[str]) -> None:
    pace = Pace()
    for peer, seconds in paces.items():
        for number in range(MINIMUM_HISTORY - 1):
            pace.answered(peer, Fraction(1), sent=number * 1e4, now=number * 1e4 + seconds)
    assert set(pace.slowness(peers).values()) == {Fraction(1)}
    for peer, seconds in paces.items():
        pace.answered(peer, Fraction(1), sent=1e6, now=1e6 + seconds)
    slowness = pace.slowness(peers)
    assert set(slowness) == peers and all(1 <= ratio <= 8 for ratio in slowness.values())
    known = [peer for peer in peers if peer in paces]
    for one in known:
        for other in known:
            if paces[one] <= paces[other]:
                assert slowness[one] <= slowness[other]
    assert all(slowness[peer] == 1 for peer in known if paces[peer] < 0.99 * EQUAL * min(paces[one] for one in known))
