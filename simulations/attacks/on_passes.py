"""False passes in the middle of the pipeline: what a stage sends on, or the gradient that it returns, is not what it computed.

The attacker commits to what it sends, so that nobody next to it sees a contradiction: only a recomputation tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulations.attacks.base import Attack, Bar

KINDS = ("zero", "sign", "scale", "noise", "tokens", "top")


@dataclass(frozen=True)
class FalsePass(Attack):
    """Other numbers in the place of hidden states or of gradients.

    Args:
        where: hidden (of a last stage there are none: then the gradient) or gradient.
        how: zero; sign: flipped; scale: times `size`; noise: of `size` standard deviations; tokens: every 16th position is
            zero; top: only the largest 1/16 of each position's values are right, the others are zero.
        size: see there.
    """

    number: ClassVar = "A19"
    name: ClassVar = "false_pass"
    bar: ClassVar = Bar.FABRICATED
    where: str = "hidden"
    how: str = "scale"
    size: float = 0.9

    def __post_init__(self) -> None:
        if self.where not in ("hidden", "gradient") or self.how not in KINDS:
            raise ValueError(f"false_pass: where is hidden or gradient, how one of {', '.join(KINDS)}")

    def false(self, values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """What is sent instead of float32 [B, S, D]; a new array. Pure."""
        match self.how:
            case "zero":
                return np.zeros_like(values)
            case "sign":
                return -values
            case "scale":
                return values * np.float32(self.size)
            case "noise":
                return values + draw.standard_normal(values.shape, np.float32) * np.float32(self.size * float(values.std()))
            case "tokens":
                wrong = values.copy()
                wrong[:, ::16] = 0.0
                return wrong
            case _:
                kept = max(1, values.shape[-1] // 16)
                least = np.partition(np.abs(values), -kept, axis=-1)[..., -kept, None]  # [B, S, 1]
                return np.where(np.abs(values) >= least, values, np.float32(0.0))
