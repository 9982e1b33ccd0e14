"""Lies about passes, for `hocket calibrate`: what would be answered instead of the result, about one tensor at a time.

A lie about the hidden states alone, or about their gradient alone, must be found as well as one about both, so each is told by
itself: in the direction `forward`, `backward`, or, in the last stage, about the `losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tts.calibration_cases import SEED, Arrays, Work
from tts.calibration_ways import precision

DIRECTIONS = {"hidden": "forward", "grad": "backward", "ce": "losses"}
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Lie:
    """What is answered: `name` says how it came about, `direction` about what it is, `arrays` hold that tensor alone."""

    name: str
    direction: str
    arrays: Arrays


def _noise(share: float) -> Change:
    def change(x: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return x + share * x.std() * draw.standard_normal(x.shape)

    return change


def _one_value(value: float) -> Change:
    def change(x: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        changed = x.copy()
        changed.reshape(-1)[draw.integers(x.size)] = value
        return changed

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


ON_ARRAYS: dict[str, Change] = {
    "zero": lambda x, draw: np.zeros_like(x),
    "sign flip": lambda x, draw: -x,
    "times 0.9": lambda x, draw: 0.9 * x,
    "noise 3 %": _noise(0.03),
    "noise 10 %": _noise(0.1),
    "noise 30 %": _noise(0.3),
    "noise 100 %": _noise(1.0),
    "noise 300 %": _noise(3.0),
    "1/16 of the tokens zero": _few_tokens,
    "right only at the largest": _only_the_largest,
    "not a number": _one_value(np.nan),
    "infinite": _one_value(np.inf),
    "constant (mean of the truth)": lambda x, draw: np.full_like(x, x.mean()),
    "constant (mean of each channel)": lambda x, draw: np.broadcast_to(x.mean((0, 1)), x.shape).copy(),
    "times 1.05": lambda x, draw: 1.05 * x,
    "noise 1 %": _noise(0.01),
    "noise 0.1 %": _noise(0.001),
}
"""Lies that need no model: the tensor that came out, changed."""
ON_SUMS = ("zero", "sign flip", "times 0.9", "not a number", "infinite", "times 1.05")
"""Those of ON_ARRAYS that can be told about sums of losses."""


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


LAYER_LEFT_OUT, PASSED_THROUGH, THE_ONE_BEFORE = "a layer left out", "passed through", "the microbatch before"
WITH_WEIGHTS: dict[str, Callable[[Work], dict[str, Tensor]]] = {
    LAYER_LEFT_OUT: _without_a_layer,
    "int4 weights": lambda work: _rounded(work.weights, 7),
    "int8 weights": lambda work: _rounded(work.weights, 127),
    "weights off by 1 %": lambda work: _perturbed(work.weights, 1e-2),
    "weights off by 0.1 %": lambda work: _perturbed(work.weights, 1e-3),
}
"""Lies that compute with other weights."""
IN_DTYPES = {"computed in bfloat16": "bfloat16", "computed in float16": "float16"}
"""Work that is honest but for its dtype, which is told to be another."""
A19 = (
    "zero", "sign flip", "times 0.9", "noise 3 %", "noise 10 %", "noise 30 %", "noise 100 %", "noise 300 %", LAYER_LEFT_OUT,
    PASSED_THROUGH, "1/16 of the tokens zero", "right only at the largest", "not a number", THE_ONE_BEFORE,
)  # fmt: skip
"""The lies that an audit must find out, whatever the class and the wire: those of a replica that lies about a pass."""


def lies(work: Work) -> Iterator[Lie]:
    """What liars would answer instead of `work.ours`."""
    draw = np.random.default_rng([SEED, work.number, work.stage.spec.index])
    for tensor, direction in DIRECTIONS.items():
        truth = work.ours.get(tensor)
        if truth is None:
            continue
        for name, change in ON_ARRAYS.items():
            if tensor != "ce":
                yield Lie(name, direction, {tensor: change(truth.astype(np.float64), draw).astype(np.float32)})
            elif name in ON_SUMS:
                yield Lie(name, direction, {tensor: change(truth, draw)})
        passed_on = getattr(work.inputs, tensor, None)
        if passed_on is not None and len(work.stage.blocks):
            yield Lie(PASSED_THROUGH, direction, {tensor: passed_on})
        if not np.array_equal(work.before[tensor], truth):
            yield Lie(THE_ONE_BEFORE, direction, {tensor: np.resize(work.before[tensor], truth.shape)})
    for name, weights in WITH_WEIGHTS.items():
        if name != LAYER_LEFT_OUT or len(work.stage.blocks):
            yield from _each(name, work.run(weights(work))[0])
    for name, dtype in IN_DTYPES.items():
        with precision("cpu", dtype):
            made, _ = work.run()
        yield from _each(name, made)


def _each(name: str, made: Arrays) -> Iterator[Lie]:
    """One lie a tensor of what was computed otherwise."""
    for tensor, direction in DIRECTIONS.items():
        if tensor in made:
            yield Lie(name, direction, {tensor: made[tensor]})
