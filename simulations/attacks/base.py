"""What an attack is: its number in the catalogue, its bar, and what it does with updates where it works on those.

The bars: *proof* is refused at once with evidence and leaves the aggregate as it is without the attacker; *fabricated* work is
found by audits; *spread* hides inside the differences of honest updates, so that the rule must bear it; *harmless* can have no
effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

import numpy as np

ROW_NORM_BLOCK = 1 << 20


class Bar(StrEnum):
    """What a run must do about an attack."""

    PROOF = "proof"
    FABRICATED = "fabricated"
    SPREAD = "spread"
    HARMLESS = "harmless"


class Attack:
    """One attack; the fields of the dataclasses below are its parameters.

    Class attributes:
        number: in the catalogue, A1 to A24. name: in plans and tables. bar: that it is held to.
    """

    number: ClassVar[str]
    name: ClassVar[str]
    bar: ClassVar[Bar]


class UpdateAttack(Attack, ABC):
    """An attack that puts other numbers in the place of an update. Pure: the same arguments give the same forgeries."""

    @abstractmethod
    def forge(self, honest: np.ndarray, own: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """What the attackers of one stage send in one round.

        Args:
            honest: float32 [h, P], what the attackers know of the honest updates; omniscient ones know all, a lone worker of a
                real run none but its own: then it is [1, P] and equals `own`.
            own: float32 [f, P], what the attackers would send if they were honest.
            draw: of whatever is random in it.

        Returns: float32 [f, P]; the arguments are not changed.
        """


def norms(rows: np.ndarray) -> np.ndarray:
    """L2 norm of each row of float32 [n, P], as float64 [n]; summed in float64, a block of columns at a time."""
    squares = np.zeros(len(rows), np.float64)
    for start in range(0, rows.shape[1], ROW_NORM_BLOCK):
        block = rows[:, start : start + ROW_NORM_BLOCK].astype(np.float64)
        squares += np.einsum("np,np->n", block, block)
    return np.sqrt(squares)


def mean_and_spread(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column of float32 [n, P], both float32 [P]; one row has no spread."""
    mean = rows.mean(axis=0, dtype=np.float64)
    spread = rows.std(axis=0, dtype=np.float64, ddof=1 if len(rows) > 1 else 0)
    return mean.astype(np.float32), spread.astype(np.float32)


def alike(row: np.ndarray, count: int) -> np.ndarray:
    """The same forgery for each of `count` attackers, float32 [count, P]."""
    return np.repeat(row.astype(np.float32, copy=False)[None, :], count, axis=0)


def to_rows(updates: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Updates by parameter name as float32 [n, P], the parameters in the order of their names."""
    return np.stack([np.concatenate([update[name].reshape(-1) for name in sorted(update)]) for update in updates])


def to_tensors(row: np.ndarray, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `to_rows` for one update: float32 [P] as tensors of the names and shapes of `like`."""
    tensors, start = {}, 0
    for name in sorted(like):
        size = like[name].size
        tensors[name] = row[start : start + size].reshape(like[name].shape)
        start += size
    return tensors
