"""Recordings as arrays: reading any file that libsndfile knows, and resampling. numpy only."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import soundfile

from common.errors import Code, HocketError

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")
MIN_RATE, MAX_RATE = 4000, 200_000  # Hz; a rate far outside would need a huge table of taps
BLOCK = 1 << 16  # output samples at a time: bounds the memory of the windows to some tens of MiB


def audio_files(folder: Path) -> list[Path]:
    """All recordings below `folder`, sorted by path, so that every machine sees them in the same order."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file())


def read_audio(path: Path, sample_rate: int) -> np.ndarray:
    """Read a recording as float32 [N] in [-1, 1], channels averaged, at `sample_rate` Hz.

    Raises:
        HocketError: AUDIO_UNREADABLE if libsndfile cannot read it, its rate is odd, it has no samples, or some are not finite.
    """
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError) as error:  # soundfile's own errors are RuntimeErrors
        raise HocketError(Code.AUDIO_UNREADABLE, f"{path}: {error}") from error
    if not MIN_RATE <= rate <= MAX_RATE:
        raise HocketError(Code.AUDIO_UNREADABLE, f"{path} says it has {rate} samples a second")
    if len(samples) == 0 or not np.isfinite(samples).all():
        raise HocketError(Code.AUDIO_UNREADABLE, f"{path} has no samples, or some that are not finite")
    return resample(np.ascontiguousarray(samples.mean(axis=1)), rate, sample_rate)


def resample(wav: np.ndarray, rate: int, target: int) -> np.ndarray:
    """Band-limited resampling of float32 [N] from `rate` to `target` Hz; ceil(N * target / rate) samples.

    A windowed-sinc interpolator (Hann, 16 zero crossings a side), cut at 0.95 of the lower Nyquist frequency.
    """
    if rate == target:
        return wav.astype(np.float32, copy=False)
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    table = _interpolators(up, down)  # [up, taps]
    half = table.shape[1] // 2
    padded = np.concatenate([np.zeros(half, np.float32), wav.astype(np.float32, copy=False), np.zeros(half + 1, np.float32)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)
    n_out = -(-len(wav) * up // down)
    out = np.empty(n_out, np.float32)
    for start in range(0, n_out, BLOCK):
        position = np.arange(start, min(n_out, start + BLOCK), dtype=np.int64) * down  # in 1 / up of an input sample
        # Row w + 1 of `windows` holds input samples w - half + 1 to w + half, the places of the taps.
        out[start : start + BLOCK] = np.einsum("nt,nt->n", windows[position // up + 1], table[position % up])
    return out


@functools.lru_cache(maxsize=8)
def _interpolators(up: int, down: int) -> np.ndarray:
    """Taps float32 [up, taps] that give the signal at each of `up` places between two samples, for a rate change by up / down."""
    cut = 0.95 * min(1.0, up / down)
    half = math.ceil(16 / cut)
    distance = np.arange(-half + 1, half + 1)[None, :] - np.arange(up)[:, None] / up
    window = 0.5 + 0.5 * np.cos(np.pi * np.clip(distance / half, -1, 1))
    return np.asarray(cut * np.sinc(cut * distance) * window, dtype=np.float32)
