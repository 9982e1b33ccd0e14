"""Band-limited resampling, of a whole recording or block by block with the same result to the bit. numpy only."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16  # output samples at a time: bounds the memory of the windows to some tens of MiB
_EMPTY = np.empty(0, np.float32)


def resample(wav: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """Band-limited resampling of float32 [N] from `rate` to `target` Hz; ceil(N * target / rate) samples.

    A windowed-sinc interpolator (Hann, 16 zero crossings a side), cut at 0.95 of the lower Nyquist frequency.
    """
    if rate == target:
        return wav.astype(np.float32, copy=False)
    resampler = Resampler(rate, target)
    return np.concatenate([resampler.push(wav), resampler.finish()])


class Resampler:
    """`resample` block by block: what it gives, joined, is what the whole would give, bit by bit.

    Args:
        rate, target: in Hz.
    """

    def __init__(self, rate: int, target: int) -> None:
        common = math.gcd(rate, target)
        self._up, self._down = target // common, rate // common
        self._table = _interpolators(self._up, self._down) if rate != target else np.ones((1, 2), np.float32)  # [up, taps]
        self._half = self._table.shape[1] // 2
        self._same = rate == target
        self._held = np.zeros(self._half, np.float32)  # input from sample `_first` on; silence lies before the first
        self._first = -self._half
        self._n_in = self._n_out = 0

    def push(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """Samples that `block` [N], the next of the input, makes known; float32 [M]."""
        block = block.astype(np.float32, copy=False)
        if self._same:
            return block
        self._held = np.concatenate([self._held, block])
        self._n_in += len(block)
        # An output sample needs the `half` input samples that follow its place.
        known = max(0, self._n_in - self._half)
        return self._make(-(-known * self._up // self._down))

    def finish(self) -> NDArray[np.float32]:
        """The last samples; silence follows the input."""
        if self._same:
            return _EMPTY
        self._held = np.concatenate([self._held, np.zeros(self._half + 1, np.float32)])
        return self._make(-(-self._n_in * self._up // self._down))

    def _make(self, stop: int) -> NDArray[np.float32]:
        if stop <= self._n_out:
            return _EMPTY
        windows = np.lib.stride_tricks.sliding_window_view(self._held, 2 * self._half)
        out = np.empty(stop - self._n_out, np.float32)
        for start in range(self._n_out, stop, BLOCK):
            end = min(stop, start + BLOCK)
            position = np.arange(start, end, dtype=np.int64) * self._down  # in 1 / up of an input sample
            # The taps of an output at input place w are samples w - half + 1 to w + half.
            rows = position // self._up - self._half + 1 - self._first
            out[start - self._n_out : end - self._n_out] = np.einsum(
                "nt,nt->n", windows[rows], self._table[position % self._up]
            )
        self._n_out = stop
        dropped = stop * self._down // self._up - self._half + 1 - self._first
        self._held, self._first = self._held[dropped:].copy(), self._first + dropped
        return out


@functools.lru_cache(maxsize=8)
def _interpolators(up: int, down: int) -> NDArray[np.float32]:
    """Taps float32 [up, taps] that give the signal at each of `up` places between two samples, for a rate change by up / down."""
    cut = 0.95 * min(1.0, up / down)
    half = math.ceil(16 / cut)
    distance = np.arange(-half + 1, half + 1)[None, :] - np.arange(up)[:, None] / up
    window = 0.5 + 0.5 * np.cos(np.pi * np.clip(distance / half, -1, 1))
    return np.asarray(cut * np.sinc(cut * distance) * window, dtype=np.float32)
