"""A worker that is told to stop is gone within ten seconds, whatever each part of its leave takes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.farewell import Farewell, Part

WITHIN_S = 10.0


@given(began=st.floats(0, 1e6), uses=st.lists(st.floats(0, 60), min_size=len(Part), max_size=len(Part)))
def test_what_comes_first_leaves_a_second_for_what_follows_and_all_ends_in_time(began: float, uses: list[float]) -> None:
    farewell, now = Farewell(began), began
    for part, wanted_s in zip(Part, uses, strict=True):
        left_s = farewell.left_s(part, now)
        assert 0.99 <= left_s <= part.value[0]
        now += min(wanted_s, left_s)
    assert now <= began + WITHIN_S + 1e-6


def test_after_its_time_a_part_gets_none_and_who_leaves_by_himself_is_not_hurried() -> None:
    assert Farewell(100.0).left_s(Part.OPENINGS, 111.0) == 0.0
    assert [Farewell().left_s(part, 1e9) for part in Part] == [part.value[0] for part in Part]
