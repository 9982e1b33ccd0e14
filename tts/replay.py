"""A stage's work done again: one pass of a microbatch, with other hands but the same weights, random masks and inputs.

A witness and a referee compare what comes out here with what a replica says came out. It is close, not equal: another machine
adds in another order. `protocol.agreement` says how close is close enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.errors import Code, HocketError
from protocol.tensors import decode, encode
from tts.batch import Side, TextBatch, hidden_shape, own_tensor
from tts.config import ModelConfig, StageSpec
from tts.dropout import PassContext
from tts.stages import Stage, run_stage

HIDDEN, GRADIENT = "hidden", "grad"


@dataclass(frozen=True)
class PassInput:
    """What a pass of one microbatch starts from.

    Args:
        side: what travels along.
        batch: in stage 0; None in the others.
        hidden: float32 [B, S, D] as decoded from the wire; None in stage 0.
        grad: float32 [B, S, D] that the next stage returned, as decoded; None in the last stage, and where only the forward pass
            is wanted.
    """

    side: Side
    batch: TextBatch | None = None
    hidden: np.ndarray | None = None
    grad: np.ndarray | None = None

    @property
    def frames(self) -> int:
        """Frames of the microbatch, padding not counted."""
        return self.side.frames

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], grad: np.ndarray | None, config: ModelConfig, spec: StageSpec
    ) -> PassInput:
        """Read the tensors of an opening, each checked against the model before it is used.

        Args:
            arrays: the batch's arrays in stage 0, else `hidden` and the side arrays. grad: that the next stage returned, if any.

        Raises:
            HocketError: INPUT_INVALID, NOT_FINITE.
        """
        own = dict(arrays)
        hidden = own.pop(HIDDEN, None)
        batch = TextBatch.from_arrays(own, config) if spec.is_first else None
        side = batch.side() if batch is not None else Side.from_arrays(own, config)
        if (hidden is None) != spec.is_first or (grad is not None and spec.is_last):
            raise HocketError(Code.INPUT_INVALID, f"hidden states or a gradient too many or missing for stage {spec.index}")
        for name, array in ((HIDDEN, hidden), (GRADIENT, grad)):
            if array is None:
                continue
            if array.dtype != np.float32 or array.shape != hidden_shape(config, side):
                shape = hidden_shape(config, side)
                raise HocketError(Code.INPUT_INVALID, f"{name} is {array.dtype} {array.shape}, not float32 {shape}")
            if not np.isfinite(array).all():
                raise HocketError(Code.NOT_FINITE, name)
        return cls(side, batch, hidden, grad)


@dataclass(frozen=True)
class PassOutput:
    """What comes out of a pass.

    Args:
        hidden: float32 [B, S, D] as the next stage decodes it; None in the last stage.
        ce: float64 [K], sum of the cross-entropy per codebook; count: int64 [K], codes in it; None but in the last stage.
        grad: float32 [B, S, D], gradient of what came in, as the stage before decodes it; None in stage 0 and without a backward
            pass.
        gradients: of the parameters by name, not divided by anything; None without a backward pass.
    """

    hidden: np.ndarray | None
    ce: np.ndarray | None
    count: np.ndarray | None
    grad: np.ndarray | None
    gradients: dict[str, Tensor] | None

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors of an opening: `hidden`, or `ce` and `count`; and `grad`."""
        named = {HIDDEN: self.hidden, "ce": self.ce, "count": self.count, GRADIENT: self.grad}
        return {name: array for name, array in named.items() if array is not None}


def over_wire(array: np.ndarray, encoding: str) -> np.ndarray:
    """A float32 array as it is after a journey in one of `protocol.tensors.ENCODINGS`.

    Raises:
        HocketError: NOT_FINITE.
    """
    travelled = encode("tensor", array, encoding)
    return decode(travelled.head, travelled.data, own=True)


def replay_pass(
    stage: Stage,
    weights: Mapping[str, Tensor],
    inputs: PassInput,
    seed: int,
    microbatch_id: int,
    *,
    wire: str = "fp32",
    grad_wire: str = "",
) -> PassOutput:
    """Run the forward pass of a microbatch, and the backward pass where its gradient is at hand.

    Args:
        stage: gives the computation; its own weights are neither used nor changed.
        weights: float32 by parameter name, on the stage's device; not changed.
        seed: of the run's random masks.
        wire: the encoding in which the hidden states travel on. grad_wire: in which their gradient travels back; the same where
            it is empty.

    Raises:
        HocketError: NOT_FINITE when the results are not.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    device = next(iter(leaves.values())).device
    arrived = own_tensor(inputs.hidden).to(device).requires_grad_() if inputs.hidden is not None else None
    context = PassContext(seed, microbatch_id, train=True)
    backward = inputs.grad is not None or stage.spec.is_last
    with torch.set_grad_enabled(backward):
        out, sums = run_stage(
            stage.with_weights(leaves), _batch_on(inputs.batch, device), arrived, _side_on(inputs.side, device), context
        )
    last = sums if stage.spec.is_last else None
    hidden = over_wire(_array(out), wire) if out is not None else None
    ce = last.ce.detach().double().cpu().numpy() if last is not None else None
    count = last.count.cpu().numpy() if last is not None else None
    if not backward:
        return PassOutput(hidden, ce, count, None, None)
    roots: list[Tensor] = []
    starts: list[Tensor | None] = []
    if out is not None and inputs.grad is not None:
        roots, starts = [out], [own_tensor(inputs.grad).to(device)]
    if sums is not None and sums.objective.requires_grad:
        roots, starts = [*roots, sums.objective], [*starts, None]
    wanted = [*leaves.values(), *([arrived] if arrived is not None else [])]
    found: list[Tensor | None] = list(torch.autograd.grad(roots, wanted, starts, allow_unused=True))
    own = found.pop() if arrived is not None else None
    grad = None
    if arrived is not None:
        grad = over_wire(_array(own if own is not None else torch.zeros_like(arrived)), grad_wire or wire)
    gradients = {
        name: torch.zeros_like(leaf) if gradient is None else gradient.detach()
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }
    return PassOutput(hidden, ce, count, grad, gradients)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float32).contiguous().cpu().numpy()


def _side_on(side: Side, device: torch.device) -> Side:
    return Side(**{name: getattr(side, name).to(device) for name in side.__dataclass_fields__})


def _batch_on(batch: TextBatch | None, device: torch.device) -> TextBatch | None:
    if batch is None:
        return None
    return TextBatch(**{name: getattr(batch, name).to(device) for name in batch.__dataclass_fields__})
