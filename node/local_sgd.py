"""A replica's own copy of its stage: forward and backward passes, accumulation, inner steps, and the round's update.

Every method touches tensors and belongs on the engine's thread. Gradients are sums over frames until a step divides them
once. Each kept graph carries the number of the weights it was computed with: fused optimizers write to parameters behind
autograd's back, so autograd itself would run a backward pass against changed weights without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.errors import Code, HocketError
from node.engine import to_numpy, to_torch
from node.wire import Losses
from tts.batch import Side, TextBatch
from tts.dropout import PassContext
from tts.optimizer import StageOptimizer
from tts.stages import Stage, Sums, run_stage

RAMP_STEPS = 8


def joiner_ramp(steps_taken: int, ramp_steps: int = RAMP_STEPS) -> float:
    """Factor of the learning rate for a joiner whose moments began at zero: rises to 1 over its first steps."""
    return min(1.0, (steps_taken + 1) / (ramp_steps + 1))


@dataclass
class Kept:
    """A forward pass that waits for its backward pass.

    Args:
        weights_number: of the weights it was computed with.
        microbatch_id: of the microbatch.
        hidden: float32 [B, S, D] to send on; None in the last stage.
        losses: known to this stage.
        arrived: the leaf that stands for the received hidden states; None in stage 0.
        roots: what the backward pass starts from: the hidden states sent on, then the local objective, where there are any.
    """

    weights_number: int
    microbatch_id: int
    hidden: np.ndarray | None
    losses: Losses
    arrived: Tensor | None
    roots: list[Tensor]

    def free(self) -> None:
        """Let go of the graph and what it holds."""
        self.roots = []
        self.arrived = None


def losses_of(sums: Sums) -> Losses:
    """Detached sums in float64."""
    auxiliary = {name: (float(total), int(count)) for name, (total, count) in sums.auxiliary.items()}
    return Losses(tuple(sums.ce.detach().double().tolist()), tuple(sums.count.tolist()), auxiliary)


class LocalStage:
    """Weights, optimizer and accumulated gradients of one stage.

    Args:
        stage: the module; its values are replaced by those of the first version adopted.
        ordered: keep the gradients of each microbatch and add them up in id order at the step, so that the sum does not
            depend on the order of arrival; otherwise add them as they come.
        weight_decay, clip_norm: of the optimizer.
    """

    def __init__(self, stage: Stage, *, ordered: bool, weight_decay: float, clip_norm: float) -> None:
        self.stage = stage
        self._parameters = dict(stage.named_parameters())
        self._ordered = ordered
        self._optimizer = StageOptimizer(stage, weight_decay, clip_norm)
        self._by_microbatch: dict[int, list[Tensor]] = {}
        self._sum: list[Tensor] | None = None
        self._base = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self.weights_number = 0
        self.steps_taken = 0

    @property
    def ordered(self) -> bool:
        return self._ordered

    @property
    def base(self) -> Mapping[str, Tensor]:
        """The weights of the version adopted, by parameter name; not to be changed."""
        return self._base

    def adopt(self, weights: Mapping[str, np.ndarray]) -> None:
        """Make a version the base and the weights; the optimizer's moments stay.

        Args:
            weights: float32 by parameter name, exactly the stage's parameters.

        Raises:
            HocketError: CHECKPOINT_INVALID when a name or a shape does not fit; nothing is changed then.
        """
        if set(weights) != set(self._parameters):
            raise HocketError(
                Code.CHECKPOINT_INVALID, f"tensors {sorted(set(weights) ^ set(self._parameters))[:3]} do not fit the stage"
            )
        for name, parameter in self._parameters.items():
            if weights[name].shape != tuple(parameter.shape) or weights[name].dtype != np.float32:
                raise HocketError(
                    Code.CHECKPOINT_INVALID,
                    f"{name} is {weights[name].dtype} {weights[name].shape}, not float32 {tuple(parameter.shape)}",
                )
        self.discard()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self._base[name].copy_(to_torch(weights[name]))
                parameter.copy_(self._base[name])
        self.weights_number += 1

    def forward(self, microbatch_id: int, batch: TextBatch | None, hidden: np.ndarray | None, side: Side, seed: int) -> Kept:
        """Run a training forward pass and keep its graph.

        Args:
            batch: in stage 0. hidden: float32 [B, S, D] in the others. side: travels along.
            seed: of the random masks, which depend on it, the microbatch id and the layer alone.
        """
        arrived = to_torch(hidden).requires_grad_() if hidden is not None else None
        out, sums = run_stage(self.stage, batch, arrived, side, PassContext(seed, microbatch_id, train=True))
        roots = [root for root in (out, sums.objective if sums is not None else None) if root is not None and root.requires_grad]
        sent = to_numpy(out).copy() if out is not None else None
        return Kept(self.weights_number, microbatch_id, sent, losses_of(sums) if sums is not None else Losses(), arrived, roots)

    def backward(self, kept: Kept, grad: np.ndarray | None, *, counts: bool) -> np.ndarray | None:
        """Run the backward pass of a kept graph and free it.

        Args:
            grad: float32 [B, S, D] of the hidden states that were sent on; None in the last stage.
            counts: whether the parameters' gradients are added to this step's sum.

        Returns: float32 [B, S, D], gradient of the received hidden states; None in stage 0.

        Raises:
            HocketError: STALE_GRAPH when the weights have changed since the forward pass.
        """
        if kept.weights_number != self.weights_number:
            kept.free()
            raise HocketError(
                Code.STALE_GRAPH,
                f"microbatch {kept.microbatch_id}: weights {kept.weights_number} forward, {self.weights_number} backward",
            )
        starts: list[Tensor | None] = [None] * len(kept.roots)
        if grad is not None:
            starts[0] = to_torch(grad)
        wanted = [*self._parameters.values(), *([kept.arrived] if kept.arrived is not None else [])]
        gradients: list[Tensor | None] = list(torch.autograd.grad(kept.roots, wanted, starts, allow_unused=True))
        arrived = gradients.pop() if kept.arrived is not None else None
        shape = kept.arrived
        kept.free()
        if counts:
            self._add(kept.microbatch_id, gradients)
        if shape is None:
            return None
        return to_numpy(arrived) if arrived is not None else np.zeros(tuple(shape.shape), np.float32)

    def _add(self, microbatch_id: int, gradients: list[Tensor | None]) -> None:
        """Take a microbatch's gradients into the step's sum; a parameter that took no part has zeros."""
        whole = [
            torch.zeros_like(parameter) if gradient is None else gradient.detach()
            for gradient, parameter in zip(gradients, self._parameters.values(), strict=True)
        ]
        if self._ordered:
            self._by_microbatch[microbatch_id] = whole
        elif self._sum is None:
            self._sum = [gradient.clone() for gradient in whole]
        else:
            torch._foreach_add_(self._sum, whole)

    def _take_sum(self) -> list[Tensor] | None:
        if self._ordered:
            total: list[Tensor] | None = None
            for microbatch_id in sorted(self._by_microbatch):
                gradients = self._by_microbatch.pop(microbatch_id)
                if total is None:
                    total = [gradient.clone() for gradient in gradients]
                else:
                    for whole, gradient in zip(total, gradients, strict=True):
                        whole.add_(gradient)
            return total
        total, self._sum = self._sum, None
        return total

    def step(self, frames: int, lr: float) -> float:
        """Take the inner step: divide the sum by `frames`, clip, AdamW.

        Args:
            frames: whose gradients are in the sum.

        Returns: the gradient norm before clipping.

        Raises:
            HocketError: NOT_FINITE; the sum is gone then and the weights are as they were.
        """
        total = self._take_sum()
        if total is None:
            raise ValueError("an inner step without gradients")
        norm = self._optimizer.step(dict(zip(self._parameters, total, strict=True)), frames, lr)
        self.weights_number += 1
        self.steps_taken += 1
        return norm

    def discard(self) -> None:
        """Forget the gradients accumulated so far."""
        self._by_microbatch.clear()
        self._sum = None

    def evaluate(self, batch: TextBatch | None, hidden: np.ndarray | None, side: Side) -> tuple[np.ndarray | None, Losses]:
        """Run a forward pass on the base weights, without random masks and without a graph; nothing is counted.

        Returns: float32 [B, S, D] to send on (None in the last stage), and the losses known here.
        """
        with torch.no_grad():
            arrived = to_torch(hidden) if hidden is not None else None
            out, sums = run_stage(self.stage.with_weights(self._base), batch, arrived, side, PassContext(train=False))
        return to_numpy(out) if out is not None else None, losses_of(sums) if sums is not None else Losses()

    def pseudo_gradient(self) -> dict[str, np.ndarray]:
        """The round's update: base minus weights, float32 by parameter name."""
        return {name: to_numpy(self._base[name] - parameter.detach()) for name, parameter in self._parameters.items()}

    def weights(self) -> dict[str, np.ndarray]:
        """A copy of the current weights, float32 by parameter name."""
        return {name: to_numpy(parameter).copy() for name, parameter in self._parameters.items()}

    def live_tensors(self) -> dict[str, np.ndarray]:
        """What an inner step changes, not copied where that can be helped.

        Returns: `weights.NAME` as float32 like the parameter, and what `StageOptimizer.state` names, after `moments.`.
        """
        return {name: to_numpy(value) for name, value in self._live().items()}

    def copied_state(self) -> dict[str, np.ndarray]:
        """A copy of `live_tensors` in the memory of the host."""
        return {name: value.to("cpu", torch.float32, copy=True).contiguous().numpy() for name, value in self._live().items()}

    def _live(self) -> dict[str, Tensor]:
        weights = {f"weights.{name}": parameter.detach() for name, parameter in self._parameters.items()}
        return weights | {f"moments.{name}": value for name, value in self._optimizer.live_state().items()}

    def base_arrays(self) -> dict[str, np.ndarray]:
        """The base, float32 by parameter name, not copied where that can be helped: `adopt` writes to it."""
        return {name: to_numpy(value) for name, value in self._base.items()}

    def copied_moments(self) -> dict[str, np.ndarray]:
        """The optimizer's part of `live_tensors`, copied."""
        return {name: value.copy() for name, value in self.live_tensors().items() if name.startswith("moments.")}

    def restore(self, tensors: Mapping[str, np.ndarray], steps_taken: int, *, weights: bool) -> None:
        """Take over what `live_tensors` gave.

        Args:
            steps_taken: until then.
            weights: the weights too; they must descend from the base that is loaded. Otherwise the moments alone.

        Raises:
            HocketError: STATE_UNREADABLE when a moment does not fit; nothing is changed then.
        """
        self.discard()
        prefix = "moments."
        self._optimizer.load_state(
            {name.removeprefix(prefix): to_torch(value) for name, value in tensors.items() if name.startswith(prefix)}
        )
        self.steps_taken = steps_taken
        if weights:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(to_torch(tensors[f"weights.{name}"]))
        self.weights_number += 1

    def forget_moments(self) -> None:
        """Go on like an optimizer that has taken no step; the weights stay."""
        self._optimizer.load_state({})
        self.steps_taken = 0

    def moments(self) -> dict[str, Tensor]:
        """A copy of the optimizer's state."""
        return self._optimizer.state()
