"""Which versions stay: the newest, the best by held-out loss, each so-many-th, and pinned ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from coordinator.retention import read_pins, retained, write_pins


def made(count: int) -> list[dict[str, Any]]:
    return [{"version": number, "round": number, "cid": f"c{number}"} for number in range(count)]


def test_each_reason_keeps_its_versions() -> None:
    losses = {"c0": 9.0, "c1": 1.5, "c2": 1.5, "c3": 1.2, "c5": 4.0, "c8": 3.0}
    found = retained(made(10), losses, {"c6", "gone"}, keep=2, every=4, best=2)
    assert found == {
        "c0": ("every",), "c1": ("best",), "c3": ("best",), "c4": ("every",), "c6": ("pinned",), "c8": ("newest", "every"),
        "c9": ("newest",),
    }  # fmt: skip
    assert list(found) == sorted(found)


@given(
    count=st.integers(0, 30), losses=st.dictionaries(st.integers(0, 29), st.floats(0, 10)), pins=st.sets(st.integers(0, 29)),
    keep=st.integers(2, 6), every=st.integers(0, 6), best=st.integers(0, 6),
)  # fmt: skip
def test_nothing_that_is_good_new_or_pinned_goes_and_nothing_else_stays(
    count: int, losses: dict[int, float], pins: set[int], keep: int, every: int, best: int
) -> None:
    told = {f"c{number}": loss for number, loss in losses.items() if number < count}
    found = retained(made(count), told, {f"c{one}" for one in pins}, keep=keep, every=every, best=best)
    assert list(found) == [f"c{number}" for number in range(count) if f"c{number}" in found]
    assert all(f"c{number}" in found for number in range(max(0, count - keep), count))
    assert all(f"c{number}" in found for number in pins if number < count)
    best_kept = [cid for cid, reasons in found.items() if "best" in reasons]
    assert len(best_kept) == min(best, len(told))
    left = [loss for cid, loss in told.items() if cid not in best_kept]
    assert not best_kept or not left or max(told[cid] for cid in best_kept) <= min(left)
    for cid, reasons in found.items():
        assert reasons, cid


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.integers(1, 6))
def test_a_version_that_went_would_never_be_among_the_best_later(losses: list[float], best: int) -> None:
    """Dropping round by round keeps the same best ones as if all had been there to the end."""
    store: set[str] = set()
    for count in range(1, len(losses) + 1):
        told = {f"c{number}": losses[number] for number in range(count - 1)}  # the newest is evaluated in the next round
        stays = retained(made(count), told, (), keep=2, every=0, best=best)
        assert {cid for cid, reasons in stays.items() if "best" in reasons} <= store
        store = (store | {f"c{count - 1}"}) & stays.keys()


def test_pins_are_read_back_and_a_damaged_file_is_said(tmp_path: Path) -> None:
    assert read_pins(tmp_path) == frozenset()
    write_pins(tmp_path, {"b", "a"})
    assert read_pins(tmp_path) == {"a", "b"}
    for text in ("[1]", "{}", "[", ""):
        (tmp_path / "pins.json").write_text(text)
        with pytest.raises(HocketError) as caught:
            read_pins(tmp_path)
        assert caught.value.code is Code.STATE_UNREADABLE
