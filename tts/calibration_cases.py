"""What `hocket calibrate` measures: passes of a model's stages, honest ways to compute them otherwise, and lies about them.

An honest variant changes what a machine is free to choose: threads, kernels, memory layout, how the batch is cut and padded. A
lie changes the result. Both give the same kind of thing, arrays by name, to be compared with what one plain thread gives.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from protocol.agreement import Limits, compare, compare_sums
from tts.batch import Side, TextBatch, collate
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
        stage, weights: of it. number: of the microbatch. ours: by name; `before` is what the stage made of the microbatch before.
        calm: whether no random mask is drawn, so that the batch can be cut otherwise.
    """

    stage: Stage
    weights: dict[str, Tensor]
    number: int
    inputs: PassInput
    ours: Arrays
    gradients: Gradients
    before: Arrays
    calm: bool

    def run(self, weights: Mapping[str, Tensor] | None = None, inputs: PassInput | None = None) -> Made:
        output = replay_pass(self.stage, weights or self.weights, inputs or self.inputs, SEED, self.number)
        return output.arrays(), output.gradients or {}


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
            yield Work(stage, weights[index], number, inputs[index], made[index], gradients, before, calm)
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


# ---- honest variants ------------------------------------------------------------------------------------------------


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _plain_kernels() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a setting for GPUs that comes along
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _half() -> AbstractContextManager[None]:
    return torch.autocast("cpu", torch.bfloat16)


def ways(dtype: str) -> dict[str, Callable[[Work], Made]]:
    """Honest ways to compute a pass in `float32` or `bfloat16`, by name."""
    kind = _half if dtype == "bfloat16" else nullcontext

    def under(context: Callable[[], AbstractContextManager[object]]) -> Callable[[Work], Made]:
        def run(work: Work) -> Made:
            with kind(), context():
                return work.run()

        return run

    def other_layout(work: Work) -> Made:
        turned = {name: value.T.contiguous().T if value.dim() == 2 else value for name, value in work.weights.items()}
        with kind():
            return work.run(turned)

    def row_by_row(work: Work) -> Made:
        with kind():
            return _row_by_row(work)

    found = {
        "two threads": under(lambda: threads(2)),
        "plain kernels": under(_plain_kernels),
        "attention by definition": under(lambda: sdpa_kernel(SDPBackend.MATH)),
        "weights laid out otherwise": other_layout,
        "one utterance at a time": row_by_row,
    }
    return found | ({"as it comes": under(nullcontext)} if dtype == "bfloat16" else {})


def _row_by_row(work: Work) -> Made:
    """Each utterance in a batch of its own, without padding; nothing for passes whose masks span the batch."""
    if not work.calm:
        return {}, {}
    runs = [work.run(inputs=_row(work.inputs, row)) for row in range(len(work.inputs.side.n_frames))]
    parts = [arrays for arrays, _ in runs]
    gradients = {name: torch.stack([each[name] for _, each in runs]).sum(0) for name in work.gradients}
    joined: Arrays = {}
    for name, whole in work.ours.items():
        if name in ("ce", "count"):
            joined[name] = np.sum([part[name] for part in parts], axis=0)
            continue
        # What lies behind an utterance's end is no result; it stands there as it does in ours.
        joined[name] = whole.copy()
        for row, part in enumerate(parts):
            joined[name][row, : part[name].shape[1]] = part[name][0]
    return joined, gradients


def _row(inputs: PassInput, row: int) -> PassInput:
    frames = int(inputs.side.n_frames[row])
    steps = frames + inputs.side.codes.shape[1]

    def cut(part: Side | TextBatch) -> dict[str, Tensor]:
        own = {one.name: getattr(part, one.name)[row : row + 1] for one in fields(part)}
        own["codes"] = own["codes"][:, :, :frames].contiguous()
        for name in ("phonemes", "word_starts", "durations"):
            if name in own:
                own[name] = own[name][:, : int(own["n_phonemes"][0])].contiguous()
        return own

    def states(array: np.ndarray | None) -> np.ndarray | None:
        return array[row : row + 1, :steps] if array is not None else None

    batch = TextBatch(**cut(inputs.batch)) if inputs.batch is not None else None
    return PassInput(Side(**cut(inputs.side)), batch, states(inputs.hidden), states(inputs.grad))


# ---- lies -----------------------------------------------------------------------------------------------------------


def _noise(share: float) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    def change(x: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return x + share * x.std() * draw.standard_normal(x.shape)

    return change


def _few_tokens(x: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    changed = x.reshape(-1, x.shape[-1]).copy()
    changed[draw.permutation(len(changed))[: max(1, len(changed) // 16)]] = 0
    return changed.reshape(x.shape)


def _only_the_largest(x: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Right at the 128 largest values of each 32 tokens, noise of the right size elsewhere."""
    flat = x.reshape(-1)
    block = 32 * x.shape[-1]
    made = draw.standard_normal(flat.size) * x.std()
    for start in range(0, flat.size, block):
        part = flat[start : start + block]
        keep = np.argsort(-np.abs(part))[:128]
        made[start + keep] = part[keep]
    return made.reshape(x.shape)


ON_ARRAYS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "zero": lambda x, draw: np.zeros_like(x),
    "constant (mean of the truth)": lambda x, draw: np.full_like(x, x.mean()),
    "constant (mean of each channel)": lambda x, draw: np.broadcast_to(x.mean((0, 1)), x.shape).copy(),
    "sign flip": lambda x, draw: -x,
    "times 0.9": lambda x, draw: 0.9 * x,
    "times 1.05": lambda x, draw: 1.05 * x,
    "noise 3 %": _noise(0.03),
    "noise 10 %": _noise(0.1),
    "noise 30 %": _noise(0.3),
    "1/16 of the tokens zero": _few_tokens,
    "right only at the largest": _only_the_largest,
}
"""Lies that need no model: the arrays that came out, changed."""


def _rounded(weights: Mapping[str, Tensor], levels: int) -> dict[str, Tensor]:
    """Symmetric integer weights, one scale a row."""
    made = {}
    for name, value in weights.items():
        scale = value.abs().amax(-1, keepdim=True).clamp_min(1e-12) / levels if value.dim() > 1 else None
        made[name] = (value / scale).round() * scale if scale is not None else value
    return made


def _perturbed(weights: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(SEED)
    return {name: value * (1 + share * torch.randn(value.shape, generator=draw)) for name, value in weights.items()}


def _without_a_layer(work: Work) -> dict[str, Tensor]:
    """A block whose branches add nothing: as good as skipped."""
    block = next(iter(work.stage.blocks), None)
    ends = (f"blocks.{block}.out.weight", f"blocks.{block}.down.weight")
    return {name: torch.zeros_like(value) if name in ends else value for name, value in work.weights.items()}


WITH_WEIGHTS: dict[str, Callable[[Work], dict[str, Tensor]]] = {
    "int8 weights": lambda work: _rounded(work.weights, 127),
    "int4 weights": lambda work: _rounded(work.weights, 7),
    "weights off by 0.1 %": lambda work: _perturbed(work.weights, 1e-3),
    "weights off by 1 %": lambda work: _perturbed(work.weights, 1e-2),
    "a layer left out": _without_a_layer,
}
"""Lies that compute with other weights."""


def lies(work: Work) -> Iterator[tuple[str, Arrays]]:
    """What liars would answer instead of `work.ours`: hidden states and gradients; a lie about either is to be found."""
    draw = np.random.default_rng([SEED, work.number, work.stage.spec.index])
    tensors = {name: array for name, array in work.ours.items() if name in ("hidden", "grad")}
    for lie, change in ON_ARRAYS.items():
        yield lie, {name: change(array.astype(np.float64), draw).astype(np.float32) for name, array in tensors.items()}
    for lie, weights in WITH_WEIGHTS.items():
        if lie == "a layer left out" and not len(work.stage.blocks):
            continue
        made, _ = work.run(weights(work))
        yield lie, {name: made[name] for name in tensors}
    if work.inputs.hidden is not None and "hidden" in tensors and len(work.stage.blocks):
        yield "passed through", {"hidden": work.inputs.hidden}
    if work.inputs.grad is not None and "grad" in tensors and len(work.stage.blocks):
        yield "passed back", {"grad": work.inputs.grad}
    if tensors and any(not np.array_equal(work.before[name], array) for name, array in tensors.items()):
        yield "the microbatch before", {name: np.resize(work.before[name], array.shape) for name, array in tensors.items()}


def travelled(ours: Arrays, theirs: Arrays, wire: str) -> dict[str, dict[str, float]]:
    """Statistics of results as they are after a journey, by tensor, of those that `theirs` has."""
    found = {}
    for name in theirs:
        if name == "ce":
            found[name] = compare_sums(ours[name], theirs[name], math.inf).statistics
        elif name != "count":
            own, their = over_wire(ours[name], wire), over_wire(theirs[name], wire)
            found[name] = compare(own, their, name.encode(), _OPEN).statistics
    return found
