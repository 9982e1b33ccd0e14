"""What `hocket calibrate` measures: passes of a model's stages, and the comparison of two results of one.

A pass is computed once by one plain thread, as the referee does. `tts.calibration_ways` computes it otherwise and honestly, and
`tts.calibration_lies` lies about it. Both give the same kind of thing, arrays by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from common.errors import HocketError
from protocol.agreement import Limits, compare, compare_sums
from tts.batch import TextBatch, collate
from tts.config import ModelConfig
from tts.reference import InnerSettings, ReferenceTrainer
from tts.replay import PassInput, PassOutput, over_wire, replay_pass
from tts.stages import Stage, build_stages

SEED = 11
_OPEN = Limits(math.inf, math.inf, math.inf, math.inf)
Arrays = dict[str, np.ndarray]
Gradients = dict[str, Tensor]
Made = tuple[Arrays, Gradients]
"""What came out of a pass, by name, and the gradients of its parameters; empty where a way does not fit a pass."""


@dataclass(frozen=True)
class Utterance:
    """Made up: what `collate` reads of one."""

    id: str
    phonemes: NDArray[np.int64]
    durations: NDArray[np.int64]
    word_starts: NDArray[np.int64]
    codes: NDArray[np.int64]
    n_frames: int
    speaker_embedding: NDArray[np.float32]
    language: str = "und"


def made_up(number: int, config: ModelConfig) -> Utterance:
    """Utterance `number`: a function of it."""
    draw = np.random.default_rng([SEED, number])
    length = int(draw.integers(8, 40))
    durations = 1 + draw.poisson(3.0, length)
    return Utterance(
        str(number),
        draw.integers(1, config.n_phonemes, length),
        durations,
        (draw.random(length) < 0.3).astype(np.int64),
        draw.integers(0, config.codebook_size, (config.n_codebooks, int(durations.sum()))),
        int(durations.sum()),
        draw.standard_normal(config.speaker_dim).astype(np.float32),
    )


@dataclass(frozen=True)
class Work:
    """A pass of one stage, and what one plain thread makes of it.

    Args:
        stage, stages, weights: of it, and of how many. number: of the microbatch.
        ours: by name. before: what the stage made of the microbatch before.
        calm: whether no random mask is drawn, so that the batch can be cut otherwise.
    """

    stage: Stage
    stages: int
    weights: dict[str, Tensor]
    number: int
    inputs: PassInput
    ours: Arrays
    gradients: Gradients
    before: Arrays
    calm: bool

    def run(self, weights: Mapping[str, Tensor] | None = None, inputs: PassInput | None = None) -> Made:
        output = replay_pass(self.stage, weights or self.weights, inputs or self.inputs, SEED, self.number)
        return output.arrays(), {name: value.cpu() for name, value in (output.gradients or {}).items()}


def works(config: ModelConfig, n: int, numbers: Iterable[int], *, rows: int = 3, train_steps: int = 6) -> Iterator[Work]:
    """Passes of all stages for the microbatches of these numbers: fresh and trained weights, with and without random masks."""
    quiet = config.model_copy(update={"dropout": 0.0, "cond_dropout": 0.0, "code_corruption": 0.0})
    trainer = ReferenceTrainer(config, n, InnerSettings(seed=SEED), seed=SEED)
    for step in range(train_steps):
        batch = collate([made_up(10**6 + rows * step + row, config) for row in range(rows)], config)
        trainer.inner_step([(10**6 + step, batch)])
    trained = [_weights(stage) for stage in trainer.stages]
    fresh = [_weights(stage) for stage in build_stages(config, n, seed=SEED)]
    stages = {True: build_stages(quiet, n, seed=SEED), False: build_stages(config, n, seed=SEED)}
    previous: dict[tuple[int, bool], list[Arrays]] = {}
    for number in numbers:
        batch = collate([made_up(rows * number + row, config) for row in range(rows)], config)
        kind = (number % 2, number % 4 > 1)
        weights, calm = (trained if kind[0] else fresh), kind[1]
        inputs, outputs = chain(stages[calm], weights, batch, number)
        made = [output.arrays() for output in outputs]
        for index, stage in enumerate(stages[calm]):
            before = previous.get(kind, made)[index]
            gradients = outputs[index].gradients or {}
            yield Work(stage, n, weights[index], number, inputs[index], made[index], gradients, before, calm)
        previous[kind] = made


def chain(
    stages: Sequence[Stage], weights: Sequence[dict[str, Tensor]], batch: TextBatch, number: int
) -> tuple[list[PassInput], list[PassOutput]]:
    """A microbatch through all stages, forward and back: what went in and came out of each."""
    side = batch.side()
    inputs = [PassInput(side, batch)]
    for stage, own in zip(stages[:-1], weights, strict=False):
        inputs.append(PassInput(side, None, replay_pass(stage, own, inputs[-1], SEED, number).hidden))
    outputs: list[PassOutput] = []
    for index in reversed(range(len(stages))):
        inputs[index] = replace(inputs[index], grad=outputs[0].grad if outputs else None)
        outputs.insert(0, replay_pass(stages[index], weights[index], inputs[index], SEED, number))
    return inputs, outputs


def _weights(stage: Stage) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in stage.named_parameters()}


REFUSED = dict.fromkeys(("median", "maximum", "norm", "projection", "loss"), math.inf)
"""The statistics of a tensor that does not get as far as a comparison."""


def travelled(ours: Arrays, theirs: Arrays, wire: str) -> dict[str, dict[str, float]]:
    """Statistics of results as they are after a journey, by tensor, of those that `theirs` has."""
    found = {}
    for name in theirs:
        if name == "count":
            continue
        try:
            if name == "ce":
                agreement = compare_sums(ours[name], theirs[name], math.inf)
            else:
                agreement = compare(over_wire(ours[name], wire), over_wire(theirs[name], wire), name.encode(), _OPEN)
            found[name] = agreement.statistics or REFUSED
        except HocketError:  # it cannot even be sent
            found[name] = REFUSED
    return found
