"""Time and memory from update files to one aggregate: our rules beside Flower's on the same files, loading included.

The files are safetensors, a few dozen tensors each. Ours come through the checks of names, shapes and sizes and are read chunk by
chunk; Flower's functions want all arrays at once, so its row loads each file with the safetensors library first. Both start with
files that the system has in memory. Every measurement is a process of its own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.aggregation_row import write_updates
from benchmarks.children import ask_child
from benchmarks.competitors import python_of_competitors
from benchmarks.result import BenchResult, machine_facts
from common.errors import Code, HocketError

LIMIT_S = 600.0
MIB = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class AggregationBench:
    """What is measured.

    Args:
        replicas: numbers of updates. values: coordinates of each.
        large_values: of a row of our own besides, 0 for none. repeats: processes a row; medians are taken.
    """

    replicas: tuple[int, ...] = (8, 16)
    values: int = 10_000_000
    large_values: int = 0
    repeats: int = 3


OURS = ("pass", "median", "trimmed_mean", "centred_clipping", "multi_krum")
FLOWER = ("flower_mean", "flower_median", "flower_trimmed", "flower_krum")


def measure(settings: AggregationBench, say: Say) -> BenchResult:
    """Write the files, then every row in turns.

    Raises:
        HocketError: EXTRA_MISSING where Flower cannot be installed; CHILD_FAILED when a process fails or results differ.
    """
    result = BenchResult("aggregation", machine_facts(sorted(os.sched_getaffinity(0))))
    plans: list[tuple[int, int, tuple[str, ...]]] = [(n, settings.values, (*OURS, *FLOWER)) for n in settings.replicas]
    if settings.large_values:
        plans.append((max(settings.replicas), settings.large_values, ("pass", "median", "trimmed_mean")))
    for n, values, rules in plans:
        with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
            write_updates(Path(folder), n, values)
            answers: dict[str, list[dict[str, Any]]] = {rule: [] for rule in rules}
            for _ in range(settings.repeats):
                for rule in rules:
                    answers[rule].append(_child(rule, n, values, Path(folder)))
        check_agreement(answers)
        for rule in rules:
            result.rows.append(row_of(rule, n, values, answers[rule]))
            say(f"{result.rows[-1]['row']}: {result.rows[-1]['seconds']:.2f} s, {result.rows[-1]['grown_mib']:.0f} MiB")
    result.ratios = ratios_of(result.rows, max(settings.replicas), settings.values)
    return result


def check_agreement(answers: dict[str, list[dict[str, Any]]]) -> None:
    """Median and trimmed mean of both must be the same numbers up to float32 sums.

    Raises:
        HocketError: CHILD_FAILED.
    """
    for ours, theirs in (("median", "flower_median"), ("trimmed_mean", "flower_trimmed")):
        for one, other in zip(answers.get(ours, ()), answers.get(theirs, ()), strict=False):
            pairs = zip(one["sample"], other["sample"], strict=True)
            if not all(abs(left - right) <= 1e-6 * max(abs(left), 1.0) for left, right in pairs):
                raise HocketError(Code.CHILD_FAILED, f"{ours} and {theirs} gave other values: they did not do the same work")


def row_of(rule: str, n: int, values: int, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the processes."""
    seconds = sorted(answer["seconds"] for answer in answers)
    return {
        "row": f"{rule}, {n} x {values:.0e}", "rule": rule, "n": n, "values": values, "seconds": statistics.median(seconds),
        "fastest": seconds[0], "slowest": seconds[-1],
        "grown_mib": statistics.median(answer["grown_bytes"] for answer in answers) / MIB,
    }  # fmt: skip


def ratios_of(rows: list[dict[str, Any]], n: int, values: int) -> dict[str, float]:
    """median_vs_flower, trimmed_vs_flower: how many times as fast. memory_vs_flower: what the median's process grew by over
    Flower's. median_time_over_pass: seconds over those of reading the same files and adding each value up once.
    """
    by_rule = {row["rule"]: row for row in rows if row["n"] == n and row["values"] == values}
    ratios: dict[str, float] = {}
    for name, ours, theirs in (("median", "median", "flower_median"), ("trimmed", "trimmed_mean", "flower_trimmed")):
        if {ours, theirs} <= by_rule.keys():
            ratios[f"{name}_vs_flower"] = by_rule[theirs]["seconds"] / by_rule[ours]["seconds"]
    if {"median", "flower_median"} <= by_rule.keys():
        ratios["memory_vs_flower"] = by_rule["median"]["grown_mib"] / by_rule["flower_median"]["grown_mib"]
    if {"median", "pass"} <= by_rule.keys():
        ratios["median_time_over_pass"] = by_rule["median"]["seconds"] / by_rule["pass"]["seconds"]
    return ratios


def _child(rule: str, n: int, values: int, folder: Path) -> dict[str, Any]:
    python = python_of_competitors() if rule.startswith("flower") else None
    order = {"rule": rule, "n": n, "values": values, "folder": str(folder)}
    return ask_child(rule, "benchmarks.aggregation_row", order, limit_s=LIMIT_S, python=python)
