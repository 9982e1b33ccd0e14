"""Samples a second, memory and time to resume of our reader, beside mosaicml-streaming and webdataset on the same utterances."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import ask_child
from benchmarks.competitors import python_of_competitors
from benchmarks.result import BenchResult, machine_facts
from common.errors import Code, HocketError

LIMIT_S = 300.0
MIB = 1 << 20
WHAT = {
    "hocket": "Parquet with zstd, checked against their CIDs, shuffled over the whole",
    "mosaicml_streaming": "uncompressed MDS, its default shuffle",
    "webdataset": "tars of msgpack, a shuffle buffer of 1000",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class ReaderBench:
    """What is measured.

    Args:
        count: utterances. epochs: that are read one after the other, timed each. repeats: processes a reader; medians are taken.
        cache_bytes: of decoded rows that our reader may keep, by default as everywhere: its order needs a block of 16384 rows
            at hand. The others keep none, and leave it to the system to keep their files.
    """

    count: int = 9000
    epochs: int = 2
    repeats: int = 3
    cache_bytes: int = 256 * MIB


def measure(settings: ReaderBench, say: Say, readers: tuple[str, ...] = tuple(WHAT)) -> BenchResult:
    """Write the utterances in each form, then read them, in turns, each time in a process of its own on one core.

    Raises:
        HocketError: EXTRA_MISSING where the others cannot be installed; CHILD_FAILED when a process fails or a reader gives
            other samples.
    """
    result = BenchResult("reader", machine_facts(sorted(os.sched_getaffinity(0))[:1]))
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as name:
        for reader in readers:
            _child("write", reader, settings, Path(name))
            say(f"{reader}: {settings.count} utterances written")
        read: dict[str, list[dict[str, Any]]] = {reader: [] for reader in readers}
        resumed: dict[str, list[float]] = {reader: [] for reader in readers}
        for _ in range(settings.repeats):
            for reader in readers:
                read[reader].append(_child("read", reader, settings, Path(name)))
                resumed[reader].append(_child("resume", reader, settings, Path(name))["resume_s"])
    sums = {answer["checksum"] for answers in read.values() for answer in answers}
    if len(sums) != 1:
        raise HocketError(Code.CHILD_FAILED, "the readers gave different samples: they did not do the same work")
    result.rows = [row_of(reader, settings, read[reader], resumed[reader]) for reader in readers]
    for row in result.rows:
        say(f"{row['row']}: {row['samples_per_second']:,.0f} samples a second, resumed in {row['resume_ms']:.0f} ms")
    result.ratios = ratios_of(result.rows)
    return result


def row_of(reader: str, settings: ReaderBench, answers: list[dict[str, Any]], resumed: list[float]) -> dict[str, Any]:
    """Medians over the processes; the speed is over all epochs of one."""
    speeds = sorted(settings.count * settings.epochs / sum(answer["seconds"]) for answer in answers)
    return {
        "row": reader,
        "what": WHAT[reader],
        "samples_per_second": statistics.median(speeds),
        "slowest": speeds[0],
        "fastest": speeds[-1],
        "first_epoch_s": statistics.median(answer["seconds"][0] for answer in answers),
        "last_epoch_s": statistics.median(answer["seconds"][-1] for answer in answers),
        "grown_mib": statistics.median(answer["grown_bytes"] for answer in answers) / MIB,
        "resume_ms": 1000 * statistics.median(resumed),
    }


def ratios_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """reader_vs_X: samples a second of ours over those of X; first_epoch_vs_X: in the first, when nothing is decoded."""
    by_name = {row["row"]: row for row in rows}
    if "hocket" not in by_name:
        return {}
    ours = by_name.pop("hocket")
    ratios = {f"reader_vs_{name}": ours["samples_per_second"] / row["samples_per_second"] for name, row in by_name.items()}
    return ratios | {f"first_epoch_vs_{name}": row["first_epoch_s"] / ours["first_epoch_s"] for name, row in by_name.items()}


def _child(action: str, reader: str, settings: ReaderBench, folder: Path) -> dict[str, Any]:
    """Run one process of a reader on one core, and read its answer."""
    python = None if reader == "hocket" else python_of_competitors()
    order = {
        "action": action,
        "reader": reader,
        "folder": str(folder / reader),
        "count": settings.count,
        "epochs": settings.epochs,
        "cache_bytes": settings.cache_bytes,
        "core": min(os.sched_getaffinity(0)),
    }
    return ask_child(f"{reader}, which was to {action},", "benchmarks.reader_row", order, limit_s=LIMIT_S, python=python)
