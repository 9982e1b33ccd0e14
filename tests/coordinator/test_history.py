"""The packed records of finished rounds read as a list of them would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.history import SUMMED, History

STEPS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.one_of(st.none(), st.floats(0, 9))), max_size=30)


@given(steps=STEPS, after_round=st.integers(0, 60), limit=st.integers(1, 10))
def test_it_is_a_list_of_records(steps: list[tuple[int, int, float | None]], after_round: int, limit: int) -> None:
    history, plain, number = History(), list[dict[str, Any]](), 0
    for skip, count, loss in steps:
        number += skip
        record = {"round": number, "cid": f"c{number}", "stages": [{"n": 1}], **dict.fromkeys(SUMMED, count)}
        history.append(record)
        plain.append(dict(record))
        if loss is not None:
            plain[len(plain) // 2]["heldout_loss"] = loss
            history.set_heldout_loss(plain[len(plain) // 2]["cid"], loss)
    assert [json.loads(one) for one in history.packed()] == plain and not any(b"\n" in one for one in history.packed())
    assert list(history) == plain and len(history) == len(plain) and history[:5] == plain[:5]
    if plain:
        assert history[-1] == plain[-1]
    wanted = [one for one in plain if one["round"] > after_round]
    assert history.after(after_round, limit) == (wanted[:limit], len(wanted) > limit)
    assert all(history.total(name) == sum(one[name] for one in plain) for name in SUMMED)


def test_what_is_read_is_a_copy_and_an_unknown_version_changes_nothing() -> None:
    history = History()
    history.append({"round": 1, "cid": "a", "stages": []})
    history[0]["stages"].append(1)
    history.set_heldout_loss("b", 1.0)
    assert list(history) == [{"round": 1, "cid": "a", "stages": []}] and history.total(SUMMED[0]) == 0
    with pytest.raises(IndexError):
        history[1]
