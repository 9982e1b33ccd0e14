"""Codes of audio that comes in pieces, in bounded memory: windows at fixed places, so that pieces of any sizes give the same.

A clip's windows depend on nothing but its length, and `Codec.encode` runs the same windows over a clip that is longer than one.
So the codes of a stream are those of the whole clip bit for bit, on any device: it is the same computation in the same shapes.
(Run in other shapes, the same network rounds differently in the last bit, and a code near a tie may change.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from common.errors import Code, HocketError
from tokenizer.receptive_field import Reach

Codes = np.ndarray  # uint16 [K, T]


def check_samples(wav: np.ndarray) -> np.ndarray:
    """`wav` as contiguous float32 [N]; AUDIO_UNREADABLE if it is not one channel of finite samples."""
    samples = np.asarray(wav)
    if samples.ndim != 1 or len(samples) == 0 or samples.dtype.kind != "f":
        raise HocketError(Code.AUDIO_UNREADABLE, f"{samples.dtype} samples of shape {samples.shape} are not a channel of floats")
    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if not np.isfinite(samples).all():
        raise HocketError(Code.AUDIO_UNREADABLE, "some samples are not finite")
    return samples


class WindowEncoder(Protocol):
    """Encodes the windows of one clip, in their order; it may carry state from one to the next."""

    def __call__(self, samples: np.ndarray, before: int, after: int) -> Codes:
        """Codes uint16 [K, own] of the own frames of a window: float32 [(before + own + after) * hop] samples."""
        ...


class CodecStream:
    """Codes of one clip while its samples come; the codes of all calls together are `Codec.encode` of all samples.

    Memory is that of a window and of the largest piece, whatever the length of the clip.

    Args:
        window: encodes windows, of this clip only.
        whole: encodes a clip that is not longer than a window; float32 [N] -> uint16 [K, ceil(N / hop)].
        n_codebooks: K.
        hop: samples a frame.
        reach: what a window needs on its sides.
        window_frames: own frames of each window but the first, which has at least `reach.start` of them.
    """

    def __init__(
        self,
        window: WindowEncoder,
        whole: Callable[[np.ndarray], Codes],
        *,
        n_codebooks: int,
        hop: int,
        reach: Reach,
        window_frames: int,
    ) -> None:
        self._window, self._whole = window, whole
        self._none = np.zeros((n_codebooks, 0), np.uint16)
        self._hop, self._reach, self._window_frames = hop, reach, window_frames
        self._parts: list[np.ndarray] = []  # samples that are still needed, in order
        self._held = 0  # their number
        self._first = 0  # the frame that they begin with
        self._done = 0  # frames that are encoded
        self._finished = False

    def push(self, samples: np.ndarray) -> Codes:
        """The codes uint16 [K, t], t >= 0, that can be told after float32 [n] more samples, n >= 0.

        Raises:
            HocketError: AUDIO_UNREADABLE if `samples` is not one channel of finite samples.
            ValueError: after `finish`.
        """
        if self._finished:
            raise ValueError("the stream is finished")
        if np.ndim(samples) == 1 and len(samples) == 0:
            return self._none
        checked = check_samples(samples)
        self._parts.append(checked.copy() if checked is samples else checked)
        self._held += len(checked)
        return self._encode(last=False)

    def finish(self) -> Codes:
        """The codes uint16 [K, t] that are left; the last frame is filled up with zeros.

        Raises:
            HocketError: AUDIO_UNREADABLE if there was no sample at all.
            ValueError: after `finish`.
        """
        if self._finished:
            raise ValueError("the stream is finished")
        self._finished = True
        if not self._done and not self._held:
            raise HocketError(Code.AUDIO_UNREADABLE, "there are no samples")
        if not self._done and self._held <= self._own_frames() * self._hop:
            return self._whole(np.concatenate(self._parts))
        padding = -self._held % self._hop
        if padding:
            self._parts.append(np.zeros(padding, np.float32))
            self._held += padding
        return self._encode(last=True)

    def _own_frames(self) -> int:
        """Own frames of the next window."""
        return self._window_frames if self._done else max(self._window_frames, self._reach.start)

    def _encode(self, *, last: bool) -> Codes:
        """Codes of the windows that are complete; of all that is left if this is the `last` call."""
        frames = self._first + self._held // self._hop  # the frame behind the last one that is here
        if not self._ready(frames, last):
            return self._none
        samples = np.concatenate(self._parts)
        results = []
        while self._ready(frames, last):
            own = min(self._own_frames(), frames - self._done)
            begin = max(0, self._done - self._reach.before)
            end = min(frames, self._done + own + self._reach.after)
            part = samples[(begin - self._first) * self._hop : (end - self._first) * self._hop]
            results.append(self._window(part, self._done - begin, end - self._done - own))
            self._done += own
        kept = max(self._first, self._done - self._reach.before)
        rest = samples[(kept - self._first) * self._hop :].copy()  # a view would keep all of them
        self._parts, self._held, self._first = [rest], len(rest), kept
        return np.concatenate(results, axis=1)

    def _ready(self, frames: int, last: bool) -> bool:
        if last:
            return self._done < frames
        return self._done + self._own_frames() + self._reach.after <= frames


def encode_long(stream: CodecStream, wav: np.ndarray, piece: int) -> Codes:
    """Codes uint16 [K, T] of a clip float32 [N] through a fresh stream, in pieces of so many samples."""
    codes = [stream.push(wav[start : start + piece]) for start in range(0, len(wav), piece)]
    return np.concatenate([*codes, stream.finish()], axis=1)
