"""An inner step done again: from the state before it and the microbatches' inputs to the state after it.

What is compared, and what is not: Adam divides each gradient by its own size, so where a gradient is next to nothing, two honest
machines may step in opposite directions. Weights after a recomputed step would say little. So the gradients are recomputed and
compared, within tolerances, with what the optimizer's moments took in; and from the opened moments on to the weights there is
only one formula, free of sums, which holds to a few roundings on every machine.

Moments are bound coordinate by coordinate as well: a second moment that is made too small somewhere would let a tiny first
moment move that weight without bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from common.errors import Code, HocketError
from protocol.calibration import StepLimits
from protocol.commitments import MOMENTS, WEIGHTS
from protocol.openings import OpenedStep
from tts.batch import own_tensor
from tts.optimizer import BETAS, EPS
from tts.replay import GRADIENT, PassInput, replay_pass
from tts.stages import Stage

ROUNDINGS = 4 * 2.0**-23
"""Relative error of a float32 formula of a few operations."""
UNDERFLOW = 1e-15
"""First moments below this may stand beside a second moment that became zero; over EPS they move nothing."""
OLD_SHARE = 1e-3
"""What a step adds to a moment is not looked at more closely than this share of what was there, for its roundings."""
UNBOUNDED = 1e30
"""Stands for infinity and NaN in statistics, which travel as JSON."""
MOMENT_BOUND = (1 - BETAS[0]) / math.sqrt((1 - BETAS[1]) * (1 - BETAS[0] ** 2 / BETAS[1]))
"""|m| <= MOMENT_BOUND * sqrt(v) after any gradients, by the inequality of Cauchy and Schwarz."""


@dataclass(frozen=True)
class StepSettings:
    """What the run, not the prover, says of a step.

    Args:
        seed: of random masks. weight_decay, clip_norm: as of `StageOptimizer`.
        frames: divisor, and lr: learning rate, that were committed to.
    """

    seed: int
    weight_decay: float
    clip_norm: float
    frames: int
    lr: float


@dataclass(frozen=True)
class StepVerdict:
    """What a replay found. `reason` begins with one word: what part of the step it is about."""

    ok: bool
    reason: str
    statistics: dict[str, float] = field(default_factory=dict)


def replay_step(opening: OpenedStep, stage: Stage, settings: StepSettings, limits: StepLimits) -> StepVerdict:
    """Judge an opened inner step.

    Args:
        opening: whose digests are checked by the caller. stage: gives the computation; its weights are not used.
        limits: of this device class and the prover's.
    """
    try:
        before, after = _State.read(opening.before, stage), _State.read(opening.after, stage)
        inputs = {
            identifier: PassInput.from_arrays(
                one.input.arrays, one.gradient_in.arrays.get(GRADIENT), stage.config, stage.spec
            )
            for identifier, one in sorted(opening.passes.items())
        }  # fmt: skip
    except HocketError as error:
        return StepVerdict(False, f"input: {error.line()}")
    if any(one.grad is None and not stage.spec.is_last for one in inputs.values()) or not inputs:
        return StepVerdict(False, "input: a microbatch without the gradient that came back, or no microbatch")
    if sum(one.frames for one in inputs.values()) != settings.frames:
        frames = sum(one.frames for one in inputs.values())
        return StepVerdict(False, f"input: microbatches of {frames} frames in a step of {settings.frames}")
    if after.step != before.step + 1:
        return StepVerdict(False, f"moments: step {before.step:g} of the optimizer is followed by {after.step:g}")
    try:
        gradients = _gradients(stage, before, inputs, settings)
    except HocketError as error:
        return StepVerdict(False, f"gradients: {error.line()}")
    return _judge(before, after, gradients, settings, limits)


@dataclass(frozen=True)
class _State:
    """Weights and moments by parameter name, float32. Without moments (a fresh optimizer) they are zero."""

    weights: dict[str, np.ndarray]
    first: dict[str, np.ndarray]
    second: dict[str, np.ndarray]
    step: float

    @classmethod
    def read(cls, tensors: Mapping[str, np.ndarray], stage: Stage) -> _State:
        shapes = stage.shapes()
        wanted = {f"{WEIGHTS}{name}": shape for name, shape in shapes.items()}
        fresh = not any(name.startswith(MOMENTS) for name in tensors)
        for name, shape in {} if fresh else shapes.items():
            wanted |= {
                f"{MOMENTS}{name}.exp_avg": shape, f"{MOMENTS}{name}.exp_avg_sq": shape, f"{MOMENTS}{name}.step": (),
            }  # fmt: skip
        if set(wanted) != set(tensors):
            odd = sorted(set(wanted) ^ set(tensors))[:3]
            raise HocketError(Code.INPUT_INVALID, f"tensors missing or too many in an opened state: {odd}")
        for name, shape in wanted.items():
            if tensors[name].shape != shape or tensors[name].dtype != np.float32:
                found = f"{tensors[name].dtype} {tensors[name].shape}"
                raise HocketError(Code.INPUT_INVALID, f"{name} is {found}, not float32 {shape}")
            if not np.isfinite(tensors[name]).all():
                raise HocketError(Code.NOT_FINITE, name)
        weights = {name: tensors[f"{WEIGHTS}{name}"] for name in shapes}
        if fresh:
            zero = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            return cls(weights, zero, zero, 0.0)
        steps = {float(tensors[f"{MOMENTS}{name}.step"]) for name in shapes}
        second = {name: tensors[f"{MOMENTS}{name}.exp_avg_sq"] for name in shapes}
        if len(steps) != 1 or any(bool((one < 0).any()) for one in second.values()):
            raise HocketError(Code.INPUT_INVALID, "the optimizer's steps differ, or a second moment is negative")
        return cls(weights, {name: tensors[f"{MOMENTS}{name}.exp_avg"] for name in shapes}, second, steps.pop())


def _gradients(
    stage: Stage, before: _State, inputs: Mapping[int, PassInput], settings: StepSettings
) -> dict[str, np.ndarray]:
    """The step's gradients, divided and clipped, float64 by parameter name."""
    weights = {name: own_tensor(value) for name, value in before.weights.items()}
    total: dict[str, Tensor] = {}
    for identifier, one in inputs.items():
        found = replay_pass(stage, weights, one, settings.seed, identifier).gradients
        assert found is not None, "a pass with a gradient has gradients"
        for name, gradient in found.items():
            total[name] = total[name].add_(gradient) if name in total else gradient.clone()
    sums = {name: value.double().numpy() / settings.frames for name, value in total.items()}
    norm = math.sqrt(sum(float(np.square(value).sum()) for value in sums.values()))
    if not math.isfinite(norm):
        raise HocketError(Code.NOT_FINITE, "gradients of an opened step")
    scale = settings.clip_norm / norm if 0 < settings.clip_norm < norm else 1.0
    return {name: value * scale for name, value in sums.items()}


def _judge(
    before: _State, after: _State, gradients: Mapping[str, np.ndarray], settings: StepSettings, limits: StepLimits
) -> StepVerdict:
    """Compare the state after the step with what follows from the state before it and the gradients."""
    worst: dict[str, tuple[float, str]] = {}

    def note(statistic: str, value: float, name: str) -> None:
        if not value <= worst.get(statistic, (-1.0, ""))[0]:
            worst[statistic] = (value if value < UNBOUNDED else UNBOUNDED, name)

    for name, gradient in gradients.items():
        for moment, share, added, old, new in (
            ("first", 1 - BETAS[0], gradient, before.first[name], after.first[name]),
            ("second", 1 - BETAS[1], np.square(gradient), before.second[name], after.second[name]),
        ):
            tensor, value = moment_distances(share, added, old.astype(np.float64), new.astype(np.float64))
            note(f"{moment}_tensor", tensor, name)
            note(f"{moment}_value", value, name)
        note("second_kept", _lost(before.second[name], after.second[name]), name)
        note("moments_fit", _misfit(after.first[name], after.second[name]), name)
        note("weights", _weight_distance(before, after, name, settings), name)
    bounds = {
        "first_tensor": limits.tensor, "second_tensor": 2 * limits.tensor, "first_value": limits.value,
        "second_value": 2 * limits.value, "second_kept": 1.0, "moments_fit": 1.0, "weights": 1.0,
    }  # fmt: skip
    statistics = {statistic: value for statistic, (value, _) in worst.items()}
    over = [statistic for statistic, bound in bounds.items() if not statistics[statistic] <= bound]
    if not over:
        return StepVerdict(True, "within the limits", statistics)
    first = over[0]
    kind = "weights" if first == "weights" else "moments"
    return StepVerdict(
        False, f"{kind}: {first} of {worst[first][1]} is {worst[first][0]:.3g}, at most {bounds[first]:.3g}", statistics
    )


def moment_distances(share: float, added: np.ndarray, old: np.ndarray, new: np.ndarray) -> tuple[float, float]:
    """How far a moment after the step is from the one expected, over what the step added: of the whole tensor, of a value."""
    expected = (1 - share) * old + share * added
    apart = np.abs(new - expected)
    whole = share * float(np.linalg.norm(added)) + OLD_SHARE * float(np.linalg.norm(expected))
    if whole == 0.0:
        wrong = math.inf if apart.any() else 0.0
        return wrong, wrong
    typical = whole / math.sqrt(max(1, added.size))
    single = share * np.abs(added) + OLD_SHARE * np.abs(expected) + typical
    return float(np.linalg.norm(apart)) / whole, float((apart / single).max(initial=0.0))


def _lost(old: np.ndarray, new: np.ndarray) -> float:
    """A step cannot shrink a second moment by more than its decay: above 1 where it did, by more than roundings."""
    least = BETAS[1] * old.astype(np.float64) * (1 - ROUNDINGS)
    return float(np.where(new < least - np.finfo(np.float32).tiny, 2.0, 0.0).max(initial=0.0))


def _misfit(first: np.ndarray, second: np.ndarray) -> float:
    """Above 1 where a first moment is larger than any gradients could have made it beside this second moment."""
    bound = MOMENT_BOUND * (1 + 1e-3) * np.sqrt(second.astype(np.float64)) + UNDERFLOW
    return float((np.abs(first.astype(np.float64)) / bound).max(initial=0.0))


def _weight_distance(before: _State, after: _State, name: str, settings: StepSettings) -> float:
    """|w - formula| over what roundings can do: AdamW (Loshchilov & Hutter 2019) from the opened moments."""
    old = before.weights[name].astype(np.float64)
    decay = settings.weight_decay if old.ndim > 1 else 0.0
    correction = math.sqrt(1 - BETAS[1] ** after.step)
    denominator = np.sqrt(after.second[name].astype(np.float64)) / correction + EPS
    moved = settings.lr / (1 - BETAS[0] ** after.step) * after.first[name].astype(np.float64) / denominator
    expected = old * (1 - settings.lr * decay) - moved
    allowed = ROUNDINGS * (np.abs(old) + 4 * np.abs(moved)) + np.finfo(np.float32).tiny
    return float((np.abs(after.weights[name].astype(np.float64) - expected) / allowed).max(initial=0.0))


def step_tensors(stage: Stage, moments: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """A stage's weights and an optimizer's moments under the names of an opened state, copied."""
    weights = {f"{WEIGHTS}{name}": value.detach().cpu().numpy().copy() for name, value in stage.named_parameters()}
    return weights | {f"{MOMENTS}{name}": value.to(torch.float32).cpu().numpy().copy() for name, value in moments.items()}
