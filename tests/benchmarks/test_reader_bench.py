"""The reader benchmark: its arithmetic, and that what it compares are the same utterances."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reader import ReaderBench, measure, ratios_of, row_of
from benchmarks.reader_data import CODEBOOK_SIZE, CODEBOOKS, utterance, write_hocket
from benchmarks.reader_row import checksum, resume, run


def test_an_utterance_is_a_function_of_its_number() -> None:
    first, again, other = utterance(4), utterance(4), utterance(5)
    assert checksum(first.__dict__) == checksum(again.__dict__) != checksum(other.__dict__)
    assert first.codes.shape == (CODEBOOKS, first.n_frames) and int(first.codes.max()) < CODEBOOK_SIZE
    assert int(first.durations.sum()) == first.n_frames and int(first.durations.min()) >= 1


def test_the_checksum_covers_everything_in_a_sample() -> None:
    sample = dict(utterance(1).__dict__)
    for name in ("id", "text", "speaker", "n_frames", "align_score", "codes", "durations", "word_starts"):
        changed = dict(sample)
        value = changed[name]
        changed[name] = (
            value + "x" if isinstance(value, str) else (np.roll(value, 1) if isinstance(value, np.ndarray) else value + 1)
        )
        assert checksum(changed) != checksum(sample), name


def test_our_row_reads_every_utterance_of_every_epoch(tmp_path: Path) -> None:
    write_hocket(tmp_path, 900)
    order = {"reader": "hocket", "folder": str(tmp_path), "count": 900, "epochs": 2, "cache_bytes": 1 << 24}
    answer = run(order)
    assert answer["checksum"] == sum(checksum(utterance(number).__dict__) for number in range(900)) % (1 << 32)
    assert len(answer["seconds"]) == 2 and answer["frames"] == 2 * sum(utterance(number).n_frames for number in range(900))
    assert resume(order)["resume_s"] > 0


def test_rows_are_medians_and_ratios_speed_of_ours_over_theirs() -> None:
    settings = ReaderBench(count=100, epochs=2, repeats=3)
    answers = [{"seconds": [a, b], "grown_bytes": 1 << 20} for a, b in ((1.0, 1.0), (3.0, 1.0), (1.5, 0.5))]
    row = row_of("webdataset", settings, answers, [0.1, 0.3, 0.2])
    assert (row["samples_per_second"], row["slowest"], row["fastest"]) == (100.0, 50.0, 100.0)
    assert (row["first_epoch_s"], row["resume_ms"], row["grown_mib"]) == (1.5, 200.0, 1.0)
    ours = {**row, "row": "hocket", "samples_per_second": 250.0, "first_epoch_s": 0.5}
    assert ratios_of([row, ours]) == {"reader_vs_webdataset": 2.5, "first_epoch_vs_webdataset": 3.0}
    assert ratios_of([row]) == {}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_all_readers_give_the_same_samples(tmp_path: Path) -> None:
    lines: list[str] = []
    result = measure(ReaderBench(count=1500, epochs=1, repeats=1), lines.append)
    assert {"reader_vs_mosaicml_streaming", "reader_vs_webdataset"} <= result.ratios.keys()
    assert json.dumps(result.rows) and len(lines) == 6
