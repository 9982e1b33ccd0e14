"""From a long recording to shards: peak memory by length and number of speakers, and speed beside the straightforward way."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import CHECKOUT, ask_child
from benchmarks.cut_stage import straightforward_bytes
from benchmarks.long_recording import join, source, spoken_clips
from benchmarks.result import BenchResult, machine_facts
from common.errors import Code, HocketError
from simulations.usage import resident_bytes

SAMPLE_S = 0.05
LIMIT_S = 3000.0
MIB = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class TokenizeBench:
    """What is measured.

    Args:
        rows: (minutes, speakers) of the recordings, shortest first.
        compared_minutes: length of the recording for the comparison of speeds; repeats: how often each way is timed.
        threads: of every process. processes: that `hocket tokenize` works with.
    """

    rows: tuple[tuple[float, int], ...] = ((5, 3), (15, 8), (45, 21))
    compared_minutes: float = 5
    compared_speakers: int = 3
    repeats: int = 3
    threads: int = 1
    processes: int = 1


def parse_rows(text: str) -> tuple[tuple[float, int], ...]:
    """Rows of MINUTES:SPEAKERS, separated by commas.

    Raises:
        HocketError: OPTION_INVALID.
    """
    rows = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        minutes, _, speakers = part.partition(":")
        try:
            row = float(minutes), int(speakers)
        except ValueError as error:
            raise HocketError(Code.OPTION_INVALID, f"{part!r} is not MINUTES:SPEAKERS, as in 5:3") from error
        if not 0 < row[0] < 6000 or not 1 <= row[1] <= 1000:
            raise HocketError(Code.OPTION_INVALID, f"{part}: some minutes and at least one speaker are needed")
        rows.append(row)
    return tuple(rows)


def measure(settings: TokenizeBench, say: Say) -> BenchResult:
    """Run `hocket tokenize` on each recording in a process of its own, then both ways of cutting one.

    Raises:
        HocketError: CHILD_FAILED, with the last lines of what the process wrote.
    """
    clips = spoken_clips(source(CHECKOUT))
    result = BenchResult("tokenize", machine_facts(sorted(os.sched_getaffinity(0))))
    half = result.machine["memory_bytes"] // 2
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as name:
        folder = Path(name)
        for minutes, speakers in settings.rows:
            row = _tokenize_row(settings, clips, minutes, speakers, folder)
            predicted = row["straightforward_bytes"]
            if predicted > half:
                say(f"{minutes:g} min, {speakers} speakers: the straightforward way would take {predicted / MIB:,.0f} MiB")
            say(f"{row['row']}: {row['seconds']:.1f} s, {row['x_real_time']:.1f} x real time, {row['peak_rss_mib']:.0f} MiB")
            result.rows.append(row)
        result.rows += _both_ways(settings, clips, folder, say)
    result.ratios = ratios_of(result.rows)
    return result


def ratios_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """rss_growth_mib: from the first to the last recording; speed_vs_straightforward: seconds of that way over Hocket's."""
    ratios: dict[str, float] = {}
    whole = [row for row in rows if "peak_rss_mib" in row and row["row"].startswith("tokenize")]
    if len(whole) > 1:
        ratios["rss_growth_mib"] = whole[-1]["peak_rss_mib"] - whole[0]["peak_rss_mib"]
    by_name = {row["row"]: row for row in rows}
    if {"cut_hocket", "cut_straightforward"} <= by_name.keys():
        ratios["speed_vs_straightforward"] = by_name["cut_straightforward"]["seconds"] / by_name["cut_hocket"]["seconds"]
    return ratios


def _tokenize_row(settings: TokenizeBench, clips: list, minutes: float, speakers: int, folder: Path) -> dict[str, Any]:
    corpus, out = folder / "corpus", folder / "out"
    join(clips, minutes, speakers, corpus)
    command = [sys.executable, "-m", "cli.main", "tokenize", str(corpus), "--language", "en-US", "--out", str(out), "--json"]
    command += ["--key", str(folder / "key"), "--threads", str(settings.threads), "--processes", str(settings.processes)]
    started = time.perf_counter()
    output, peak, largest = _run_watched(command)
    seconds = time.perf_counter() - started
    summary = json.loads(output[output.index("{") :])
    shutil.rmtree(corpus)
    shutil.rmtree(out)
    return {
        "row": f"tokenize_{minutes:g}min_{speakers}speakers",
        "what": f"{minutes:g} minutes, {speakers} speakers, to shards",
        "seconds": seconds,
        "x_real_time": minutes * 60 / seconds,
        "peak_rss_mib": peak / MIB,
        "largest_process_mib": largest / MIB,
        "clips": summary["clips"],
        "refused": summary["refused_clips"],
        "straightforward_bytes": straightforward_bytes(minutes * 60, speakers),
    }


def _both_ways(settings: TokenizeBench, clips: list, folder: Path, say: Say) -> list[dict[str, Any]]:
    """Time both ways on one recording, in turns, each in a process of its own; both must find the same pieces."""
    minutes, speakers = settings.compared_minutes, settings.compared_speakers
    audio = join(clips, minutes, speakers, folder / "talk")
    answers: dict[str, list[dict[str, Any]]] = {"hocket": [], "straightforward": []}
    for _ in range(settings.repeats):
        for way, found in answers.items():
            order = {
                "way": way,
                "audio": str(audio),
                "subtitles": str(audio.with_suffix(".vtt")),
                "threads": settings.threads,
                "vectors": str(folder / f"{way}.npy"),
            }
            found.append(ask_child(f"cutting, {way}", "benchmarks.cut_stage", order, limit_s=LIMIT_S))
    ours, theirs = (np.load(folder / f"{way}.npy", allow_pickle=False) for way in answers)
    if answers["hocket"][-1]["texts"] != answers["straightforward"][-1]["texts"]:
        raise HocketError(Code.CHILD_FAILED, "the two ways of cutting found different pieces: they did not do the same work")
    agreement = float((ours * theirs).sum(axis=1).mean())
    rows = []
    for way, found in answers.items():
        seconds = statistics.median(answer["seconds"] for answer in found)
        row = {
            "row": f"cut_{way}",
            "what": f"{minutes:g} minutes, {speakers} speakers, to pieces with embeddings",
            "seconds": seconds,
            "slowest": max(answer["seconds"] for answer in found),
            "fastest": min(answer["seconds"] for answer in found),
            "x_real_time": minutes * 60 / seconds,
            "peak_rss_mib": max(answer["peak_rss_bytes"] for answer in found) / MIB,
            "clips": found[-1]["pieces"],
            "cosine_of_embeddings": agreement,
        }
        say(f"{row['row']}: {seconds:.2f} s, {row['x_real_time']:.1f} x real time")
        rows.append(row)
    return rows


def _run_watched(command: list[str]) -> tuple[str, int, int]:
    """Run a command to its end: its output, the peak of its processes' resident bytes together, and of the largest alone."""
    child = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peaks = [0, 0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            sizes = resident_bytes(child.pid)
            peaks[0], peaks[1] = max(peaks[0], sum(sizes)), max([peaks[1], *sizes])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        output, errors = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise HocketError(Code.CHILD_FAILED, f"hocket tokenize did not end within {LIMIT_S:.0f} s") from error
    finally:
        ended.set()
        watcher.join()
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        lines = [line for line in errors.splitlines() if line.strip()]
        raise HocketError(Code.CHILD_FAILED, f"hocket tokenize ended with {child.returncode}: {' / '.join(lines[-3:])}")
    return output, peaks[0], peaks[1]
