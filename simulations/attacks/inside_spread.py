"""Updates that stay where honest ones could lie, so that no check can tell them apart: the rule must bear them.

Sources: A Little Is Enough (Baruch et al., 2019, arXiv 1902.06156), inner product manipulation (Xie et al., 2019, arXiv
1903.03936), Min-Max (Shejwalkar and Houmansadr, 2021), the local model poisoning of Fang et al., 2020 (arXiv 1911.11815),
mimicry (Karimireddy et al., 2022, arXiv 2006.09365).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from simulations.attacks.base import Bar, UpdateAttack, alike, mean_and_spread

POWER_ITERATIONS = 12


def alie_factor(n: int, f: int) -> float:
    """The largest z for which enough honest updates are expected to lie further out than m - z s: of `n` updates, `f` forged.

    z = Phi^-1((n - f - s) / (n - f)) with s = floor(n / 2 + 1) - f supporters that must be won; 0 where that gives less.
    """
    supporters = math.floor(n / 2 + 1) - f
    share = (n - f - supporters) / (n - f)
    if not 0.0 < share < 1.0:
        return 0.0
    return max(0.0, NormalDist().inv_cdf(share))


@dataclass(frozen=True)
class LittleIsEnough(UpdateAttack):
    """m - z s: a shift that is small against the spread, the same for all attackers.

    Args:
        z: 0: that of `alie_factor`, which is 0 itself for the fewest updates.
    """

    number: ClassVar = "A2"
    name: ClassVar = "little_is_enough"
    bar: ClassVar = Bar.SPREAD
    z: float = 1.5

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        mean, spread = mean_and_spread(honest)
        z = self.z or alie_factor(len(honest) + len(own), len(own))
        return alike(mean - np.float32(z) * spread, len(own))


@dataclass(frozen=True)
class InnerProduct(UpdateAttack):
    """-epsilon m: turns the inner product of the aggregate with the honest mean negative, where the rule lets it."""

    number: ClassVar = "A3"
    name: ClassVar = "inner_product"
    bar: ClassVar = Bar.SPREAD
    epsilon: float = 0.5

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return alike(honest.mean(axis=0) * np.float32(-self.epsilon), len(own))


@dataclass(frozen=True)
class MinMax(UpdateAttack):
    """m - gamma s with the largest gamma for which no honest update is further from it than two honest ones from each other."""

    number: ClassVar = "A5"
    name: ClassVar = "min_max"
    bar: ClassVar = Bar.SPREAD
    most: float = 5.0
    precision: float = 0.01

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        mean, spread = mean_and_spread(honest)
        # All distances follow from inner products: |a - b|^2 = |a|^2 + |b|^2 - 2 ab.
        away = (honest - mean).astype(np.float64)
        gram = away @ away.T  # [h, h]
        square = np.diag(gram)
        widest = float(np.max(square[:, None] + square[None, :] - 2 * gram))
        along = away @ spread.astype(np.float64)  # [h]
        length = float(np.dot(spread.astype(np.float64), spread.astype(np.float64)))
        low, high = 0.0, self.most
        while high - low > self.precision:
            gamma = (low + high) / 2
            if float(np.max(square + 2 * gamma * along + gamma * gamma * length)) <= widest:
                low = gamma
            else:
                high = gamma
        return alike(mean - np.float32(low) * spread, len(own))


@dataclass(frozen=True)
class AgainstTrimming(UpdateAttack):
    """In each coordinate just beyond the honest values, on the side away from where their mean points.

    Args:
        beyond: b, the furthest values are b times the outermost honest one (a b-th of it, where that is further out).
    """

    number: ClassVar = "A6"
    name: ClassVar = "against_trimming"
    bar: ClassVar = Bar.SPREAD
    beyond: float = 2.0

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        b = np.float32(self.beyond)
        highest, lowest = honest.max(axis=0), honest.min(axis=0)
        above = np.where(highest > 0, highest * b, highest / b)
        below = np.where(lowest > 0, lowest / b, lowest * b)
        down = honest.mean(axis=0) < 0  # [P], where the honest ones go down, the attackers go up
        share = draw.random(own.shape, np.float32)
        outer, inner = np.where(down, above, below), np.where(down, highest, lowest)
        return (inner + share * (outer - inner)).astype(np.float32)


@dataclass(frozen=True)
class Mimic(UpdateAttack):
    """All attackers copy the one honest worker that lies furthest along the direction in which honest updates differ most."""

    number: ClassVar = "A10"
    name: ClassVar = "mimic"
    bar: ClassVar = Bar.SPREAD

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        away = (honest - honest.mean(axis=0)).astype(np.float64)
        gram = away @ away.T  # [h, h]: its leading eigenvector holds each worker's place along the main direction
        places = draw.standard_normal(len(honest))
        for _ in range(POWER_ITERATIONS):
            places = gram @ places
            length = float(np.linalg.norm(places))
            if length == 0.0:
                break
            places /= length
        return alike(honest[int(np.argmax(np.abs(places)))].copy(), len(own))


@dataclass(frozen=True)
class Drift(UpdateAttack):
    """An honest update with a small push, the same way in every round and for all attackers: it adds up where noise does not.

    Args:
        push: of each coordinate, in standard deviations of the honest updates (a lone attacker: of its own update's size).
        seed: of the signs of the push.
    """

    number: ClassVar = "A23"
    name: ClassVar = "drift"
    bar: ClassVar = Bar.SPREAD
    push: float = 1.0
    seed: int = 23

    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        signs = np.random.Generator(np.random.Philox(key=self.seed)).integers(0, 2, own.shape[1]).astype(np.float32) * 2 - 1
        if len(honest) > 1:
            _, spread = mean_and_spread(honest)
        else:
            spread = np.full(own.shape[1], np.sqrt(np.mean(np.square(own, dtype=np.float64))), np.float32)
        return own + np.float32(self.push) * signs * spread
