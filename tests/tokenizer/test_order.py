"""The sample order: a permutation of every epoch, fixed by golden values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.order import sample_at

GOLDEN = json.loads((Path(__file__).parent / "golden_order.json").read_text())
INTEGERS = st.integers(-(2**63), 2**63)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"seed{case['seed']}-epoch{case['epoch']}-n{case['n']}")
def test_golden_order(case: dict[str, int]) -> None:
    for position, index in zip(case["positions"], case["indices"], strict=True):
        assert sample_at(case["seed"], case["epoch"], position, case["n"]) == index


@given(INTEGERS, INTEGERS, st.integers(1, 600))
def test_an_epoch_is_a_permutation(seed: int, epoch: int, n: int) -> None:
    assert sorted(sample_at(seed, epoch, position, n) for position in range(n)) == list(range(n))


@given(INTEGERS, st.integers(601, 2**62), st.data())
def test_large_epochs_stay_in_range_without_repeats(seed: int, n: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=2, max_size=40))
    indices = [sample_at(seed, 0, position, n) for position in positions]
    assert len(set(indices)) == len(indices) and all(0 <= index < n for index in indices)


def test_epochs_and_seeds_differ() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [sample_at(seed, epoch, position, 700) for position in range(700)]

    first = order(1, 0)
    for other in (order(1, 1), order(2, 0), order(0, 1)):
        same = sum(one == two for one, two in zip(first, other, strict=True))
        assert same < 10, "about one position in 700 is the same by chance"


def test_the_order_is_well_mixed() -> None:
    # Neighbours end far from each other, and each tenth of an epoch draws from each tenth of the data.
    n = 1000
    order = [sample_at(5, 3, position, n) for position in range(n)]
    table = [[0] * 10 for _ in range(10)]
    for position, index in enumerate(order):
        table[position // 100][index // 100] += 1
    chi_square = sum((cell - 10) ** 2 / 10 for row in table for cell in row)
    assert chi_square < 140, "81 expected; above 125 in one case of a thousand"


@pytest.mark.parametrize(("position", "n"), [(-1, 5), (5, 5), (0, 0)])
def test_positions_outside_are_refused(position: int, n: int) -> None:
    with pytest.raises(ValueError, match="position"):
        sample_at(0, 0, position, n)
