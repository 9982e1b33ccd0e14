"""Forged updates do what their definitions say, for any honest updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.attacks.base import UpdateAttack, norms
from simulations.attacks.catalogue import ATTACKS, attack_named, update_variants
from simulations.attacks.forged_work import ConstantDirection, Copycat, JointSignFlip, Noise, SignFlip
from simulations.attacks.impossible import FreeRide, Huge, NotFinite
from simulations.attacks.inside_spread import (
    AgainstTrimming,
    Drift,
    InnerProduct,
    LittleIsEnough,
    Mimic,
    MinMax,
    alie_factor,
)


def updates(h: int, f: int, p: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((h + f, p), np.float32) + draw.standard_normal(p, np.float32)
    return rows[:h], rows[h:]


honest_and_own = st.builds(updates, st.integers(1, 9), st.integers(1, 4), st.integers(2, 60), st.integers(0, 1000))


@given(label=st.sampled_from(sorted(update_variants())), rows=honest_and_own)
def test_a_forgery_has_the_attackers_shape_and_is_a_function_of_its_arguments(
    label: str, rows: tuple[np.ndarray, np.ndarray]
) -> None:
    attack = update_variants()[label]
    honest, own = rows
    before = honest.copy(), own.copy()
    with np.errstate(all="raise"):
        forged = attack.forge(honest, own, np.random.default_rng(1))
    assert forged.shape == own.shape and forged.dtype == np.float32
    assert np.array_equal(honest, before[0]) and np.array_equal(own, before[1])
    assert np.array_equal(forged, attack.forge(honest, own, np.random.default_rng(1)), equal_nan=True)
    assert np.isfinite(forged).all() != isinstance(attack, NotFinite)


@settings(max_examples=20)
@given(rows=honest_and_own)
def test_the_formulas(rows: tuple[np.ndarray, np.ndarray]) -> None:
    honest, own = rows
    draw = np.random.default_rng(2)
    mean = honest.mean(axis=0)
    assert np.array_equal(SignFlip(10.0).forge(honest, own, draw), -10 * own)
    np.testing.assert_allclose(JointSignFlip(3.0).forge(honest, own, draw)[0], -3 * mean, rtol=1e-5)
    np.testing.assert_allclose(InnerProduct(0.5).forge(honest, own, draw)[-1], -mean / 2, rtol=1e-5)
    shift = LittleIsEnough(1.5).forge(honest, own, draw)[0] - mean
    spread = honest.std(axis=0, ddof=1) if len(honest) > 1 else np.zeros_like(mean)
    np.testing.assert_allclose(shift, -1.5 * spread, atol=1e-4)
    np.testing.assert_allclose(norms(ConstantDirection(1000.0).forge(honest, own, draw)), 1000 * norms(own), rtol=1e-3)
    assert (norms(Copycat(0.01).forge(honest, own, draw)[:1] - honest[:1]) < 0.1 * norms(honest[:1])).all()
    assert not FreeRide().forge(honest, own, draw).any()
    assert (norms(Huge(1e6).forge(honest, own, draw)) > 9e5 * norms(own)).all()
    twin = Drift(1.0).forge(honest, own, draw) - own
    np.testing.assert_allclose(np.abs(twin), np.abs(twin[:1]).repeat(len(own), axis=0), rtol=1e-2, atol=1e-4)


@settings(max_examples=20)
@given(rows=honest_and_own)
def test_trimming_is_attacked_from_just_outside_the_honest_values_against_their_mean(rows: tuple[np.ndarray, np.ndarray]) -> None:
    honest, own = rows
    forged = AgainstTrimming().forge(honest, own, np.random.default_rng(3))
    down = honest.mean(axis=0) < 0
    assert (forged[:, down] >= honest.max(axis=0)[down]).all()
    assert (forged[:, ~down] <= honest.min(axis=0)[~down]).all()


@settings(max_examples=20)
@given(rows=honest_and_own)
def test_min_max_is_no_further_from_any_than_two_honest_ones_are_from_each_other(rows: tuple[np.ndarray, np.ndarray]) -> None:
    honest, own = rows
    forged = MinMax().forge(honest, own, np.random.default_rng(4)).astype(np.float64)
    furthest = max(float(np.linalg.norm(forged[0] - one)) for one in honest)
    widest = max(float(np.linalg.norm(a.astype(np.float64) - b)) for a in honest for b in honest)
    assert furthest <= widest * (1 + 1e-4) + 1e-3


@settings(max_examples=20)
@given(rows=honest_and_own)
def test_mimics_copy_one_honest_update_bit_for_bit(rows: tuple[np.ndarray, np.ndarray]) -> None:
    honest, own = rows
    forged = Mimic().forge(honest, own, np.random.default_rng(5))
    assert any(np.array_equal(forged[0], one) for one in honest)
    assert all(np.array_equal(row, forged[0]) for row in forged)


def test_noise_is_as_long_as_it_says() -> None:
    _, own = updates(3, 2, 40_000, 6)
    np.testing.assert_allclose(norms(Noise(10.0).forge(own, own, np.random.default_rng(6))), 10 * norms(own), rtol=0.02)


def test_the_factor_of_a_little_is_enough() -> None:
    assert alie_factor(5, 1) == 0.0
    assert math.isclose(alie_factor(10, 3), 0.18, abs_tol=0.005)
    assert alie_factor(50, 12) > 0.3 > alie_factor(4, 3)


def test_attacks_are_found_by_name_and_a_wrong_parameter_is_named() -> None:
    attack = attack_named("sign_flip", {"scale": 10.0})
    assert isinstance(attack, UpdateAttack) and attack == SignFlip(10.0)
    assert all(kind.number.startswith("A") for kind in ATTACKS.values())
    with pytest.raises(ValueError, match="no attack 'sign_flop'; known: "):
        attack_named("sign_flop", {})
    with pytest.raises(ValueError, match="sign_flip has no parameter 'size'; known: scale"):
        attack_named("sign_flip", {"size": 1.0})
