"""Batches of clips for codecs on waveforms: padded on the right to whole frames, and their codes cut to length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from common.errors import Code, HocketError
from tokenizer.devices import is_out_of_memory, run_in_halves

MAX_BATCH_SAMPLES = 30 * 24000  # a batch with its padding: bounds the memory of activations, unless one clip is longer

CARD_BATCH = 8  # clips a batch of causal codecs on a card
MIN_CAUSAL_FRAMES = 16  # more than any edge that a causal codec reflects: EnCodec's last convolution reflects 6 frames


def clips_in_batch(device: str) -> int:
    """Clips a batch of a causal codec: several on a card; one on a CPU, which gains nothing by batches.

    Memory has no say in it, for in another batch a clip may be rounded otherwise, and a dataset is to be the same whatever else
    runs. Measured with EnCodec on a CPU: latents differ by 1e-6 in a batch, and not at all alone.
    """
    return 1 if device == "cpu" else CARD_BATCH


def batches_by_length(lengths: list[int], *, max_clips: int, max_samples: int = MAX_BATCH_SAMPLES) -> list[list[int]]:
    """Indices of clips in batches of similar length.

    Args:
        lengths: of the clips in samples.
        max_clips: in a batch.
        max_samples: of a batch, padding included; a longer clip is a batch by itself.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        # Clips come by rising length, so this one sets the length of the batch that it would join.
        if batches and len(batches[-1]) < max_clips and (len(batches[-1]) + 1) * lengths[i] <= max_samples:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def encode_padded(
    wavs: list[np.ndarray],
    hop: int,
    codes_of: Callable[[Tensor], Tensor],
    *,
    n_codebooks: int,
    max_clips: int,
    min_frames: int = 1,
) -> list[np.ndarray]:
    """Codes uint16 [K, ceil(N_i / hop)] of clips float32 [N_i].

    Each clip is padded with zeros to whole frames even when it is alone: a causal codec that reflects or replicates at the
    end would otherwise give another last frame alone than in a batch. A batch that does not fit the memory is halved.

    Args:
        codes_of: codes int64 [B, K, T] of samples [B, 1, T * hop].
        max_clips: in a batch; 1 for a codec that is not causal, whose codes padding would change.
        min_frames: that a shorter clip is padded to. EnCodec fills up its left edge by reflection, so that its first frame
            depends on the next few even though it is causal; these must be the same alone and in a batch.

    Raises:
        HocketError: CODEC_UNREADABLE if the codec gives another number of books or frames.
    """

    def encode(batch: list[int]) -> list[np.ndarray]:
        frames = [-(-len(wavs[i]) // hop) for i in batch]
        longest = max(min_frames, *frames)
        padded = torch.zeros(len(batch), 1, longest * hop)
        for row, i in enumerate(batch):
            padded[row, 0, : len(wavs[i])] = torch.from_numpy(wavs[i])
        codes = codes_of(padded)
        expected = (len(batch), n_codebooks, longest)
        if tuple(codes.shape) != expected:
            raise HocketError(Code.CODEC_UNREADABLE, f"the model gives codes of shape {tuple(codes.shape)}, not {expected}")
        array = codes.numpy().astype(np.uint16)
        return [np.ascontiguousarray(array[row, :, :n]) for row, n in enumerate(frames)]

    results: list[np.ndarray] = [np.empty(0, np.uint16)] * len(wavs)
    for batch in batches_by_length([len(wav) for wav in wavs], max_clips=max_clips):
        for i, codes in zip(batch, run_in_halves(batch, encode, is_out_of_memory=is_out_of_memory), strict=True):
            results[i] = codes
    return results
