"""A replica's copy of its stage: ordered sums, stale graphs, versions and updates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from common.errors import Code, HocketError
from node.local_sgd import LocalStage, joiner_ramp
from tts.batch import Side
from tts.config import ModelConfig, preset
from tts.stages import build_stage

CONFIG: ModelConfig = preset("test", n_codebooks=2, codebook_size=16, n_phonemes=12)


def last_stage(*, ordered: bool = True) -> LocalStage:
    return LocalStage(build_stage(CONFIG, 1, 2), ordered=ordered, weight_decay=0.01, clip_norm=1.0)


def microbatch(seed: int, frames: int = 9) -> tuple[np.ndarray, Side]:
    """Hidden states and side of two utterances."""
    generator = np.random.default_rng(seed)
    hidden = generator.standard_normal((2, frames + 2, CONFIG.d_model)).astype(np.float32)
    side = Side.from_arrays(
        {
            "codes": generator.integers(0, 16, (2, 2, frames)).astype(np.uint16),
            "n_frames": np.array([frames, frames - 3], np.int32),
            "speaker": np.zeros((2, CONFIG.speaker_dim), np.float32),
            "language": np.zeros(2, np.int32),
        },
        CONFIG,
    )
    return hidden, side


def run(local: LocalStage, number: int, *, counts: bool = True) -> np.ndarray:
    hidden, side = microbatch(number)
    grad = local.backward(local.forward(number, None, hidden, side, seed=5), None, counts=counts)
    assert grad is not None and grad.shape == hidden.shape
    return grad


def test_ordered_sums_do_not_depend_on_the_order_of_arrival() -> None:
    results = []
    for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 5):
        local = last_stage()
        for number in order:
            run(local, number)
        local.step(60, 1e-3)
        results.append(local.weights())
    for other in results[1:]:
        assert all(np.array_equal(other[name], results[0][name]) for name in other)


def test_free_sums_are_close_to_ordered_ones() -> None:
    ordered, free = last_stage(), last_stage(ordered=False)
    for number in range(4):
        run(ordered, number)
    for number in reversed(range(4)):
        run(free, number)
    assert free.step(60, 1e-3) == pytest.approx(ordered.step(60, 1e-3), rel=1e-4)


def test_a_graph_kept_over_an_inner_step_is_refused_though_autograd_would_run_it() -> None:
    local = last_stage()
    hidden, side = microbatch(0)
    kept = local.forward(0, None, hidden, side, seed=5)
    run(local, 1)
    expected = torch.autograd.grad(kept.roots[0], kept.arrived, retain_graph=True)[0]
    local.step(15, 1e-1)
    # The fused optimizer changed the weights in place, yet autograd raises nothing and gives another gradient.
    silently_wrong = torch.autograd.grad(kept.roots[0], kept.arrived, retain_graph=True)[0]
    assert not torch.equal(silently_wrong, expected)
    with pytest.raises(HocketError) as caught:
        local.backward(kept, None, counts=True)
    assert caught.value.code is Code.STALE_GRAPH
    with pytest.raises(ValueError, match="without gradients"):
        local.step(15, 1e-1)


def test_a_graph_kept_over_a_new_version_is_refused() -> None:
    local = last_stage()
    hidden, side = microbatch(0)
    kept = local.forward(0, None, hidden, side, seed=5)
    local.adopt(local.weights())
    with pytest.raises(HocketError) as caught:
        local.backward(kept, None, counts=True)
    assert caught.value.code is Code.STALE_GRAPH


def test_a_pass_that_does_not_count_gives_the_same_gradient_and_adds_nothing() -> None:
    counted, uncounted = last_stage(), last_stage()
    assert np.array_equal(run(counted, 0), run(uncounted, 0, counts=False))
    with pytest.raises(ValueError, match="without gradients"):
        uncounted.step(15, 1e-3)


def test_the_update_is_base_minus_weights_and_a_version_resets_it() -> None:
    local = last_stage()
    before = local.weights()
    assert all(not update.any() for update in local.pseudo_gradient().values())
    run(local, 0)
    local.step(15, 1e-2)
    after, update = local.weights(), local.pseudo_gradient()
    assert all(np.array_equal(before[name] - after[name], update[name]) and update[name].dtype == np.float32 for name in before)
    moments = local.moments()
    local.adopt(before)
    assert all(np.array_equal(local.weights()[name], before[name]) for name in before)
    assert all(not update.any() for update in local.pseudo_gradient().values())
    assert all(torch.equal(moments[name], value) for name, value in local.moments().items()) and moments


def test_evaluation_uses_the_base_whatever_the_weights_are_and_keeps_nothing() -> None:
    local = last_stage()
    hidden, side = microbatch(3)
    _, before = local.evaluate(None, hidden, side)
    run(local, 0)
    _, between = local.evaluate(None, hidden, side)
    local.step(15, 1e-2)
    _, after = local.evaluate(None, hidden, side)
    assert before == between == after
    local.adopt(local.weights())
    assert local.evaluate(None, hidden, side)[1] != before


def test_a_version_that_does_not_fit_changes_nothing() -> None:
    local = last_stage()
    weights = local.weights()
    name = next(iter(weights))
    for wrong in (
        {key: value for key, value in weights.items() if key != name},
        {**weights, "extra": np.zeros(1, np.float32)},
        {**weights, name: np.zeros((1, 1, 1), np.float32)},
        {**weights, name: weights[name].astype(np.float64)},
    ):
        with pytest.raises(HocketError) as caught:
            local.adopt(wrong)
        assert caught.value.code is Code.CHECKPOINT_INVALID
    assert all(np.array_equal(local.weights()[key], weights[key]) for key in weights)


def test_a_step_that_is_not_finite_is_refused_and_the_next_one_works() -> None:
    local = last_stage()
    hidden, side = microbatch(0)
    before = local.weights()
    kept = local.forward(0, None, hidden, side, seed=5)
    kept.roots = [root * float("nan") for root in kept.roots]
    local.backward(kept, None, counts=True)
    with pytest.raises(HocketError) as caught:
        local.step(15, 1e-2)
    assert caught.value.code is Code.NOT_FINITE
    assert all(np.array_equal(local.weights()[name], before[name]) for name in before)
    run(local, 1)
    local.step(15, 1e-2)
    assert any(not np.array_equal(local.weights()[name], before[name]) for name in before)


def test_a_joiner_ramps_up_and_stays_at_one() -> None:
    factors = [joiner_ramp(step) for step in range(12)]
    assert factors == sorted(factors) and 0 < factors[0] < 0.2 and factors[8:] == [1.0] * 4
