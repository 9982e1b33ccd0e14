"""The inner learning rate as a function of how far the run has come. Imports no torch."""

from __future__ import annotations

import math

FIRST_SHARE = 0.01


def lr_at(frames_done: float, total_frames: float, warmup_frames: float, peak: float, floor: float) -> float:
    """Learning rate of an inner step: linear warm-up, then half a cosine down to `floor * peak`.

    Args:
        frames_done: frames that the run had counted before this step.
        total_frames: planned for the run; beyond them the rate stays at the floor.
        warmup_frames: length of the warm-up, 0 for none.
        peak: highest rate. floor: share of the peak at the end, 0 .. 1.

    Returns: a rate that is never below a hundredth of the peak in the warm-up, so that the first step does something.
    """
    if frames_done < warmup_frames:
        return peak * max(FIRST_SHARE, frames_done / warmup_frames)
    span = total_frames - warmup_frames
    progress = 1.0 if span <= 0 else min(1.0, (frames_done - warmup_frames) / span)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))
