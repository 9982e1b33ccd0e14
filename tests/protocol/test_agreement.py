"""Comparison of results: honest drift passes, each kind of lie fails, and no constant answer ever passes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.agreement import Limits, compare, compare_sums, projections
from protocol.calibration import SHIPPED, class_refusal, device_class, read_calibration, shipped_calibration

LIMITS = Limits(median=0.03, maximum=0.05, norm=0.02, projection=0.03)
SEED = b"drawn after the commitment"


def states(seed: int = 0, shape: tuple[int, ...] = (4, 40, 32)) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_results_that_differ_by_rounding_agree() -> None:
    ours = states()
    noise = np.random.default_rng(1).standard_normal(ours.shape).astype(np.float32)
    found = compare(ours, ours * (1 + 0.01 * noise), SEED, LIMITS)
    assert found.ok, found.reason
    assert 0.005 < found.statistics["median"] < 0.015


LIES = {
    "zero": lambda x: np.zeros_like(x),
    "sign": lambda x: -x,
    "scale 0.9": lambda x: np.float32(0.9) * x,
    "scale 1.05": lambda x: np.float32(1.05) * x,
    "noise 10 %": lambda x: x + np.float32(0.1) * states(9, x.shape),
    "one token of 160 is zero": lambda x: np.where(np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1) == 7, 0, x),
    "other tokens": lambda x: np.roll(x, 1, axis=1),
    "only the largest are right": lambda x: np.where(np.abs(x) > np.quantile(np.abs(x), 0.9), x, 0),
    "not a number": lambda x: np.where(np.arange(x.shape[2]) == 3, np.nan, x),
    "infinite": lambda x: np.where(np.arange(x.shape[2]) == 3, np.inf, x),
    "another shape": lambda x: x[:, 1:],
    "integers": lambda x: np.rint(x).astype(np.int32),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_do_not_agree(lie: str) -> None:
    ours = states()
    found = compare(ours, np.asarray(LIES[lie](ours), np.int32 if lie == "integers" else np.float32), SEED, LIMITS)
    assert not found.ok and found.reason


def test_what_is_next_to_nothing_is_measured_against_what_is_typical() -> None:
    ours = states()
    ours[:, 30:] = 0  # behind an utterance's end
    theirs = ours + np.float32(1e-9)
    assert compare(ours, theirs, SEED, LIMITS).ok
    theirs[0, 35] = 1.0
    assert not compare(ours, theirs, SEED, LIMITS).ok


def test_a_result_of_zeros_agrees_with_zeros_alone() -> None:
    ours = np.zeros((2, 3, 4), np.float32)
    assert compare(ours, ours, SEED, LIMITS).ok
    assert not compare(ours, states(0, ours.shape), SEED, LIMITS).ok
    assert compare(ours[:0], ours[:0], SEED, LIMITS).ok
    assert not compare(np.full_like(ours, np.nan), ours, SEED, LIMITS).ok


def test_projections_measure_the_norm_and_add_up() -> None:
    one, other = states(1), states(2)
    assert np.allclose(projections(one, SEED) - projections(other, SEED), projections(one - other, SEED), atol=1e-2)
    many = np.concatenate([projections(one, bytes([number])) for number in range(64)])
    assert abs(np.sqrt(np.square(many).mean()) / np.linalg.norm(one) - 1) < 0.06
    assert abs(many.mean()) < 0.1 * np.linalg.norm(one)
    assert not np.array_equal(projections(one, b"a"), projections(one, b"b"))


def test_signs_do_not_depend_on_how_the_values_are_laid_out() -> None:
    long = states(3, (3, 50_000))  # more than a block
    assert np.array_equal(projections(long, SEED), projections(np.asfortranarray(long), SEED))
    assert np.array_equal(projections(long, SEED), projections(long.reshape(-1), SEED))
    assert np.array_equal(projections(long, SEED, 5), projections(long, SEED)[:5])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(-1e6, 1e6, allow_nan=False), st.sampled_from([1e-6, 1.0, 1e6]))
def test_no_constant_answer_passes(seed: int, constant: float, scale: float) -> None:
    """A forger that knows no seed does best with the mean of what is likely: a constant."""
    ours = states(seed, (2, 9, 16)) * np.float32(scale)
    for answer in (0.0, constant, float(ours.mean()), float(np.median(ours))):
        assert not compare(ours, np.full_like(ours, answer), SEED, LIMITS).ok
    for best in (ours.mean((0, 1)), ours.mean(2, keepdims=True), np.median(ours, (0, 1))):  # in hindsight, a channel or a token
        assert not compare(ours, np.broadcast_to(best, ours.shape).astype(np.float32), SEED, LIMITS).ok


def test_sums_are_compared_one_by_one() -> None:
    ours = np.array([10.0, 1000.0])
    assert compare_sums(ours, ours * (1 + 1e-6), 1e-4).ok
    assert not compare_sums(ours, np.array([10.1, 1000.0]), 1e-4).ok
    assert not compare_sums(ours, np.array([np.nan, 1000.0]), 1e-4).ok
    assert not compare_sums(ours, ours[:1], 1e-4).ok


def test_the_shipped_table_has_a_row_for_every_pair_and_encoding() -> None:
    for wire in ("fp32", "bf16", "int8"):
        alike = shipped_calibration().row_for("cpu-x86_64-float32", "cpu-aarch64-float32", wire)
        mixed = shipped_calibration().row_for("cpu-x86_64-bfloat16", "cpu-aarch64-float32", wire)
        assert mixed == shipped_calibration().row_for("cpu-aarch64-float32", "cpu-x86_64-bfloat16", wire)
        assert alike.hidden.maximum < mixed.hidden.maximum
    with pytest.raises(HocketError) as caught:
        shipped_calibration().row_for("cpu-x86_64-float32", "abacus", "fp32")
    assert caught.value.code is Code.CALIBRATION_INVALID


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    table = json.loads(SHIPPED.read_text())
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    assert read_calibration(path) == shipped_calibration()
    for change in ({"rows": []}, {"format": "other"}, {"rows": [table["rows"][0] | {"wire": "fp8"}]}, {"more": 1}):
        path.write_text(json.dumps(table | change))
        with pytest.raises(HocketError) as caught:
            read_calibration(path)
        assert caught.value.code is Code.CALIBRATION_INVALID
    with pytest.raises(HocketError):
        read_calibration(tmp_path / "none.json")


def test_a_class_that_the_table_does_not_know_is_judged_like_the_referee() -> None:
    table = shipped_calibration()
    strict = table.row_for("cpu-x-float32", "cpu-x-float32", "bf16")
    for ours, theirs in (("", ""), ("abacus", "cuda-sm90-tf32"), ("cpu-x-float32", "abacus"), ("*", "cpu-x-float32")):
        assert table.row_between(ours, theirs, "bf16") == strict
        assert table.row_between(theirs, ours, "bf16") == strict
    known = table.row_for("cpu-x-float32", "cpu-x-bfloat16", "bf16")
    assert table.row_between("abacus", "cpu-x-bfloat16", "bf16") == known == table.row_between("cpu-x-bfloat16", "abacus", "bf16")


def test_a_member_cannot_choose_its_tolerance_by_the_name_of_its_class() -> None:
    for fine in ("", "cpu-x86_64-float32", "cuda-sm90-float32", device_class()):
        assert class_refusal(fine) == ""
    for dtype in ("bfloat16", "tf32", "float16", "float64", "any"):
        assert dtype in class_refusal(device_class(dtype))
    for odd in ("abacus", "cpu--float32", "cpu-*-float32", "cpu-x-float32 ", "cpu-x-bfloat16-float32", "c" * 80 + "-x-float32"):
        assert class_refusal(odd), odd
