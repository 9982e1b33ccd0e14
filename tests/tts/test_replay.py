"""A pass that is recomputed: the same bits from the same machine, and inputs that are checked before they are used."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from made_up_utterances import make, small_config

from common.errors import Code, HocketError
from protocol.agreement import compare
from protocol.calibration import shipped_calibration
from tts.batch import TextBatch, collate
from tts.dropout import PassContext
from tts.partition import partition
from tts.reference import backward_chain, take_gradients
from tts.replay import PassInput, PassOutput, over_wire, replay_pass
from tts.stages import build_stages

CONFIG = small_config()
STAGES = 3
CLASS = "cpu-x86_64-float32"


def weights(stage: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in stage.named_parameters()}


@cache
def chain(wire: str = "fp32", seed: int = 5, microbatch: int = 9) -> tuple[list[PassInput], list[PassOutput]]:
    """Inputs and outputs of every stage for one microbatch, forward and back."""
    stages, batch = build_stages(CONFIG, STAGES, seed=1), collate(make(4, config=CONFIG), CONFIG)
    inputs = [PassInput(batch.side(), batch)]
    for stage in stages[:-1]:
        out = replay_pass(stage, weights(stage), inputs[-1], seed, microbatch, wire=wire)
        inputs.append(PassInput(batch.side(), None, out.hidden))
    outputs: list[PassOutput] = []
    for stage, given in zip(reversed(stages), reversed(inputs), strict=True):
        whole = PassInput(given.side, given.batch, given.hidden, outputs[0].grad if outputs else None)
        outputs.insert(0, replay_pass(stage, weights(stage), whole, seed, microbatch, wire=wire))
        inputs[stage.spec.index] = whole
    return inputs, outputs


def test_a_chain_of_replays_is_bit_equal_to_training() -> None:
    _, outputs = chain()
    stages, batch = build_stages(CONFIG, STAGES, seed=1), collate(make(4, config=CONFIG), CONFIG)
    sums = backward_chain(stages, batch, PassContext(5, 9, train=True))
    assert outputs[-1].ce is not None and np.array_equal(outputs[-1].ce, sums.ce.double().numpy())
    assert outputs[-1].count is not None and outputs[-1].count.tolist() == sums.count.tolist()
    for stage, output in zip(stages, outputs, strict=True):
        trained = take_gradients(stage)
        assert output.gradients is not None and set(output.gradients) == set(trained)
        for name, gradient in output.gradients.items():
            assert torch.equal(gradient, trained[name]), name


def test_the_stage_and_the_weights_given_stay_as_they_are() -> None:
    stage = build_stages(CONFIG, STAGES, seed=1)[2]
    inputs, outputs = chain()
    given = {name: value + 0.5 for name, value in weights(stage).items()}
    before = {name: value.clone() for name, value in given.items()}
    other = replay_pass(stage, given, inputs[2], 5, 9)
    assert all(torch.equal(given[name], before[name]) and not given[name].requires_grad for name in given)
    assert all(parameter.grad is None for parameter in stage.parameters())
    assert other.ce is not None and outputs[2].ce is not None and not np.allclose(other.ce, outputs[2].ce)


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_two_threads_agree_with_one(wire: str) -> None:
    inputs, outputs = chain(wire)
    row = shipped_calibration().row_for(CLASS, CLASS, wire)
    torch.set_num_threads(2)
    for stage, given, output in zip(build_stages(CONFIG, STAGES, seed=1), inputs, outputs, strict=True):
        again = replay_pass(stage, weights(stage), given, 5, 9, wire=wire)
        if output.hidden is not None and again.hidden is not None:
            assert compare(output.hidden, again.hidden, b"s", row.hidden.limits()).ok
        if output.grad is not None and again.grad is not None:
            assert compare(output.grad, again.grad, b"s", row.grad.limits()).ok


@pytest.mark.parametrize("change", ["seed", "microbatch", "weights"])
def test_other_masks_or_weights_are_told_apart(change: str) -> None:
    inputs, outputs = chain()
    stage = build_stages(CONFIG, STAGES, seed=1)[1]
    own = weights(stage)
    if change == "weights":
        own = {name: value * 1.01 for name, value in own.items()}
    again = replay_pass(stage, own, inputs[1], 6 if change == "seed" else 5, 8 if change == "microbatch" else 9)
    row = shipped_calibration().row_for(CLASS, CLASS, "fp32")
    assert outputs[1].hidden is not None and again.hidden is not None
    assert not compare(outputs[1].hidden, again.hidden, b"s", row.hidden.limits()).ok


def test_without_a_gradient_there_is_only_a_forward_pass() -> None:
    inputs, outputs = chain()
    stage = build_stages(CONFIG, STAGES, seed=1)[1]
    once = replay_pass(stage, weights(stage), PassInput(inputs[1].side, None, inputs[1].hidden), 5, 9)
    assert once.gradients is None and once.grad is None
    assert once.hidden is not None and outputs[1].hidden is not None and np.array_equal(once.hidden, outputs[1].hidden)
    assert set(once.arrays()) == {"hidden"} and set(outputs[2].arrays()) == {"ce", "count", "grad"}


def test_results_travel_in_the_encoding_that_is_asked_for() -> None:
    inputs, outputs = chain()
    stage = build_stages(CONFIG, STAGES, seed=1)[1]
    mixed = replay_pass(stage, weights(stage), inputs[1], 5, 9, wire="bf16", grad_wire="int8")
    assert mixed.hidden is not None and outputs[1].hidden is not None and mixed.grad is not None and outputs[1].grad is not None
    assert np.array_equal(mixed.hidden, over_wire(outputs[1].hidden, "bf16"))
    assert np.array_equal(mixed.grad, over_wire(outputs[1].grad, "int8"))
    apart = np.linalg.norm(mixed.grad - outputs[1].grad) / np.linalg.norm(outputs[1].grad)
    assert 0 < apart < 0.02


def test_inputs_are_read_from_an_opening() -> None:
    inputs, _ = chain()
    specs = partition(CONFIG, STAGES)
    for spec, given in zip(specs, inputs, strict=True):
        arrays = given.batch.arrays() if given.batch is not None else {"hidden": given.hidden, **given.side.arrays()}
        read = PassInput.from_arrays(arrays, given.grad, CONFIG, spec)
        assert read.frames == given.frames
        assert (read.hidden is None) == (given.hidden is None)
    batch = inputs[0].batch
    assert batch is not None
    again = TextBatch.from_arrays(batch.arrays(), CONFIG)
    assert all(torch.equal(getattr(again, name), getattr(batch, name)) for name in batch.__dataclass_fields__)


def _damaged(name: str, change: object) -> tuple[dict[str, np.ndarray], np.ndarray | None, int]:
    """Arrays of stage 0 or 1 with one of them changed, the gradient, and the stage."""
    inputs, _ = chain()
    batch = inputs[0].batch
    assert batch is not None and inputs[1].hidden is not None
    early = name in ("phonemes", "word_starts", "n_phonemes", "durations")
    arrays = batch.arrays() if early else {"hidden": inputs[1].hidden, **inputs[1].side.arrays()}
    grad = inputs[1].grad
    if name == "grad":
        grad = np.asarray(change(grad))  # type: ignore[operator]
    else:
        arrays[name] = np.asarray(change(arrays[name]))  # type: ignore[operator]
    return arrays, None if early else grad, 0 if early else 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hidden", lambda x: x[:, 1:]),
        ("hidden", lambda x: x.astype(np.float64)),
        ("hidden", lambda x: np.where(x > 1, np.nan, x).astype(np.float32)),
        ("grad", lambda x: x[:1]),
        ("grad", lambda x: x + np.float32(np.inf)),
        ("codes", lambda x: x + np.uint16(60000)),
        ("n_frames", lambda x: x + 1),
        ("phonemes", lambda x: x + 1000),
        ("phonemes", lambda x: x - 100),
        ("phonemes", lambda x: x[0]),
        ("phonemes", lambda x: x.astype(np.float32)),
        ("word_starts", lambda x: x + 2),
        ("word_starts", lambda x: x[:, :1]),
        ("n_phonemes", lambda x: x + 100),
        ("n_phonemes", lambda x: x * 0),
        ("n_phonemes", lambda x: x[:1]),
        ("durations", lambda x: x + 1),
        ("durations", lambda x: -x),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_refused(name: str, change: object) -> None:
    arrays, grad, stage = _damaged(name, change)
    with pytest.raises(HocketError) as caught:
        PassInput.from_arrays(arrays, grad, CONFIG, partition(CONFIG, STAGES)[stage])
    assert caught.value.code in (Code.INPUT_INVALID, Code.NOT_FINITE)


def test_hidden_states_or_gradients_in_the_wrong_stage_are_refused() -> None:
    inputs, _ = chain()
    specs = partition(CONFIG, STAGES)
    batch, middle = inputs[0].batch, inputs[1]
    assert batch is not None and middle.hidden is not None
    for arrays, grad, spec in (
        (batch.arrays() | {"hidden": middle.hidden}, None, specs[0]),
        (middle.side.arrays(), None, specs[1]),
        ({"hidden": middle.hidden, **middle.side.arrays()}, middle.grad, specs[2]),
        ({}, None, specs[1]),
    ):
        with pytest.raises(HocketError) as caught:
            PassInput.from_arrays(arrays, grad, CONFIG, spec)
        assert caught.value.code is Code.INPUT_INVALID
