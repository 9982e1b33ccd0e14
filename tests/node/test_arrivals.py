"""How long a silent callee is trusted: adaptive, bounded on both sides, and never shorter than a gap that has been seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.arrivals import FLOOR_S, MINIMUM_HISTORY, REMEMBERED, SIGN_EVERY_S, SLACK, Arrivals

GAPS = st.lists(st.floats(0.0, 6.0), min_size=MINIMUM_HISTORY, max_size=REMEMBERED)


@given(gaps=GAPS, ceiling_s=st.floats(0.3, 10.0))
def test_the_bound_keeps_its_limits_and_grants_every_gap_remembered(gaps: list[float], ceiling_s: float) -> None:
    arrivals = Arrivals()
    for gap in gaps:
        arrivals.came("a", gap)
    bound = arrivals.bound("a", ceiling_s)
    assert min(FLOOR_S, ceiling_s) <= bound.silence_s <= ceiling_s
    assert bound.silence_s == ceiling_s or bound.silence_s >= SLACK * max(gaps)
    assert bound.reason


SHORT = st.floats(0.0, FLOOR_S, exclude_max=True)


@given(gaps=st.lists(SHORT, min_size=MINIMUM_HISTORY, max_size=200), later=st.lists(SHORT, max_size=99))
def test_a_callee_that_is_merely_busy_is_not_suspected(gaps: list[float], later: list[float]) -> None:
    """Two signs missed in a row are never enough, whatever has been seen."""
    arrivals = Arrivals()
    for gap in gaps:
        arrivals.came("a", gap)
    for gap in later:
        assert gap < arrivals.bound("a", 4.0).silence_s
        arrivals.came("a", gap)


@given(known=st.integers(0, MINIMUM_HISTORY - 1))
def test_with_little_known_the_run_s_own_bound_holds(known: int) -> None:
    arrivals = Arrivals()
    for _ in range(known):
        arrivals.came("a", 0.1)
    assert arrivals.bound("a", 4.0).silence_s == 4.0
    assert arrivals.bound("b", 4.0).silence_s == 4.0


def test_a_new_callee_is_judged_by_its_siblings_until_it_is_known_itself() -> None:
    arrivals = Arrivals()
    for _ in range(MINIMUM_HISTORY):
        arrivals.came("quick", SIGN_EVERY_S)
    assert arrivals.bound("new", 4.0).silence_s == FLOOR_S
    for _ in range(MINIMUM_HISTORY):
        arrivals.came("slow", 1.5)
    assert arrivals.bound("slow", 4.0).silence_s == SLACK * 1.5
    assert arrivals.bound("quick", 4.0).silence_s == FLOOR_S
    arrivals.keep({"quick"})
    assert arrivals.bound("slow", 4.0).silence_s == FLOOR_S


def test_a_long_gap_is_forgotten_after_some_answers() -> None:
    arrivals = Arrivals()
    arrivals.came("a", 1.5)
    for _ in range(REMEMBERED - 1):
        arrivals.came("a", SIGN_EVERY_S)
    assert arrivals.bound("a", 4.0).silence_s == SLACK * 1.5
    arrivals.came("a", SIGN_EVERY_S)
    assert arrivals.bound("a", 4.0).silence_s == FLOOR_S


@given(gaps=GAPS, order=st.randoms(use_true_random=False))
def test_the_order_of_what_is_remembered_does_not_matter(gaps: list[float], order: object) -> None:
    shuffled = list(gaps)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    bounds = []
    for each in (gaps, shuffled):
        arrivals = Arrivals()
        for gap in each:
            arrivals.came("a", gap)
        bounds.append(arrivals.bound("a", 4.0))
    assert bounds[0] == bounds[1]
