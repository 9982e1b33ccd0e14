"""Windows of a block of a recording, who is heard in them, and which of it is worth an embedding. numpy only.

Windows of 160 frames overlap: window w begins at frame w x step. They are views of the block's mel spectrogram, as are the
windows of the speakers' activity; nothing is copied before a batch is made of it. Every choice is made for all windows and
speakers of a block at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 160  # frames: 1.6 s, the length that the encoder was trained on
LEVEL = 10 ** (-24 / 10)  # mean power that a window's heard frames are brought to


@dataclass(frozen=True)
class WindowSettings:
    """
    Args:
        step: frames between the starts of two windows; a divisor of 160.
        min_frames: fewer frames of a speaker in a window give no embedding.
        min_clean: with at least as many clean frames, only these are used.
        margin: frames next to those of another speaker that are not clean either.
    """

    step: int = 80
    min_frames: int = 40
    min_clean: int = 40
    margin: int = 8


@dataclass(frozen=True)
class Block:
    """Frames of a recording with whole windows, and the pairs of a window and a speaker that are worth an embedding.

    Args:
        mel: [T, 40], power: [T] of each frame.
        full: [T, S], where each speaker is heard; clean: [T, S], where that speaker is heard alone.
        starts: [P], the frame in the block where each pair's window begins.
        speakers: [P], each pair's column; uses_clean: [P].
    """

    mel: NDArray[np.float32]
    power: NDArray[np.float32]
    full: NDArray[np.bool_]
    clean: NDArray[np.bool_]
    starts: NDArray[np.int64]
    speakers: NDArray[np.int64]
    uses_clean: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)

    def masks(self, pairs: slice) -> NDArray[np.bool_]:
        """Which frames of its window each pair uses: [B, 160]."""
        starts, speakers = self.starts[pairs], self.speakers[pairs]
        full = _windows(self.full)[starts, speakers]  # [B, 160]
        clean = _windows(self.clean)[starts, speakers]
        return np.where(self.uses_clean[pairs, None], clean, full)

    def crops(self, pairs: slice) -> NDArray[np.float32]:
        """Mel [B, 160, 40] of pairs, made here and now: other frames silent, the heard ones brought to one level.

        Silence in place was the best of the ways to mask that were measured (docs/measurements.md): frames that are moved
        together, repeated or mirrored told speakers apart no better or worse.
        """
        masks = self.masks(pairs)
        power = np.where(masks, _windows(self.power[:, None])[self.starts[pairs], 0], 0).sum(axis=1) / masks.sum(axis=1)  # [B]
        gain = (LEVEL / np.maximum(power, 1e-12)).astype(np.float32)
        crops = _windows(self.mel)[self.starts[pairs]].transpose(0, 2, 1)  # [B, 160, 40]
        return np.asarray(crops * (masks * gain[:, None])[:, :, None], np.float32)


def _windows(frames: NDArray) -> NDArray:
    """All windows [T - 159, C, 160] of [T, C], as a view."""
    return np.lib.stride_tricks.sliding_window_view(frames, WINDOW, axis=0)


def activity(first: int, frames: int, spans: Sequence[tuple[int, int, int]], columns: int) -> NDArray[np.bool_]:
    """[frames, columns]: whether a span (start, stop, column), in frames of the recording, covers a frame from `first` on."""
    edges = np.zeros((frames + 1, columns), np.int32)
    if spans:
        start, stop, column = np.array(spans, np.int64).T
        np.add.at(edges, (np.clip(start - first, 0, frames), column), 1)
        np.add.at(edges, (np.clip(stop - first, 0, frames), column), -1)
    return np.cumsum(edges[:-1], axis=0, dtype=np.int32) > 0


def clean_frames(full: NDArray[np.bool_], margin: int) -> NDArray[np.bool_]:
    """[T, S]: where a speaker is heard, and no other one within `margin` frames."""
    others = full.sum(axis=1, dtype=np.int32)[:, None] - full > 0  # [T, S]
    total = np.zeros((len(full) + 1, full.shape[1]), np.int32)
    np.cumsum(others, axis=0, out=total[1:])
    at = np.arange(len(full))
    near = total[np.minimum(at + margin + 1, len(full))] - total[np.maximum(at - margin, 0)]
    return full & (near == 0)


def choose(
    mel: NDArray[np.float32],
    power: NDArray[np.float32],
    full: NDArray[np.bool_],
    clean: NDArray[np.bool_],
    settings: WindowSettings,
    before: int = 0,
) -> Block:
    """Choose the pairs of a block, for all windows and speakers at once.

    The arrays ([T, ...]) begin `before` frames (nought or one step) before the first window, and end where the last window ends.
    A pair is worth an embedding where the speaker has enough frames in the window and they do not all lie in the window
    before or after it too.

    Returns:
        The block, its pairs in order of their windows.
    """
    step, parts = settings.step, WINDOW // settings.step
    heard = _counts(full, step, before)  # [1 + W + parts - 1, S]: frames heard in each step, from one before the first window on
    windows = len(heard) - parts
    total = np.lib.stride_tricks.sliding_window_view(heard[1:], parts, axis=0).sum(axis=2)  # [W, S]
    alone = np.lib.stride_tricks.sliding_window_view(_counts(clean, step, before)[1:], parts, axis=0).sum(axis=2)
    in_next = heard[1 : 1 + windows] == 0
    in_last = (heard[parts : parts + windows] == 0) & (heard[:windows] > 0)
    window, speaker = np.nonzero((total >= settings.min_frames) & ~in_next & ~in_last)
    uses_clean = alone[window, speaker] >= settings.min_clean
    return Block(mel, power, full, clean, before + window * step, speaker, uses_clean)


def _counts(mask: NDArray[np.bool_], step: int, before: int) -> NDArray[np.int32]:
    """Active frames [N, S] in each step of a mask [T, S]; a step without any stands first where nothing comes before."""
    steps = len(mask) // step
    counts = mask[: steps * step].reshape(steps, step, mask.shape[1]).sum(axis=1, dtype=np.int32)
    return counts if before else np.concatenate([np.zeros((1, mask.shape[1]), np.int32), counts])
