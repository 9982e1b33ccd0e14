"""Recordings as arrays: reading any file that libsndfile or FFmpeg knows, and saying what is wrong with a bad one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.audio_stream import FFMPEG_SUFFIXES, AudioFacts, AudioStream
from tokenizer.resampling import resample

__all__ = ["AUDIO_SUFFIXES", "audio_files", "check_sound", "has_audio", "read_audio", "read_audio_and_facts", "resample"]

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".w64", ".caf", *FFMPEG_SUFFIXES)
SILENT_PEAK = 1e-3  # -60 dB of full scale
# None of 1846 clips of real speech has a sample at full scale; amplified until it clips by 6 dB, speech has 0.6 % to 20 %.
MAX_CLIPPED = 0.01
MAX_PEAK = 4.0  # of full scale; decoders of lossy formats overshoot by a little
MIN_SECONDS = 0.02


def audio_files(folder: Path) -> list[Path]:
    """All recordings below `folder` but hidden ones, sorted by path, so that every machine sees them in the same order."""
    return sorted(_recordings_below(folder))


def has_audio(folder: Path) -> bool:
    """Whether `audio_files` would find any; looks no further than the first."""
    return next(_recordings_below(folder), None) is not None


def _recordings_below(folder: Path) -> Iterator[Path]:
    named = (path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES and not path.name.startswith("."))
    return (path for path in named if path.is_file())


def read_audio(
    source: AudioSource | Path, sample_rate: int, *, start_s: float = 0.0, stop_s: float | None = None, max_s: float | None = None
) -> NDArray[np.float32]:
    """Read a recording as float32 [N], channels averaged, at `sample_rate` Hz; see `read_audio_and_facts`."""
    return read_audio_and_facts(source, sample_rate, start_s=start_s, stop_s=stop_s, max_s=max_s)[0]


def read_audio_and_facts(
    source: AudioSource | Path, sample_rate: int, *, start_s: float = 0.0, stop_s: float | None = None, max_s: float | None = None
) -> tuple[NDArray[np.float32], AudioFacts]:
    """Samples float32 [N] at `sample_rate` Hz, channels averaged, and what the recording is like.

    Args:
        start_s, stop_s: the part that is read, in seconds.
        max_s: a longer part is refused before all of it is in memory.

    Raises:
        HocketError: AUDIO_UNREADABLE if it cannot be read, its rate is odd, it has no samples, or some are not finite.
    """
    if isinstance(source, Path):
        source = AudioSource(source)
    with AudioStream(source, sample_rate, start_s=start_s, stop_s=stop_s) as stream:
        blocks: list[NDArray[np.float32]] = []
        length = 0
        for block in stream.blocks():
            blocks.append(block)
            length += len(block)
            if max_s is not None and length > max_s * sample_rate:
                detail = f"{source.title} is longer than {max_s:g} s"
                raise HocketError(Code.AUDIO_UNREADABLE, detail, remedy="cut it, or give it as a long recording")
        return np.concatenate(blocks), stream.facts


def check_sound(facts: AudioFacts, name: str) -> None:
    """Refuse a clip of which nothing can be learnt.

    Raises:
        HocketError: AUDIO_UNREADABLE (too short, or its samples are integers), AUDIO_SILENT, AUDIO_CLIPPED.
    """
    if facts.seconds < MIN_SECONDS:
        raise HocketError(
            Code.AUDIO_UNREADABLE, f"{name} lasts {facts.seconds * 1000:.3g} ms, and {MIN_SECONDS * 1000:g} ms are the least"
        )
    if facts.peak > MAX_PEAK:
        detail = f"{name} has samples up to {facts.peak:.0f}, where 1 is full scale"
        raise HocketError(Code.AUDIO_UNREADABLE, detail, remedy="divide its samples by their full scale, such as 32768")
    if facts.swing < SILENT_PEAK:
        why = "" if facts.peak < SILENT_PEAK else ": it is a constant, or its channels cancel out"
        raise HocketError(Code.AUDIO_SILENT, f"{name} is silent (its peak is {facts.swing:.1e} of full scale){why}")
    if facts.clipped > MAX_CLIPPED:
        detail = f"{name}: {facts.clipped:.1%} of its samples are at full scale, at most {MAX_CLIPPED:.0%} may be"
        raise HocketError(Code.AUDIO_CLIPPED, detail)
