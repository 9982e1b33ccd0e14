"""Random masks that depend on nothing but (seed, microbatch id, layer name).

So a microbatch that is computed again, on another replica or in another process, meets the same masks, and a model cut into
stages draws the same as the whole one. On CPUs the bytes come from a counter-based generator (Philox); on other devices from
the device's own generator, seeded in the same manner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tts.draws import draw_key


@dataclass(frozen=True)
class PassContext:
    """What a forward pass needs beside tensors.

    Args:
        seed: of the round's random masks.
        microbatch_id: of the microbatch, unique in the run.
        train: False switches every random mask off.
    """

    seed: int = 0
    microbatch_id: int = 0
    train: bool = False


def random_bytes(shape: tuple[int, ...], key: int, device: torch.device) -> Tensor:
    """Uniform uint8 of `shape`, a function of (shape, key) and of the kind of device."""
    count = 1
    for size in shape:
        count *= size
    if device.type == "cpu":
        words = np.random.Philox(key=key).random_raw(-(-count // 8))
        return torch.from_numpy(words.view(np.uint8))[:count].view(shape)
    generator = torch.Generator(device=device).manual_seed(key & (2**63 - 1))
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)


def uniform(shape: tuple[int, ...], ctx: PassContext, layer: str, device: torch.device) -> Tensor:
    """float32 in [0, 1) of `shape`, for draws that are few: the same values on every device."""
    generator = np.random.Generator(np.random.Philox(key=draw_key(ctx.seed, ctx.microbatch_id, layer)))
    return torch.from_numpy(generator.random(shape, dtype=np.float32)).to(device)


def keep_mask(like: Tensor, p: float, ctx: PassContext, layer: str) -> Tensor | None:
    """Scaled mask of a dropout layer: 0, or 1 / (share kept), in the shape and dtype of `like`; None when it would do nothing.

    `p` is rounded to a multiple of 1/256, so that one random byte decides; the scale is that of the rounded share.
    """
    dropped = round(p * 256)
    if not ctx.train or dropped == 0:
        return None
    drawn = random_bytes(tuple(like.shape), draw_key(ctx.seed, ctx.microbatch_id, layer), like.device)
    return drawn.ge(dropped).to(like.dtype).mul_(256 / (256 - dropped))


def add_branch(x: Tensor, branch: Tensor, p: float, ctx: PassContext, layer: str) -> Tensor:
    """Residual connection with dropout on the branch: x + mask * branch."""
    mask = keep_mask(branch, p, ctx, layer)
    return x + branch if mask is None else torch.addcmul(x, branch, mask)
