"""The mel spectrogram that the speaker encoder was trained on, of a stream of any length. numpy only.

Power spectra of 25 ms windows every 10 ms, in 40 mel bands (Slaney's scale, bands of equal area), not as a logarithm: what
Resemblyzer computes with librosa, in blocks, without librosa's slow import.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16000
HOP = 160  # samples between two frames
N_FFT = 400  # samples of one window, centred on its frame
N_MELS = 40
CHUNK = 128  # frames computed together: always as many, so that the last bit does not depend on how the samples came


class MelStream:
    """Mel frames of a stream of samples at 16 kHz; the concatenated frames do not depend on the sizes of the blocks."""

    def __init__(self) -> None:
        self._rest = np.zeros(N_FFT // 2, np.float32)  # the first frame is centred on the first sample
        self._samples = 0
        self._frames = 0

    def push(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Take float32 [N]; give the frames that are now known: mel [T, 40] and mean power [T] of each frame's 10 ms."""
        self._samples += len(samples)
        self._rest = np.concatenate([self._rest, samples.astype(np.float32, copy=False)])
        chunks = max(0, (len(self._rest) - N_FFT) // HOP + 1) // CHUNK
        return self._take(chunks * CHUNK)

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The last frames; 1 + samples // 160 in all."""
        left = 1 + self._samples // HOP - self._frames
        padded = -(-left // CHUNK) * CHUNK
        needed = (padded - 1) * HOP + N_FFT
        self._rest = np.concatenate([self._rest, np.zeros(max(0, needed - len(self._rest)), np.float32)])
        mel, power = self._take(padded)
        self._rest = np.zeros(0, np.float32)
        return mel[:left], power[:left]

    def _take(self, frames: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Compute `frames` frames, a multiple of CHUNK, and let go of the samples before the next one's window."""
        mel = np.empty((frames, N_MELS), np.float32)
        power = np.empty(frames, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(self._rest, N_FFT)[::HOP] if frames else self._rest
        middle = slice((N_FFT - HOP) // 2, (N_FFT + HOP) // 2)
        for start in range(0, frames, CHUNK):
            part = windows[start : start + CHUNK]  # [CHUNK, N_FFT]
            spectrum = np.fft.rfft(part * hann(), axis=1)  # [CHUNK, N_FFT // 2 + 1]
            mel[start : start + CHUNK] = (spectrum.real**2 + spectrum.imag**2) @ mel_filters()
            power[start : start + CHUNK] = np.square(part[:, middle]).mean(axis=1)
        self._rest = self._rest[frames * HOP :].copy()
        self._frames += frames
        return mel, power


@functools.cache
def hann() -> NDArray[np.float32]:
    """The periodic Hann window [N_FFT]."""
    return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT), np.float32)


@functools.cache
def mel_filters() -> NDArray[np.float32]:
    """Weights [N_FFT // 2 + 1, N_MELS] of triangles on Slaney's mel scale (Auditory Toolbox, 1998), each of unit area in Hz."""
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(SAMPLE_RATE / 2), N_MELS + 2))  # [N_MELS + 2]
    bins = np.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1)[:, None]  # [bins, 1]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2])), np.float32)


_LINEAR_HZ, _LINEAR_TO_HZ = 200.0 / 3, 1000.0  # Slaney: linear below 1 kHz, then 27 steps for each factor of 6.4
_STEP = np.log(6.4) / 27


def _hz_to_mel(hz: float) -> float:
    if hz < _LINEAR_TO_HZ:
        return hz / _LINEAR_HZ
    return float(_LINEAR_TO_HZ / _LINEAR_HZ + np.log(hz / _LINEAR_TO_HZ) / _STEP)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    knee = _LINEAR_TO_HZ / _LINEAR_HZ
    return np.where(mel < knee, mel * _LINEAR_HZ, _LINEAR_TO_HZ * np.exp(_STEP * (np.maximum(mel, knee) - knee)))
