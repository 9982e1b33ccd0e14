"""The inner optimizer of one stage, the same code in a worker and in the single-process reference.

It sits behind `step(grads)` and `state()`, so that another one (offloaded, sharded) can take its place.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from common.errors import Code, HocketError

BETAS = (0.9, 0.95)
EPS = 1e-8


class StageOptimizer:
    """AdamW on the parameters of one stage, with the gradient norm clipped over that stage alone.

    Args:
        stage: the module, or its parameters by name.
        weight_decay: of matrices and embeddings; vectors (norms, biases) are not decayed.
        clip_norm: bound of the gradient's L2 norm after division by the frames; 0 or less: not clipped.
    """

    def __init__(self, stage: nn.Module | Mapping[str, nn.Parameter], weight_decay: float, clip_norm: float) -> None:
        named = stage.named_parameters() if isinstance(stage, nn.Module) else stage.items()
        self._parameters = dict(named)
        self._clip_norm = clip_norm
        decayed = [p for p in self._parameters.values() if p.dim() > 1]
        plain = [p for p in self._parameters.values() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=BETAS, eps=EPS, fused=True)

    def step(self, grads: Mapping[str, Tensor], frames: int, lr: float) -> float:
        """Divide, clip, step.

        Args:
            grads: the sum of the gradients of an inner step's microbatches, by parameter name. The tensors are overwritten.
            frames: of those microbatches: the divisor.
            lr: learning rate of this step.

        Returns: the gradient's norm before clipping, after division.

        Raises:
            HocketError: NOT_FINITE when the gradients are not; the parameters are then as they were.
        """
        if frames < 1:
            raise HocketError(Code.INPUT_INVALID, f"an inner step of {frames} frames")
        ordered = []
        for name in self._parameters:
            if name not in grads:
                raise HocketError(Code.INPUT_INVALID, f"no gradient for {name}")
            # Kernels sum in memory order: one layout, one rounding.
            ordered.append(grads[name].contiguous())
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in ordered]))) / frames
        if not norm < float("inf"):
            raise HocketError(Code.NOT_FINITE, "gradients of an inner step")
        scale = 1.0 / frames
        if 0 < self._clip_norm < norm:
            scale *= self._clip_norm / norm
        for parameter, grad in zip(self._parameters.values(), ordered, strict=True):
            parameter.grad = grad.mul_(scale)
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm

    def state(self) -> dict[str, Tensor]:
        """Copy of the moments: `NAME.exp_avg` and `NAME.exp_avg_sq` like the parameter, `NAME.step` a float32 scalar."""
        return {name: value.clone() for name, value in self.live_state().items()}

    def live_state(self) -> dict[str, Tensor]:
        """The moments themselves, under the names of `state`: the next step changes them."""
        return {
            f"{name}.{key}": value.detach()
            for name, parameter in self._parameters.items()
            for key, value in self._adam.state.get(parameter, {}).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over moments that `state` gave; an empty mapping begins anew.

        Raises:
            HocketError: STATE_UNREADABLE when a name or shape does not fit; nothing is changed then.
        """
        loaded: dict[Tensor, dict[str, Tensor]] = {}
        if state:
            for name, parameter in self._parameters.items():
                entry = {}
                for key, shape in (("step", ()), ("exp_avg", parameter.shape), ("exp_avg_sq", parameter.shape)):
                    value = state.get(f"{name}.{key}")
                    if value is None or value.shape != shape:
                        raise HocketError(Code.STATE_UNREADABLE, f"optimizer state of {name}: {key} does not fit")
                    entry[key] = value.to(device=parameter.device, dtype=torch.float32, copy=True)
                loaded[parameter] = entry
        self._adam.state.clear()
        self._adam.state.update(loaded)
