"""One cell of the estimation benchmark, in a process of its own among the competitors' packages.

    python -m benchmarks.estimation_row '{"n": 10, "f": 2, "snr": 0.2, "size": 10000, "seeds": 5}'

Prints one JSON line: by attack and by rule, the relative errors and the cosines of each seed.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from benchmarks.competitors import answer_beside_flower
from benchmarks.estimation_rules import error_of, flower_rules, our_rules
from simulations.attacks.catalogue import update_variants
from simulations.attacks.impossible import Inflated


def drawn(n: int, size: int, snr: float, seed: int) -> np.ndarray:
    """Updates that share a direction, with noise 1 / snr times as large in each coordinate: float32 [n, size]."""
    draw = np.random.default_rng([n, seed, round(1000 * snr)])
    return np.asarray(draw.standard_normal(size) + draw.standard_normal((n, size)) / snr, np.float32)


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Every attack against every rule."""
    n, f, snr = int(order["n"]), int(order["f"]), float(order["snr"])
    rules = our_rules() | flower_rules()
    if n < 4 * f + 3:
        del rules["flower_bulyan"]
    attacks = {"none": None, **(update_variants() if f else {})}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {attack: {rule: [] for rule in rules} for attack in attacks}
    for seed in range(int(order["seeds"])):
        updates = drawn(n, int(order["size"]), snr, seed)
        for name, attack in attacks.items():
            attacked, examples = updates.copy(), np.ones(n)
            honest = updates[f:] if attack is not None else updates
            if attack is not None:
                with np.errstate(over="ignore"):
                    forged = attack.forge(updates[f:], updates[:f], np.random.default_rng([seed, zlib.crc32(name.encode())]))
                attacked[:f] = forged
                if isinstance(attack, Inflated):
                    examples[:f] = attack.frames
            mean = honest.mean(axis=0, dtype=np.float64)
            order_of_arrival = np.random.default_rng(seed).permutation(n)
            for rule, aggregate in rules.items():
                seed_bytes = f"{seed}".encode()
                arrived = attacked[order_of_arrival]
                found[name][rule].append(error_of(aggregate, arrived, examples[order_of_arrival], f, seed_bytes, mean))
    return found


if __name__ == "__main__":
    answer_beside_flower(run)
