"""Aggregation rules on arrays: definitions, symmetries, breakdown points, golden values."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.errors import Code, HocketError
from coordinator.rules.arrays import aggregate_arrays
from coordinator.rules.coordinatewise import middle_network, sorting_network
from coordinator.rules.pipeline import Aggregation, ArrayUpdates
from coordinator.rules.plan import KRUM, PREPARATIONS, RULES, Plan, plan

GOLDEN = json.loads((Path(__file__).parent / "golden" / "aggregation.json").read_text())
ROBUST = tuple(rule for rule in RULES if rule != "mean")
EXACT = ("trimmed_mean", "median", "mean")

values = st.floats(-1e6, 1e6, width=32)
updates = hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 20)), elements=values)


def combine(rows: np.ndarray, chosen: Plan, chunk: int | None = None) -> np.ndarray:
    """The rule by itself, without clipping."""
    norms = [1.0] * len(rows)
    parts = Aggregation(ArrayUpdates(rows), replace(chosen, clip=False), norms, b"", chunk=chunk).chunks()
    return np.concatenate([part.copy() for part in parts])


def honest_rows(n: int, size: int, seed: int, snr: float = 1.0) -> np.ndarray:
    """Updates that agree up to noise: float32 [n, size]."""
    draw = np.random.default_rng(seed)
    centre = draw.standard_normal(size)
    return np.asarray(centre + draw.standard_normal((n, size)) / snr, np.float32)


# ---- plans ---------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(RULES), st.sampled_from(PREPARATIONS), st.integers(0, 10), st.integers(0, 40))
def test_a_plan_never_tolerates_what_it_cannot(rule: str, prepare: str, tolerate: int, n: int) -> None:
    chosen = plan(rule, tolerate, n, prepare)
    assert chosen.n == n and 2 * chosen.tolerates < max(chosen.rows, 1)
    if n <= 2 or rule == "mean":
        assert (chosen.rule, chosen.f, chosen.tolerates, chosen.clip) == ("mean", 0, 0, False)
        return
    assert chosen.clip and chosen.f == min(tolerate, (n - 1) // 2) <= chosen.tolerates
    if chosen.rule in KRUM:
        assert chosen.rows >= 2 * chosen.f + 3
    else:
        assert chosen.rows >= 2 * chosen.f + 1
    if (chosen.rule, chosen.prepare, chosen.f) != (rule, prepare, tolerate):
        assert chosen.why


def test_what_takes_the_place_of_a_rule_is_said() -> None:
    assert plan("krum", 1, 5) == Plan("krum", 5, 1, 1, clip=True)
    assert plan("krum", 1, 4) == Plan("trimmed_mean", 4, 1, 1, clip=True, why="krum needs 5 updates to stand 1")
    assert plan("median", 3, 5).why == "5 updates stand 2, not 3"
    assert plan("median", 1, 5, "bucketing") == Plan("median", 5, 1, 1, "bucketing", True)
    assert plan("median", 1, 4, "bucketing") == Plan("median", 4, 1, 1, "none", True, "2 buckets have no majority over 1")
    assert plan("median", 1, 2) == Plan("mean", 2, 0, 0, why="2 updates have no majority")


# ---- definitions ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(updates, st.integers(0, 4))
def test_coordinate_wise_rules_match_their_definitions(rows: np.ndarray, tolerate: int) -> None:
    n = len(rows)
    for rule in EXACT:
        chosen = plan(rule, tolerate, n)
        found = combine(rows, chosen)
        assert found.dtype == np.float32 and found.shape == rows.shape[1:]
        for column in range(rows.shape[1]):
            ordered = sorted(Fraction(float(value)) for value in rows[:, column])
            if chosen.rule == "median":
                exact = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
            else:
                kept = ordered[chosen.f : n - chosen.f]
                exact = sum(kept, Fraction(0)) / len(kept)
            scale = float(np.abs(rows[:, column]).max()) + 1e-30
            assert abs(float(exact) - float(found[column])) <= 2e-6 * scale + 1e-37


@pytest.mark.parametrize("n", range(1, 18))
def test_networks_bring_the_middle_ranks_to_their_places(n: int) -> None:
    draw = np.random.default_rng(n)
    # By the zero-one principle a network that orders all columns of zeros and ones orders everything.
    rows = np.array([[(number >> row) & 1 for number in range(1 << min(n, 12))] for row in range(n)], np.float32)
    rows[12:] = draw.integers(0, 2, (max(n - 12, 0), rows.shape[1]))
    for trimmed in range((n + 1) // 2):
        columns = rows.copy()
        for one in middle_network(n, trimmed):
            low, high = columns[one.low].copy(), columns[one.high].copy()
            columns[one.low] = np.minimum(low, high) if one.smaller else np.nan
            columns[one.high] = np.maximum(low, high) if one.larger else np.nan
        np.testing.assert_array_equal(columns[trimmed : n - trimmed], np.sort(rows, axis=0)[trimmed : n - trimmed])
        assert len(middle_network(n, trimmed)) <= len(sorting_network(n))


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    for seed in range(5):
        rows = honest_rows(7, 30, seed)
        found = combine(rows, plan("geometric_median", 2, 7)).astype(np.float64)
        least = np.linalg.norm(rows - found, axis=1).sum()
        draw = np.random.default_rng(seed)
        for size in (1e-1, 1e-2, 1e-3):
            moved = found + size * draw.standard_normal((200, 30))
            sums = np.linalg.norm(rows[None] - moved[:, None], axis=2).sum(axis=1)
            assert (sums > least - 1e-5 * least).all()


def test_centred_clipping_follows_its_formula() -> None:
    rows = honest_rows(7, 40, 3).astype(np.float64)
    rows[0] *= -20
    centre = np.median(rows, axis=0)
    for _ in range(3):
        away = np.linalg.norm(rows - centre, axis=1)
        pulls = np.minimum(1, np.median(away) / away)
        centre = centre + ((rows - centre) * pulls[:, None]).mean(axis=0)
    ordered = np.sort(rows, axis=0)
    found = combine(rows.astype(np.float32), plan("centred_clipping", 1, 7))
    np.testing.assert_allclose(found, np.clip(centre, ordered[1], ordered[-2]), rtol=1e-4, atol=1e-5)
    assert np.mean(np.isclose(found, centre, rtol=1e-4, atol=1e-5)) > 0.8


@pytest.mark.parametrize("rule", ["centred_clipping", "trimmed_mean", "median"])
def test_a_lie_in_a_single_coordinate_does_not_get_through(rule: str) -> None:
    rows = honest_rows(7, 10_000, 8)
    honest = rows[1:, 5].copy()
    # As long as the others, so that no bound on its norm can tell it.
    length = np.linalg.norm(rows[0])
    rows[0] *= np.float32(0.01)
    rows[0, 5] = length
    found = aggregate_arrays(rows, rule=rule, tolerate=1).values
    assert honest.min() * 1.1 - 0.1 <= found[5] <= honest.max() * 1.1 + 0.1


def test_krum_picks_the_update_with_the_nearest_neighbours() -> None:
    rows = honest_rows(8, 25, 4)
    rows[[2, 5]] += 10
    exact = rows.astype(np.float64)
    distances = ((exact[:, None] - exact[None]) ** 2).sum(axis=2)
    scores = np.array([np.sort(np.delete(row, index))[: 8 - 2 - 2].sum() for index, row in enumerate(distances)])
    np.testing.assert_array_equal(combine(rows, plan("krum", 2, 8)), rows[scores.argmin()])
    best = np.sort(np.argsort(scores)[:6])
    assert not {2, 5} & set(best)
    np.testing.assert_allclose(combine(rows, plan("multi_krum", 2, 8)), rows[best].mean(axis=0), rtol=1e-5, atol=1e-6)


def test_mixing_averages_the_nearest() -> None:
    rows = honest_rows(6, 25, 5)
    exact = rows.astype(np.float64)
    distances = ((exact[:, None] - exact[None]) ** 2).sum(axis=2)
    mixed = np.stack([exact[np.argsort(row)[:5]].mean(axis=0) for row in distances])
    expected = np.sort(mixed, axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(combine(rows, plan("trimmed_mean", 1, 6, "mixing")), expected, rtol=1e-5, atol=1e-6)


def test_buckets_hold_two_each_and_another_seed_draws_others() -> None:
    rows = np.eye(7, 7, dtype=np.float32)
    drawn = set()
    for seed in (b"a", b"b", b"c", b"a"):
        parts = Aggregation(ArrayUpdates(rows), plan("median", 1, 7, "bucketing"), [1.0] * 7, seed)
        assert parts._matrix is not None
        assert sorted(np.count_nonzero(parts._matrix, axis=1)) == [1, 2, 2, 2]
        np.testing.assert_allclose(parts._matrix.sum(axis=1), 1)
        assert (np.count_nonzero(parts._matrix, axis=0) == 1).all()
        drawn.add(parts._matrix.tobytes())
    assert len(drawn) == 3


# ---- symmetries ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(updates, st.randoms())
def test_coordinate_wise_rules_do_not_depend_on_the_order(rows: np.ndarray, random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    for rule in ("trimmed_mean", "median"):
        chosen = plan(rule, 4, len(rows))
        if chosen.rule != "mean" and chosen.f > 0:
            assert combine(rows, chosen).tobytes() == combine(rows[order], chosen).tobytes()


@pytest.mark.parametrize("prepare", ["none", "mixing"])
@pytest.mark.parametrize("rule", RULES)
def test_order_place_and_scale_change_what_they_should(rule: str, prepare: str) -> None:
    for seed in range(4):
        rows = honest_rows(9, 50, seed)
        rows[0] *= -3
        chosen = plan(rule, 2, 9, prepare)
        found = combine(rows, chosen)
        scale = np.abs(rows).max()
        order = np.random.default_rng(seed).permutation(9)
        np.testing.assert_allclose(combine(rows[order], chosen), found, atol=1e-5 * scale)
        shift = honest_rows(1, 50, 100 + seed)[0]
        np.testing.assert_allclose(combine(rows + shift, chosen), found + shift, atol=2e-4 * scale)
        np.testing.assert_array_equal(combine(rows * np.float32(4), chosen), found * np.float32(4))


@settings(deadline=None, max_examples=50)
@given(updates, st.integers(1, 7), st.sampled_from(RULES), st.sampled_from(PREPARATIONS), st.integers(1, 3))
def test_chunks_and_threads_change_no_bit(rows: np.ndarray, chunk: int, rule: str, prepare: str, threads: int) -> None:
    whole = aggregate_arrays(rows, rule=rule, tolerate=1, prepare=prepare, seed=b"s")
    parts = aggregate_arrays(rows, rule=rule, tolerate=1, prepare=prepare, seed=b"s", chunk=chunk, threads=threads)
    assert whole.values.tobytes() == parts.values.tobytes() and whole.clips == parts.clips
    assert np.isfinite(whole.values).all()


@pytest.mark.parametrize("prepare", PREPARATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_equal_updates_give_themselves(rule: str, prepare: str) -> None:
    row = honest_rows(1, 100, 1)[0]
    for n in (1, 2, 3, 5, 8):
        found = aggregate_arrays(np.stack([row] * n), rule=rule, tolerate=1, prepare=prepare)
        np.testing.assert_allclose(found.values, row, rtol=1e-6)
        assert found.clips == [1.0] * n


def test_a_pass_that_is_left_early_has_no_thread_behind() -> None:
    rows = honest_rows(5, 4000, 1)
    chunks = Aggregation(ArrayUpdates(rows), plan("median", 2, 5), [1.0] * 5, b"", threads=3, chunk=7).chunks()
    next(chunks)
    assert any(thread.name.startswith("aggregation") for thread in threading.enumerate())
    chunks.close()
    assert not any(thread.name.startswith("aggregation") for thread in threading.enumerate())


@pytest.mark.parametrize("rule", RULES)
def test_an_update_that_cannot_be_read_is_an_error_whatever_the_thread(rule: str) -> None:
    class Broken(ArrayUpdates):
        def read(self, index: int, start: int, into: np.ndarray) -> None:
            if start >= 50:
                raise HocketError(Code.UPDATE_REFUSED, "it became shorter")
            super().read(index, start, into)

    for threads in (1, 2):
        with pytest.raises(HocketError, match="shorter"):
            updates = Broken(honest_rows(5, 1 << 16, 1))
            sum(part.size for part in Aggregation(updates, plan(rule, 1, 5), [1.0] * 5, b"", threads=threads, chunk=10).chunks())


# ---- attackers -----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 9), st.integers(1, 4), st.data())
def test_tolerated_lies_stay_inside_the_honest_range(n: int, tolerate: int, data: st.DataObject) -> None:
    rows = data.draw(hnp.arrays(np.float32, (n, 6), elements=st.floats(-10, 10, width=32)))
    for rule in ("trimmed_mean", "median", "centred_clipping"):
        chosen = plan(rule, tolerate, n)
        false = chosen.tolerates if rule == "median" else chosen.f
        lies = data.draw(hnp.arrays(np.float32, (false, 6), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
        attacked = rows.copy()
        attacked[:false] = lies
        honest = rows[false:]
        found = combine(attacked, chosen)
        slack = 1e-5 * np.abs(honest).max()
        assert (found >= honest.min(0) - slack).all() and (found <= honest.max(0) + slack).all()


@pytest.mark.parametrize("prepare", PREPARATIONS)
@pytest.mark.parametrize("rule", ROBUST)
def test_no_rule_breaks_below_its_breakdown_point(rule: str, prepare: str) -> None:
    """However far f lies are away, together or apart, the result stays within a small multiple of the honest spread."""
    for n in (5, 7, 10, 16):
        tolerate = (n - 1) // 4
        assert plan(rule, tolerate, n, prepare).tolerates >= tolerate
        honest = honest_rows(n, 200, n)
        mean = honest[tolerate:].mean(axis=0)
        spread = np.linalg.norm(honest[tolerate:] - mean, axis=1).max()
        apart = np.random.default_rng(1).standard_normal((tolerate, 200))
        for size in (1e2, 1e6, 1e12, 1e30):
            for lie in (np.ones((tolerate, 200)), -mean[None].repeat(tolerate, 0), apart):
                rows = honest.copy()
                rows[:tolerate] = size * lie
                found = aggregate_arrays(rows, rule=rule, tolerate=tolerate, prepare=prepare, seed=b"x")
                assert np.linalg.norm(found.values - mean) < 2 * spread, (n, size)


def test_a_mean_breaks_and_is_used_by_choice_alone() -> None:
    rows = honest_rows(5, 10, 0)
    rows[0] = 1e6
    assert np.abs(aggregate_arrays(rows, rule="mean", tolerate=1).values).min() > 1e5
    assert np.abs(aggregate_arrays(rows, rule="trimmed_mean", tolerate=1).values).max() < 10


@pytest.mark.parametrize("prepare", PREPARATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_is_as_if_it_had_not_come(rule: str, prepare: str) -> None:
    rows = honest_rows(9, 20, 2)
    rows[3, 7] = np.nan
    rows[5] = -np.inf
    found = aggregate_arrays(rows, rule=rule, tolerate=2, prepare=prepare, seed=b"x")
    without = aggregate_arrays(np.delete(rows, [3, 5], axis=0), rule=rule, tolerate=2, prepare=prepare, seed=b"x")
    assert found.values.tobytes() == without.values.tobytes()
    assert [index for index, _ in found.refused] == [3, 5]
    assert aggregate_arrays(np.full((3, 4), np.nan, np.float32), rule=rule, tolerate=1).values.tolist() == [0.0] * 4


def test_what_went_in_of_each_update_is_counted() -> None:
    rows = honest_rows(8, 3000, 6, snr=0.2)
    for rule in ROBUST:
        rows[0] = 1e3 if rule != "krum" else 1e6
        found = aggregate_arrays(rows, rule=rule, tolerate=1)
        assert found.trimmed_shares[0] > 0.97
        if rule != "krum":
            assert max(found.trimmed_shares[1:]) < 0.35, rule
        else:
            assert sorted(found.trimmed_shares)[0] == 0.0


# ---- golden values -------------------------------------------------------------------------------------------------------


def test_golden_rules() -> None:
    rows = np.array(GOLDEN["updates"], np.float32)
    for rule, tolerate, expected in GOLDEN["rules"]:
        np.testing.assert_array_equal(combine(rows, plan(rule, tolerate, len(rows))), np.array(expected, np.float32))


def test_where_nobody_attacks_flower_gets_the_same() -> None:
    """`golden/flower.json` is what flwr 1.42.0 makes of these updates; it trims a share that makes `f` of them."""
    for case in json.loads((Path(__file__).parent / "golden" / "flower.json").read_text()):
        rows = np.array(case["updates"], np.float32)
        for rule in RULES:
            if rule in case:
                chosen = plan(rule, case["f"], len(rows))
                assert chosen.rule == rule
                np.testing.assert_allclose(combine(rows, chosen), case[rule], rtol=1e-6, atol=1e-6, err_msg=rule)


def test_golden_pipelines() -> None:
    """Clip, preparation and rule together; one of the seven updates is a lie."""
    rows = np.array(GOLDEN["pipeline"]["updates"], np.float32)
    for rule, prepare, prepared, expected in GOLDEN["pipeline"]["cases"]:
        found = aggregate_arrays(rows, rule=rule, tolerate=1, prepare=prepare, seed=b"golden")
        assert (found.plan.rule, found.plan.prepare) == (rule, prepared)
        np.testing.assert_allclose(found.values, np.array(expected), rtol=1e-5, atol=1e-6, err_msg=f"{prepare} {rule}")
