"""Long recordings with subtitles, joined from the clips of a corpus, for the benchmark of tokenisation."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from common.errors import Code, HocketError
from tokenizer.audio import read_audio

RATE = 16000
REAL_SPEECH = Path("..") / "shared" / "speech" / "allison-en"
SHIPPED = Path("tokenizer") / "data" / "corpus-slt"
SUFFIXES = (".flac", ".ogg", ".wav")
MAX_CLIP_S = 12.0


@dataclass(frozen=True)
class SpokenClip:
    """A clip and what is said in it."""

    path: Path
    text: str


def spoken_clips(folder: Path) -> list[SpokenClip]:
    """The clips of a folder in LJSpeech layout that are at most MAX_CLIP_S long.

    Raises:
        HocketError: CORPUS_UNREADABLE where there are none.
    """
    clips = []
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE):
            found = [path for suffix in SUFFIXES if (path := folder / "wavs" / f"{row[0]}{suffix}").exists()]
            if found and soundfile.info(found[0]).duration <= MAX_CLIP_S:
                clips.append(SpokenClip(found[0], row[-1].strip()))
    if not clips:
        raise HocketError(Code.CORPUS_UNREADABLE, f"{folder} has no clips to join")
    return clips


def source(checkout: Path) -> Path:
    """Recorded speech beside the checkout, else the corpus that is shipped."""
    real = checkout / REAL_SPEECH
    return real if real.is_dir() else checkout / SHIPPED


def join(clips: list[SpokenClip], minutes: float, speakers: int, folder: Path) -> Path:
    """Write talk.flac, some `minutes` long, and talk.vtt, in which clip n is said by speaker n modulo `speakers`.

    The clips follow each other, from the first again when all are used, with pauses of 0.3 to 0.9 s.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(speakers)
    at, number = 0, 0
    with (
        soundfile.SoundFile(folder / "talk.flac", "w", RATE, 1, subtype="PCM_16") as sound,
        (folder / "talk.vtt").open("w", encoding="utf-8") as subtitles,
    ):
        subtitles.write("WEBVTT\n")
        while at < minutes * 60 * RATE:
            clip = clips[number % len(clips)]
            samples = read_audio(clip.path, RATE)
            text = clip.text.replace("&", "&amp;").replace("<", "&lt;")
            times = f"{_time(at)} --> {_time(at + len(samples))}"
            subtitles.write(f"\n{times}\n<v S{number % speakers + 1}>{text}\n")
            pause = int(rng.uniform(0.3, 0.9) * RATE)
            pause += -(len(samples) + pause) % (RATE // 1000)  # subtitles know milliseconds
            sound.write(samples)
            sound.write(np.zeros(pause, np.float32))
            at += len(samples) + pause
            number += 1
    return folder / "talk.flac"


def _time(samples: int) -> str:
    ms = samples * 1000 // RATE
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}"
