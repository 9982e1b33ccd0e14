"""How far a few forged updates carry the aggregate away: our rules and Flower's, worst case over the attacks of the catalogue.

Synthetic updates share a direction; each has noise of its own, `1 / snr` times as large in each coordinate. Long local training
is near snr 1, single gradients are far below. What is to be found is the mean of the honest updates.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import ask_child
from benchmarks.competitors import python_of_competitors
from benchmarks.result import BenchResult, machine_facts
from coordinator.run_config import AggregationSection

LIMIT_S = 600.0
# Where the gate is: up to this share of attackers.
GATED_SHARE = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """`n` updates, `f` of them forged, of `size` coordinates, drawn `seeds` times."""

    n: int
    f: int
    snr: float
    size: int
    seeds: int


def cells_of(replicas: tuple[int, ...], snrs: tuple[float, ...], size: int, seeds: int) -> list[Cell]:
    """Nobody, one, a fifth and three tenths of each number of replicas, rounded down."""
    return [
        Cell(n, f, snr, size, seeds)
        for n in replicas for f in sorted({0, 1, n // 5, 3 * n // 10}) for snr in snrs
    ]  # fmt: skip


def default_rule() -> str:
    """What a run file that says nothing gets, as the rows are named."""
    section = AggregationSection()
    return section.rule if section.prepare == "none" else f"{section.prepare}+{section.rule}"


def measure(cells: list[Cell], say: Say) -> BenchResult:
    """Every attack against every rule in every cell, each cell in a process among Flower's packages.

    Raises:
        HocketError: EXTRA_MISSING where Flower cannot be installed; CHILD_FAILED.
    """
    result = BenchResult("estimation", machine_facts(sorted(os.sched_getaffinity(0))))
    python = python_of_competitors()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for cell, found in zip(cells, pool.map(lambda cell: _child(python, cell), cells), strict=True):
            rows = rows_of(cell, found)
            result.rows += rows
            if cell.f:
                best = min(rows, key=lambda row: row["worst_error"])
                figures = f"{best['rule']} is best, {best['worst_error']:.3f} under {best['attack']}"
                say(f"{cell.f} of {cell.n}, snr {cell.snr:g}: {figures}")
    result.ratios = ratios_of(result.rows, default_rule())
    return result


def rows_of(cell: Cell, found: dict[str, dict[str, list[list[float]]]]) -> list[dict[str, Any]]:
    """One row a rule: its worst error over the attacks, each the mean over the seeds, and the lowest cosine.

    Args:
        found: by attack and rule, relative error and cosine of each seed.
    """
    rows = []
    for rule in found["none"]:
        errors = {attack: statistics.fmean(error for error, _ in by_rule[rule]) for attack, by_rule in found.items()}
        cosines = {attack: statistics.fmean(cosine for _, cosine in by_rule[rule]) for attack, by_rule in found.items()}
        worst = max(errors, key=lambda attack: errors[attack])
        rows.append({
            "row": f"{rule}, {cell.f} of {cell.n}, snr {cell.snr:g}", "rule": rule, "n": cell.n, "f": cell.f, "snr": cell.snr,
            "worst_error": errors[worst], "attack": worst, "least_cosine": min(cosines.values()),
            "error_unattacked": errors["none"], "errors": errors,
        })  # fmt: skip
    return rows


def ratios_of(rows: list[dict[str, Any]], default: str) -> dict[str, float]:
    """How the default does beside Flower.

    worst_error_vs_flower_best: its worst error over that of Flower's best rule, in the cell where this is largest, with attackers
    up to a fifth: at most 1 is the gate. mean_error_vs_flower_best: the mean over these cells. finite_share: of all cells, in
    which the result was always finite. largest_error_unattacked: where nobody attacks and nobody is reckoned with.
    """
    shares: list[float] = []
    for one in rows:
        if one["rule"] != default or not 0 < one["f"] <= GATED_SHARE * one["n"]:
            continue
        beside = [
            row["worst_error"] for row in rows
            if row["rule"].startswith("flower_") and all(row[key] == one[key] for key in ("n", "f", "snr"))
        ]  # fmt: skip
        shares.append(one["worst_error"] / min(beside))
    ours = [row for row in rows if row["rule"] == default]
    ratios = {"finite_share": sum(row["worst_error"] != float("inf") for row in ours) / max(len(ours), 1)}
    unattacked = [row["error_unattacked"] for row in ours if row["f"] == 0]
    if unattacked:
        ratios["largest_error_unattacked"] = max(unattacked)
    if shares:
        ratios |= {"worst_error_vs_flower_best": max(shares), "mean_error_vs_flower_best": statistics.fmean(shares)}
    return ratios


def _child(python: Path, cell: Cell) -> dict[str, dict[str, list[list[float]]]]:
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    return ask_child(
        str(cell), "benchmarks.estimation_row", asdict(cell), limit_s=LIMIT_S, python=python, environment=one_thread
    )
