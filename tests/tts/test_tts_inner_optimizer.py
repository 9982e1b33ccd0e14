from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.errors import Code, HocketError
from tts.optimizer import BETAS, EPS, StageOptimizer
from tts.schedule import lr_at


def parameters() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(3)
    return {"a.weight": nn.Parameter(torch.randn(4, 5, generator=draw)), "a.bias": nn.Parameter(torch.randn(5, generator=draw))}


def gradients(step: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 + step)
    return {"a.bias": torch.randn(5, generator=draw) * 40, "a.weight": torch.randn(4, 5, generator=draw) * 40}


def test_it_is_adamw_on_divided_and_clipped_sums() -> None:
    """Against the published update, written out in float64."""
    decay, clip, frames, lr = 0.1, 1.0, 7, 0.01
    named = parameters()
    optimizer = StageOptimizer(named, decay, clip)
    values = {name: p.detach().double().clone() for name, p in named.items()}
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}
    for step in range(1, 6):
        grads = gradients(step)
        scaled = {name: grad.double() / frames for name, grad in grads.items()}
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in scaled.values()))
        assert norm > clip
        assert optimizer.step(grads, frames, lr) == pytest.approx(norm, rel=1e-5)
        for name, value in values.items():
            grad = scaled[name] * clip / norm
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * grad
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * grad**2
            value *= 1 - lr * (decay if value.dim() > 1 else 0)
            value -= lr * (first[name] / (1 - BETAS[0] ** step)) / ((second[name] / (1 - BETAS[1] ** step)).sqrt() + EPS)
    for name, value in values.items():
        assert torch.allclose(named[name].double(), value, atol=1e-6), name


def test_its_state_can_be_carried_over() -> None:
    one, two = parameters(), parameters()
    first = StageOptimizer(one, 0.1, 1.0)
    for step in range(3):
        first.step(gradients(step), 5, 0.01)
    with torch.no_grad():
        for name, p in two.items():
            p.copy_(one[name])
    second = StageOptimizer(two, 0.1, 1.0)
    second.load_state(first.state())
    for step in range(3, 5):
        first.step(gradients(step), 5, 0.01)
        second.step(gradients(step), 5, 0.01)
    for name, p in one.items():
        assert torch.equal(p, two[name])
    second.load_state({})
    assert second.state() == {}
    with pytest.raises(HocketError) as caught:
        second.load_state({"a.weight.exp_avg": torch.zeros(2)})
    assert caught.value.code is Code.STATE_UNREADABLE


def test_gradients_that_are_not_finite_change_nothing() -> None:
    named = parameters()
    optimizer = StageOptimizer(named, 0.1, 1.0)
    before = {name: p.detach().clone() for name, p in named.items()}
    bad = gradients(0)
    bad["a.bias"][2] = float("nan")
    with pytest.raises(HocketError) as caught:
        optimizer.step(bad, 5, 0.01)
    assert caught.value.code is Code.NOT_FINITE
    for name, p in named.items():
        assert torch.equal(p, before[name])
    with pytest.raises(HocketError):
        optimizer.step({"a.bias": torch.zeros(5)}, 5, 0.01)
    with pytest.raises(HocketError):
        optimizer.step(gradients(0), 0, 0.01)


@given(st.integers(0, 2_000_000), st.integers(1, 1_000_000), st.integers(0, 100_000), st.floats(0, 1))
def test_the_learning_rate_stays_within_its_bounds(done: int, total: int, warmup: int, floor: float) -> None:
    rate = lr_at(done, total, warmup, 0.01, floor)
    least = floor if done >= warmup else min(floor, 0.01)
    assert 0.01 * least - 1e-12 <= rate <= 0.01 + 1e-12


def test_the_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    rates = [lr_at(done, 1000, 100, 2.0, 0.1) for done in (0, 50, 100, 550, 1000, 5000)]
    assert rates == pytest.approx([0.02, 1.0, 2.0, 1.1, 0.2, 0.2])
    falling = [lr_at(done, 1000, 100, 2.0, 0.1) for done in range(100, 1001, 50)]
    assert falling == sorted(falling, reverse=True)
    assert lr_at(0, 1000, 0, 2.0, 0.1) == 2.0
