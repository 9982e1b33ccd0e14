"""The clock for durations goes on evenly, whatever happens to the system's."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from common.clock import SteadyClock

times = st.floats(0, 4e9)


@given(times, times, st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e8, 1e8)), max_size=20))
def test_a_jump_of_the_system_clock_changes_nothing(start: float, up: float, steps: list[tuple[float, float]]) -> None:
    wall, gone = start, 0.0
    clock = SteadyClock(wall=lambda: wall, monotonic=lambda: up + gone)
    assert abs(clock() - start) < 1e-3
    for seconds, jump in steps:
        before = clock()
        gone += seconds
        wall += seconds + jump
        assert clock() >= before and abs(clock() - before - seconds) < 1e-3


@given(times, times)
def test_it_does_not_start_before_what_was_recorded(start: float, recorded: float) -> None:
    clock = SteadyClock(recorded, wall=lambda: start, monotonic=lambda: 7.0)
    assert abs(clock() - max(start, recorded)) < 1e-3


def test_it_tells_the_time() -> None:
    assert abs(SteadyClock()() - time.time()) < 1.0
