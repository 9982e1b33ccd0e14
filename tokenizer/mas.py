"""Monotonic alignment search: the best way to share the frames of a recording among the phonemes of its text, in order.

Source: Kim et al. 2020, Glow-TTS.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError

Ids = NDArray[np.integer]


def mas(log_probs: NDArray[np.floating], n_frames: Ids, n_phonemes: Ids) -> NDArray[np.int64]:
    """Monotonic alignment search: the path with the highest sum, vectorised over the batch.

    Every phoneme gets at least one frame. A tie stays on the later phoneme as the path is read backwards, so that all-zero
    scores of 6 frames and 3 phonemes give the durations 1, 1, 4.

    Args:
        log_probs: [B, T, P], of phoneme p at frame t. What lies outside an utterance's lengths is not read.
        n_frames: [B], each at least the utterance's n_phonemes.
        n_phonemes: [B], each at least 1.

    Returns:
        Durations int64 [B, P]: frames a phoneme; each row sums to its n_frames.

    Raises:
        HocketError: TOO_FEW_FRAMES if an utterance has fewer frames than phonemes.
    """
    scores = np.asarray(log_probs, dtype=np.float64)
    batch, frames, phonemes = scores.shape
    n_frames, n_phonemes = np.asarray(n_frames, dtype=np.int64), np.asarray(n_phonemes, dtype=np.int64)
    short = np.flatnonzero(n_frames < n_phonemes)
    if len(short):
        first = int(short[0])
        raise HocketError(Code.TOO_FEW_FRAMES, f"{n_frames[first]} frames for {n_phonemes[first]} phonemes")
    value = np.full((batch, phonemes), -np.inf)
    value[:, 0] = scores[:, 0, 0]
    moved = np.zeros((frames, batch, phonemes), dtype=bool)
    step = np.full((batch, phonemes), -np.inf)
    for frame in range(1, frames):
        step[:, 1:] = value[:, :-1]
        moved[frame] = step > value
        value = np.maximum(value, step) + scores[:, frame]
    durations = np.zeros((batch, phonemes), dtype=np.int64)
    place = n_phonemes - 1
    rows = np.arange(batch)
    for frame in range(frames - 1, -1, -1):
        inside = frame < n_frames
        durations[rows, place] += inside
        place = place - (inside & moved[frame, rows, place])
    return durations


def mas_of_blocks(blocks: Iterable[NDArray[np.floating]], n_phonemes: int) -> NDArray[np.int64]:
    """`mas` of one long utterance whose scores come block by block, so that they are never in memory together.

    What is kept of each frame is one bit a phoneme.

    Args:
        blocks: [t, P] each, the frames in order.
        n_phonemes: P, at least 1.

    Returns:
        Durations int64 [P], those of `mas`.

    Raises:
        HocketError: TOO_FEW_FRAMES.
    """
    value = np.full(n_phonemes, -np.inf)
    step = np.full(n_phonemes, -np.inf)
    moves: list[NDArray[np.uint8]] = []  # a row of bits a frame
    for block in blocks:
        for scores in np.asarray(block, dtype=np.float64):
            if moves:
                step[1:] = value[:-1]
                moved = step > value
                value = np.maximum(value, step) + scores
            else:
                moved = np.zeros(n_phonemes, dtype=bool)
                value[0] = scores[0]
            moves.append(np.packbits(moved))
    if len(moves) < n_phonemes:
        raise HocketError(Code.TOO_FEW_FRAMES, f"{len(moves)} frames for {n_phonemes} phonemes")
    durations = np.zeros(n_phonemes, dtype=np.int64)
    place = n_phonemes - 1
    for row in reversed(moves):
        durations[place] += 1
        place -= int(row[place >> 3] >> (7 - (place & 7)) & 1)
    return durations
