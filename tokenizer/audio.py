"""Recordings as arrays: reading any file that libsndfile knows, and resampling. numpy only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from common.errors import Code, HocketError

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")


def audio_files(folder: Path) -> list[Path]:
    """All recordings below `folder`, sorted by path, so that every machine sees them in the same order."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file())


def read_audio(path: Path, sample_rate: int) -> np.ndarray:
    """Read a recording as float32 [N] in [-1, 1], channels averaged, at `sample_rate` Hz.

    Raises:
        HocketError: AUDIO_UNREADABLE if libsndfile cannot read it, it has no samples, or some are not finite.
    """
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError) as error:  # soundfile's own errors are RuntimeErrors
        raise HocketError(Code.AUDIO_UNREADABLE, f"{path}: {error}") from error
    if len(samples) == 0 or not np.isfinite(samples).all():
        raise HocketError(Code.AUDIO_UNREADABLE, f"{path} has no samples, or some that are not finite")
    return resample(np.ascontiguousarray(samples.mean(axis=1)), rate, sample_rate)


def resample(wav: np.ndarray, rate: int, target: int) -> np.ndarray:
    """Band-limited resampling of float32 [N] from `rate` to `target` Hz; ceil(N * target / rate) samples.

    A windowed-sinc interpolator (Hann, 16 zero crossings a side), cut at 0.95 of the lower Nyquist frequency.
    """
    if rate == target:
        return wav.astype(np.float32, copy=False)
    n_out = -(-len(wav) * target // rate)
    cut = 0.95 * min(1.0, target / rate)
    half = int(np.ceil(16 / cut))
    padded = np.concatenate([np.zeros(half, np.float32), wav, np.zeros(half + 1, np.float32)])
    taps = np.arange(-half + 1, half + 1)
    out = np.empty(n_out, np.float32)
    for start in range(0, n_out, 65536):  # bounds the table of taps to some tens of MiB
        position = np.arange(start, min(n_out, start + 65536), dtype=np.float64) * rate / target
        whole = np.floor(position).astype(np.int64)
        distance = taps[None, :] - (position - whole)[:, None]
        kernel = cut * np.sinc(cut * distance) * (0.5 + 0.5 * np.cos(np.pi * np.clip(distance / half, -1, 1)))
        out[start : start + len(position)] = (padded[whole[:, None] + taps[None, :] + half] * kernel).sum(axis=1)
    return out
