"""The embedding of a short clip of one speaker: the mean of the embeddings of its windows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from tokenizer.recordings.embed import SpeakerEncoder
from tokenizer.recordings.features import SAMPLE_RATE, MelStream
from tokenizer.recordings.windows import LEVEL, WINDOW
from tokenizer.resampling import resample

STEP = WINDOW // 2
MIN_FRAMES = 40  # 0.4 s; less says little about a voice
QUIETEST = 1e-7


class ClipVoice:
    """Embeds clips.

    Args:
        encoder: gives the embeddings of windows.
    """

    def __init__(self, encoder: SpeakerEncoder) -> None:
        self._encoder = encoder

    def __call__(self, samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float32] | None:
        """The embedding float32 [256] of unit length of samples float32 [N]; None for a clip that is too short or silent."""
        stream = MelStream()
        parts = [stream.push(resample(samples, sample_rate, SAMPLE_RATE)), stream.finish()]
        mel = np.concatenate([part for part, _ in parts])  # [T, 40]
        power = float(np.mean(np.concatenate([part for _, part in parts])))
        if len(mel) < MIN_FRAMES or power < QUIETEST:
            return None
        mel = mel * np.float32(LEVEL / power)  # as loud as what the encoder was trained on
        count = max(1, -(-(len(mel) - WINDOW) // STEP) + 1)
        padded = np.zeros(((count - 1) * STEP + WINDOW, mel.shape[1]), np.float32)
        padded[: len(mel)] = mel
        windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=0)[::STEP].swapaxes(1, 2)  # [B, 160, 40]
        total = np.zeros(0, np.float32)
        for start in range(0, count, self._encoder.batch_size):
            crops = torch.from_numpy(windows[start : start + self._encoder.batch_size].copy())
            found = self._encoder.embed_in_parts(crops).cpu().numpy().sum(axis=0)
            total = total + found if len(total) else found
        norm = float(np.linalg.norm(total))
        return np.asarray(total / norm, np.float32) if norm > 0 else None
