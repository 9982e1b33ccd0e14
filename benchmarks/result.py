"""What a benchmark reports: rows of figures and ratios between them, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.files import atomic_write


@dataclass
class BenchResult:
    """One benchmark's outcome.

    Args:
        name: of the benchmark.
        machine: what it ran on.
        rows: one dictionary a row, each with `row`, its name.
        ratios: by name `X_vs_Y`. For speeds: speed of X / speed of Y.
    """

    name: str
    machine: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)


def machine_facts(cores: list[int]) -> dict[str, Any]:
    """The machine in words: processor, cores used, memory, versions."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    from importlib.metadata import version

    return {
        "processor": processor,
        "cores_used": cores,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def write_result(path: Path, result: BenchResult) -> None:
    """Write the result as JSON, whole or not at all."""
    atomic_write(path, (json.dumps(asdict(result), indent=2, sort_keys=True) + "\n").encode())


def print_table(result: BenchResult, columns: Sequence[str]) -> None:
    """Print the given columns of the rows, and the ratios."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        title=f"{result.name} on {result.machine['processor']}, cores {result.machine['cores_used']}", title_justify="left"
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("row", "what") else "right")
    for row in result.rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)
    for name, ratio in result.ratios.items():
        console.print(f"{name} = {ratio:.3f}", highlight=False)
