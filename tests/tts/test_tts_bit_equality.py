"""The heart of the design: cutting a model into stages changes no bit of what it learns."""

from __future__ import annotations

import pytest
import torch
from made_up_utterances import make, small_config

from tts.batch import TextBatch
from tts.config import ModelConfig
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches, train_single
from tts.stages import merged_state

STEPS = 20
SETTINGS = InnerSettings(peak_lr=5e-3, warmup_frames=400, total_frames=8000, weight_decay=0.05, clip_norm=0.5, seed=11)


def steps_of(config: ModelConfig, count: int, *, utterances: int = 7, microbatches: int = 3) -> list[list[tuple[int, TextBatch]]]:
    """Ragged microbatches under ids that do not come in order."""
    result = []
    for step in range(count):
        batches = cut_microbatches(make(utterances, seed=step, config=config), microbatches, config)
        ids = [step * 10 + (number * 2) % 3 for number in range(len(batches))]
        result.append(list(zip(ids, batches, strict=True)))
    return result


def weights(trainer: ReferenceTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in merged_state(trainer.stages).items()}


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_chain_of_stages_is_bit_equal_to_the_whole_model_after_twenty_inner_steps(n: int) -> None:
    config = small_config()
    assert config.dropout > 0 and config.cond_dropout > 0 and config.code_corruption > 0
    steps = steps_of(config, STEPS)
    assert len({tuple(batch.codes.shape) for microbatches in steps for _, batch in microbatches}) > STEPS  # ragged
    losses: dict[int, list[list[float]]] = {1: [], n: []}
    norms: dict[int, list[list[float]]] = {1: [], n: []}

    def run(stages: int) -> ReferenceTrainer:
        def note(_: int, result) -> None:  # type: ignore[no-untyped-def]
            losses[stages].append(result.ce)
            norms[stages].append(result.norms)

        return train_single(config, stages, steps, SETTINGS, seed=3, clip_stages=n, progress=note)

    whole, chain = run(1), run(n)
    assert len(whole.stages) == 1 and len(chain.stages) == n
    assert losses[1] == losses[n] and norms[1] == norms[n]
    assert any(norm > SETTINGS.clip_norm for step in norms[1] for norm in step), "clipping must have been at work"
    expected, got = weights(whole), weights(chain)
    assert list(expected) and set(expected) == set(got)
    for name, value in expected.items():
        assert torch.equal(value, got[name]), name
    start = weights(ReferenceTrainer(config, 1, SETTINGS, seed=3))
    still = [name for name, value in expected.items() if torch.equal(value, start[name])]
    assert still == [], "every parameter must have been trained"
    moments = {key: value for optimizer in whole.optimizers for key, value in optimizer.state().items()}
    for optimizer in chain.optimizers:
        for key, value in optimizer.state().items():
            assert torch.equal(value, moments[key]), key


def test_the_demo_model_in_three_stages_is_bit_equal_too() -> None:
    from tts.config import preset

    config = preset("demo", n_codebooks=4, codebook_size=64, n_phonemes=30)
    steps = steps_of(config, 2, utterances=4, microbatches=2)
    whole = train_single(config, 1, steps, SETTINGS, clip_stages=3)
    chain = train_single(config, 3, steps, SETTINGS)
    got = weights(chain)
    for name, value in weights(whole).items():
        assert torch.equal(value, got[name]), name


def test_another_order_of_accumulation_stays_within_a_thousandth() -> None:
    config = small_config()
    steps = steps_of(config, STEPS)
    ordered = train_single(config, 3, steps, SETTINGS, seed=3)
    other = ReferenceTrainer(config, 3, SETTINGS, seed=3, free_order=True)
    for microbatches in steps:
        other.inner_step(microbatches)
    got, differing = weights(other), 0
    for name, value in weights(ordered).items():
        distance = float((value - got[name]).norm() / value.norm().clamp_min(1e-12))
        assert distance <= 1e-3, name
        differing += not torch.equal(value, got[name])
    assert differing > 0, "the order must matter in the last bits, or this test shows nothing"


def test_the_masks_are_drawn_from_seed_and_microbatch() -> None:
    config = small_config()
    batch = cut_microbatches(make(4, config=config), 1, config)[0]

    def loss(seed: int, identity: int) -> list[float]:
        trainer = ReferenceTrainer(config, 2, InnerSettings(seed=seed))
        return trainer.inner_step([(identity, batch)]).ce

    torch.manual_seed(1)
    first = loss(5, 8)
    torch.manual_seed(2)
    assert loss(5, 8) == first
    assert loss(5, 9) != first
    assert loss(6, 8) != first
