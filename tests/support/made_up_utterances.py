"""Made-up utterances whose codes depend on their phonemes, so that a model can learn them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts.config import ModelConfig, preset

CODEBOOKS, CARD, PHONEMES = 3, 32, 20


@dataclass
class MadeUp:
    """The fields of a shard's row that the model reads."""

    id: str
    phonemes: NDArray[np.uint16]
    durations: NDArray[np.uint16]
    word_starts: NDArray[np.uint8]
    codes: NDArray[np.uint16]
    n_frames: int
    language: str = "en-US"
    speaker_embedding: Any = None


def make(count: int, *, seed: int = 0, config: ModelConfig | None = None, phones: tuple[int, int] = (6, 16)) -> list[MadeUp]:
    """`count` utterances of differing lengths; a phoneme's codes change with the frame in it and with the phoneme before."""
    books = config.n_codebooks if config else CODEBOOKS
    card = config.codebook_size if config else CARD
    inventory = config.n_phonemes if config else PHONEMES
    draw = np.random.default_rng(seed)
    table = np.random.default_rng(77).integers(0, card, (inventory, 4, books))
    result = []
    for number in range(count):
        length = int(draw.integers(*phones))
        phonemes = draw.integers(1, inventory, length)
        durations = 1 + draw.poisson(2.5, length)
        place = np.concatenate([np.arange(d) for d in durations]) % 4
        owner = np.repeat(np.arange(length), durations)
        codes = (table[phonemes[owner], place] + (phonemes[np.maximum(owner - 1, 0)] % 2)[:, None]) % card
        result.append(
            MadeUp(
                id=f"made-{seed}-{number}",
                phonemes=phonemes.astype(np.uint16),
                durations=durations.astype(np.uint16),
                word_starts=(draw.random(length) < 0.3).astype(np.uint8),
                codes=codes.T.astype(np.uint16).copy(),
                n_frames=len(owner),
            )
        )
    return result


def small_config(**changes: Any) -> ModelConfig:
    return preset("test", n_codebooks=CODEBOOKS, codebook_size=CARD, n_phonemes=PHONEMES, **changes)
