"""Updates that no training made, in the range of sizes of honest ones or beyond: the rule bears them, audits find them.

Sources: the sign flip, the constant direction and their factors are those of Gorbunov et al., 2022 (arXiv 2106.11257).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulations.attacks.base import Bar, UpdateAttack, alike, norms


@dataclass(frozen=True)
class SignFlip(UpdateAttack):
    """Each attacker sends its own update times -scale."""

    number: ClassVar = "A1"
    name: ClassVar = "sign_flip"
    bar: ClassVar = Bar.FABRICATED
    scale: float = 1.0

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return own * np.float32(-self.scale)


@dataclass(frozen=True)
class JointSignFlip(UpdateAttack):
    """All attackers send the mean of the honest updates times -scale: each is the others' nearest neighbour."""

    number: ClassVar = "A1"
    name: ClassVar = "joint_sign_flip"
    bar: ClassVar = Bar.FABRICATED
    scale: float = 1.0

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return alike(honest.mean(axis=0) * np.float32(-self.scale), len(own))


@dataclass(frozen=True)
class Noise(UpdateAttack):
    """Normal noise in the place of the update; `scale` is its norm over that of the attacker's own honest update."""

    number: ClassVar = "A4"
    name: ClassVar = "noise"
    bar: ClassVar = Bar.FABRICATED
    scale: float = 1.0

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        deviation: np.ndarray = (norms(own) * self.scale / np.sqrt(own.shape[1])).astype(np.float32)  # [f]
        return draw.standard_normal(own.shape, np.float32) * deviation[:, None]


@dataclass(frozen=True)
class ConstantDirection(UpdateAttack):
    """One random direction, the same in every round and for every attacker, `scale` times as long as the own update.

    Args:
        seed: of the direction.
    """

    number: ClassVar = "A7"
    name: ClassVar = "constant_direction"
    bar: ClassVar = Bar.FABRICATED
    scale: float = 1000.0
    seed: int = 7

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        direction = np.random.Generator(np.random.Philox(key=self.seed)).standard_normal((own.shape[1],), np.float32)
        length = float(norms(direction[None, :])[0])
        lengths: np.ndarray = (norms(own) * self.scale / length).astype(np.float32)  # [f]
        return direction[None, :] * lengths[:, None]


@dataclass(frozen=True)
class Copycat(UpdateAttack):
    """Another's update with a little noise, `noise` of its norm, in the place of work of one's own."""

    number: ClassVar = "A13"
    name: ClassVar = "copycat"
    bar: ClassVar = Bar.FABRICATED
    noise: float = 1e-3

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        copied = honest[np.arange(len(own)) % len(honest)]  # [f, P]
        deviation: np.ndarray = (norms(copied) * self.noise / np.sqrt(own.shape[1])).astype(np.float32)
        return copied + draw.standard_normal(own.shape, np.float32) * deviation[:, None]
