"""What `hocket bench estimation` compares: our rules with each preparation, and Flower's, on the same arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coordinator.rules.arrays import aggregate_arrays
from coordinator.rules.plan import PREPARATIONS, RULES

Rule = Callable[[np.ndarray, np.ndarray, int, bytes], np.ndarray]
"""(updates float32 [n, P], examples that each claims [n], false ones that are reckoned with, seed) -> aggregate [P]."""


def our_rules() -> dict[str, Rule]:
    """By name: `rule` or `preparation+rule`."""

    def rule_of(rule: str, prepare: str) -> Rule:
        def aggregate(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> np.ndarray:
            return aggregate_arrays(updates, rule=rule, tolerate=f, prepare=prepare, seed=seed).values

        return aggregate

    return {
        rule if prepare == "none" else f"{prepare}+{rule}": rule_of(rule, prepare)
        for prepare in PREPARATIONS for rule in RULES if rule != "mean"
    }  # fmt: skip


def flower_rules() -> dict[str, Rule]:
    """flwr's rules over arrays. It trims a truncated share of the updates: the share that it is given trims `f` of them."""
    from flwr.server.strategy import aggregate as flower

    def results(updates: np.ndarray, examples: np.ndarray) -> list[tuple[list[np.ndarray], int]]:
        return [([row], int(count)) for row, count in zip(updates, examples, strict=True)]

    def mean(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> Any:
        return flower.aggregate(results(updates, examples))[0]

    def median(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> Any:
        return flower.aggregate_median(results(updates, examples))[0]

    def trimmed(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> Any:
        return flower.aggregate_trimmed_avg(results(updates, examples), (f + 0.01) / len(updates) if f else 0.0)[0]

    def krum(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> Any:
        return flower.aggregate_krum(results(updates, examples), f, 0)[0]

    def multi_krum(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> Any:
        return flower.aggregate_krum(results(updates, examples), f, len(updates) - f)[0]

    def bulyan(updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes) -> Any:
        # It compares with NaN and finds nothing where one is among the updates.
        return flower.aggregate_bulyan(results(updates, examples), f, flower.aggregate_krum, to_keep=0)[0]

    return {"flower_mean": mean, "flower_median": median, "flower_trimmed": trimmed, "flower_krum": krum,
            "flower_multi_krum": multi_krum, "flower_bulyan": bulyan}  # fmt: skip


def error_of(
    rule: Rule, updates: np.ndarray, examples: np.ndarray, f: int, seed: bytes, honest: np.ndarray
) -> tuple[float, float]:
    """Relative error and cosine of what a rule makes of `updates`, against the mean of the honest ones, float64 [P].

    What is not finite, or not made at all, has an infinite error and the cosine -1.
    """
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(rule(updates, examples, f, seed), np.float64)
    except ValueError:
        return float("inf"), -1.0
    if not np.isfinite(found).all():
        return float("inf"), -1.0
    length, wanted = float(np.linalg.norm(found)), float(np.linalg.norm(honest))
    cosine = float(found @ honest) / (length * wanted) if length else 0.0
    return float(np.linalg.norm(found - honest)) / wanted, cosine
