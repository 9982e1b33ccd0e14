"""A small corpus of two voices as a table: clips of the shipped corpus, and as many of somebody else."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from tokenizer.corpus import default_corpus
from tokenizer.resampling import resample

REAL = Path(__file__).parents[2].parent / "shared" / "speech" / "allison-en"
LOWER = 4 / 3  # a second voice where there is no real one: the first, slower and so much lower
RATE = 16000

Clip = tuple[NDArray[np.float32], str]


def lines_of(corpus: Path, words: int) -> Iterator[tuple[Path, str]]:
    """(recording, text) of clips with at least so many words."""
    for line in (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines():
        name, *texts = line.split("|")
        if len(texts[-1].split()) >= words:
            (path,) = (corpus / "wavs").glob(f"{name}.*")
            yield path, texts[-1]


def clips_of(corpus: Path, start: int, count: int, *, slower: float = 1.0) -> list[Clip]:
    found = list(lines_of(corpus, 4))[start : start + count]
    clips = []
    for path, text in found:
        samples, rate = soundfile.read(path, dtype="float32")
        clips.append((resample(samples, RATE, round(RATE * slower)) if slower != 1.0 else samples, text))
        assert rate == RATE
    return clips


def two_voice_corpus(folder: Path, count: int) -> Path:
    """Write `folder`/table.csv with `count` clips of "slt" and as many of "other"; returns its path.

    The other is a real speaker where `../shared/speech` lies beside the checkout, else the first one, made lower.
    """
    (folder / "wavs").mkdir(parents=True)
    other = clips_of(REAL, 0, count) if REAL.is_dir() else clips_of(default_corpus(), count, count, slower=LOWER)
    rows = []
    for speaker, clips in (("slt", clips_of(default_corpus(), 0, count)), ("other", other)):
        for number, (samples, text) in enumerate(clips):
            name = f"{speaker}-{number:03d}"
            soundfile.write(folder / "wavs" / f"{name}.flac", samples, RATE)
            rows.append({"id": name, "audio": f"wavs/{name}.flac", "text": text, "speaker": speaker})
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / "table.csv"
