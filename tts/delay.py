"""The delay layout: codebook k of a frame is predicted k steps after codebook 0.

An utterance of T frames and K codebooks takes S = T + K steps. With T = 3, K = 2, codes a b, E = EOS, B = BOS, . = no target:

    inputs   book 0  B a a a E        targets  book 0  a a a E .
             book 1  B B b b b                 book 1  . b b b E

Every code is a target once and every codebook ends in one EOS. What follows a codebook's EOS, and all padding, is EOS in the
inputs and no target. The layout is that of published codec language models, with one EOS a codebook so that utterances end.
"""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100
"""Value of a target position that holds no code."""


def n_steps(n_frames: int, n_codebooks: int) -> int:
    """Steps S that `n_frames` take."""
    return n_frames + n_codebooks


def _sources(n_frames: Tensor, n_codebooks: int, n_frames_max: int, shift: int) -> tuple[Tensor, Tensor]:
    """Frame number that step s of codebook k holds, s - k - shift, and the utterances' lengths for comparison.

    Returns: int64 [1, K, S] and [B, 1, 1].
    """
    device = n_frames.device
    steps = torch.arange(n_frames_max + n_codebooks, device=device)
    books = torch.arange(n_codebooks, device=device)
    return (steps[None, :] - books[:, None] - shift)[None], n_frames[:, None, None]


def _gather(codes: Tensor, frame: Tensor) -> Tensor:
    index = frame.clamp(0, codes.shape[2] - 1).expand(codes.shape[0], -1, -1)
    return codes.gather(2, index)


def inputs(codes: Tensor, n_frames: Tensor, *, bos: int, eos: int) -> Tensor:
    """Codes that the decoder sees at each step: those of one step before.

    Args:
        codes: int64 [B, K, T]; what lies beyond an utterance's frames is not read.
        n_frames: int64 [B], 1 .. T.

    Returns: int64 [B, K, T + K].
    """
    frame, length = _sources(n_frames, codes.shape[1], codes.shape[2], 1)
    values = torch.where(frame < length, _gather(codes, frame), eos)
    return torch.where(frame < 0, bos, values)


def targets(codes: Tensor, n_frames: Tensor, *, eos: int) -> Tensor:
    """Codes to predict at each step, IGNORED where there is none.

    Args and shapes as for `inputs`. Each codebook has n_frames + 1 targets, the last of them EOS.
    """
    frame, length = _sources(n_frames, codes.shape[1], codes.shape[2], 0)
    values = torch.where(frame < length, _gather(codes, frame), eos)
    return torch.where((frame >= 0) & (frame <= length), values, IGNORED)


def undelay(delayed: Tensor) -> Tensor:
    """Take target codes apart again: [B, K, T + K] in delayed steps to [B, K, T] in frames."""
    books = delayed.shape[1]
    frames = delayed.shape[2] - books
    return torch.stack([delayed[:, k, k : k + frames] for k in range(books)], dim=1)
