"""Updates that cannot be what training gave: refused when they arrive, without a look at the other ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulations.attacks.base import Bar, UpdateAttack, norms


@dataclass(frozen=True)
class FreeRide(UpdateAttack):
    """No work: the own update shrunk to `scale` of its norm, zeros by default."""

    number: ClassVar = "A11"
    name: ClassVar = "free_ride"
    bar: ClassVar = Bar.PROOF
    scale: float = 0.0

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return own * np.float32(self.scale)


@dataclass(frozen=True)
class NotFinite(UpdateAttack):
    """Values that are not numbers.

    Args:
        value: nan, inf or -inf. share: of the coordinates; at least one has it.
    """

    number: ClassVar = "A14"
    name: ClassVar = "not_finite"
    bar: ClassVar = Bar.PROOF
    value: float = float("nan")
    share: float = 0.0

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        forged = own.copy()
        count = max(1, round(self.share * own.shape[1]))
        for row in forged:
            row[draw.permutation(own.shape[1])[:count]] = self.value
        return forged


@dataclass(frozen=True)
class Huge(UpdateAttack):
    """The own update times `scale`; the squares of the largest ones do not fit into float32."""

    number: ClassVar = "A15"
    name: ClassVar = "huge"
    bar: ClassVar = Bar.PROOF
    scale: float = 1e20

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        lengths = norms(own)
        most = np.abs(own).max(axis=1).astype(np.float64)
        # Kept finite: what is not is another attack.
        factor = np.minimum(self.scale, np.finfo(np.float32).max / np.where(lengths > 0, most, 1.0) / 2)
        return (own * factor[:, None]).astype(np.float32)


@dataclass(frozen=True)
class Inflated(UpdateAttack):
    """An honest update of another sign under a head that claims far more work than was done, so as to outweigh all others.

    Args:
        frames: that are claimed.
    """

    number: ClassVar = "A16"
    name: ClassVar = "inflated"
    bar: ClassVar = Bar.HARMLESS
    frames: int = 1_000_000_000

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return -own
