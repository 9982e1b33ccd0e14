"""When a quantity counts as flat."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.flatness import BOUNDS, MIN_SAMPLES, Bound, judge, slope

BOUND = Bound(0.05, 4.0)


@given(level=st.floats(0.0, 1e9), noise=st.floats(0.0, 1.9), count=st.integers(40, 400), seed=st.integers())
def test_noise_about_a_level_is_flat(level: float, noise: float, count: int, seed: int) -> None:
    chance = random.Random(seed)
    verdict = judge([(10.0 * number, level + chance.uniform(-noise, noise)) for number in range(count)], BOUND)
    assert verdict is not None and verdict.flat


@given(level=st.floats(1.0, 1e9), growth=st.floats(0.2, 5.0), count=st.integers(40, 400), seed=st.integers())
def test_a_leak_is_found_however_much_noise_of_its_size_is_about_it(level: float, growth: float, count: int, seed: int) -> None:
    """A quantity that grows by a fifth of itself, 10 at least, over the whole time."""
    chance, whole = random.Random(seed), max(growth * level, 10.0)
    samples = [
        (10.0 * number, level + whole * number / count + chance.uniform(-0.1, 0.1) * whole) for number in range(count)
    ]  # fmt: skip
    verdict = judge(samples, Bound(0.05, 0.0) if level > 100 else BOUND)
    assert verdict is not None and not verdict.flat and verdict.per_hour > 0


@given(level=st.floats(1.0, 1e6), spikes=st.integers(1, 12), seed=st.integers())
def test_some_spikes_are_no_growth(level: float, spikes: int, seed: int) -> None:
    samples = [(float(number), level) for number in range(100)]
    for at in random.Random(seed).sample(range(100), spikes):
        samples[at] = (float(at), 50 * level)
    verdict = judge(samples, BOUND)
    assert verdict is not None and verdict.flat


@given(floor=st.integers(1, 30), busy=st.integers(5, 60), seed=st.integers())
def test_more_traffic_over_the_same_floor_is_flat(floor: int, busy: int, seed: int) -> None:
    """Streams come and go the whole time; in the last third there are many more of them."""
    chance = random.Random(seed)
    samples = []
    for number in range(720):
        top = busy if number > 480 else 4
        samples.append((10.0 * number, float(floor + (0 if number % 7 == 0 else chance.randint(0, top)))))
    verdict = judge(samples, BOUNDS["sockets"])
    assert verdict is not None and verdict.flat and verdict.first == verdict.last == floor


@given(floor=st.integers(1, 30), busy=st.integers(0, 20), seed=st.integers())
def test_what_is_never_closed_is_found_under_any_traffic(floor: int, busy: int, seed: int) -> None:
    """One socket is left open every ten minutes of two hours."""
    chance = random.Random(seed)
    samples = [
        (10.0 * number, float(floor + number // 60 + (0 if number % 7 == 0 else chance.randint(0, busy))))
        for number in range(720)
    ]
    verdict = judge(samples, BOUNDS["sockets"])
    assert verdict is not None and not verdict.flat


def test_what_fills_up_in_the_beginning_is_left_out() -> None:
    samples = [(float(at), min(at, 20) * 100.0) for at in range(100)]
    verdict = judge(samples, BOUND)
    assert verdict is not None and verdict.flat and verdict.first == verdict.last == 2000.0


TIMES = st.lists(st.integers(0, 10**4), min_size=2, max_size=30, unique=True)


@given(value=st.floats(0, 1e6), per_s=st.floats(-100, 100), times=TIMES)
def test_the_slope_of_a_line_is_its_own(value: float, per_s: float, times: list[int]) -> None:
    assert slope([(float(at), value + per_s * at) for at in times]) == pytest.approx(per_s, abs=1e-3)


def test_too_few_samples_give_no_verdict() -> None:
    assert judge([], BOUND) is None
    assert judge([(0.0, 1.0)] * (4 * MIN_SAMPLES), BOUND) is None
    assert judge([(float(at), 1.0) for at in range(MIN_SAMPLES)], BOUND) is None


def test_a_warm_up_in_seconds_is_left_out_as_well() -> None:
    samples = [(float(at), min(at, 60) * 100.0) for at in range(100)]
    early, late = judge(samples, BOUND), judge(samples, BOUND, warm_up_s=60.0)
    assert early is not None and not early.flat and late is not None and late.flat
    assert judge(samples, BOUND, warm_up_s=95.0) is None


def test_what_shrinks_is_no_leak() -> None:
    verdict = judge([(float(at), 1e6 - 1000.0 * at) for at in range(100)], BOUNDS["memory_bytes"])
    assert verdict is not None and verdict.flat and verdict.growth < 0
