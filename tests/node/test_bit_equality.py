"""A pipeline trains bit by bit what one process trains."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches

STEPS = 20


def reference(harness: ModuleType, stages: int, steps: int) -> dict[str, np.ndarray]:
    """Single-process training on the same leases; weights by parameter name."""
    settings = harness.settings()
    inner = InnerSettings(
        peak_lr=settings.inner_lr_peak,
        floor=settings.lr_floor,
        warmup_frames=settings.warmup_frames,
        total_frames=settings.total_frames,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        seed=settings.seed,
    )
    trainer = ReferenceTrainer(harness.CONFIG, 1, inner, clip_stages=stages)
    for step in range(steps):
        batches = cut_microbatches([harness.speak(position) for position in range(8 * step, 8 * step + 8)], 4, harness.CONFIG)
        trainer.inner_step([(4 * step + index, batch) for index, batch in enumerate(batches)])
    return {name: parameter.detach().numpy().copy() for stage in trainer.stages for name, parameter in stage.named_parameters()}


def pipeline(harness: ModuleType, stages: int, **changes: Any) -> tuple[dict[str, np.ndarray], list[int]]:
    chain = harness.Chain(stages, leases=harness.Leases(STEPS), **changes)

    async def body(chain: Any) -> tuple[dict[str, np.ndarray], list[int]]:
        await chain.work()
        weights: dict[str, np.ndarray] = {}
        for node in chain.nodes:
            weights |= node.local.weights()
        return weights, [node.replica.totals.inner_steps for node in chain.nodes]

    return harness.run_chain(chain, body)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_twenty_inner_steps_with_dropout_are_bit_equal_to_one_process(harness: ModuleType, stages: int) -> None:
    assert harness.CONFIG.dropout > 0 and harness.CONFIG.cond_dropout > 0 and harness.CONFIG.code_corruption > 0
    expected = reference(harness, stages, STEPS)
    weights, steps = pipeline(harness, stages)
    assert steps == [STEPS] * stages
    assert weights.keys() == expected.keys()
    different = [name for name in expected if weights[name].tobytes() != expected[name].tobytes()]
    assert not different


def test_a_free_order_of_accumulation_stays_within_a_thousandth(harness: ModuleType) -> None:
    expected = reference(harness, 3, STEPS)
    weights, steps = pipeline(harness, 3, accumulation="free")
    assert steps == [STEPS] * 3
    for name, wanted in expected.items():
        assert np.linalg.norm(weights[name] - wanted) <= 1e-3 * np.linalg.norm(wanted), name
