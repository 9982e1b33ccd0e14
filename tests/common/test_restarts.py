"""When something that ended is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.restarts import Restarts


def test_pauses_grow_and_an_old_end_is_forgotten() -> None:
    restarts = Restarts(3, 60.0, 0.5)
    assert [restarts.after_end(now) for now in (0.0, 1.0, 2.0)] == [0.5, 1.0, 2.0]
    assert restarts.words(2.0) == "restart 3 of 3 in 2.0 s"
    assert restarts.after_end(60.5) == 2.0  # the first is out of the window
    assert restarts.after_end(60.9) is None
    assert restarts.words(None) == "given up after 4 ends in 60 s"


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=40), st.integers(0, 6))
def test_never_more_restarts_in_a_window_than_allowed(gaps: list[float], limit: int) -> None:
    restarts, now, ends = Restarts(limit, 60.0, 0.1), 0.0, []
    for gap in gaps:
        now += gap
        ends.append(now)
        recent = sum(now - end <= 60.0 for end in ends)
        pause_s = restarts.after_end(now)
        assert (pause_s is None) == (recent > limit)
        if pause_s is None:
            return
        assert pause_s == 0.1 * 2 ** (recent - 1)
