"""Utterances whose sounds follow from their phonemes: speech that a small model learns in seconds, for runs without a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenizer.utterance import Utterance
from tts.collation import UtteranceLike
from tts.config import ModelConfig, preset

LANGUAGE = "en-US"
PHONEMES = 24
CODEBOOKS = 2
CODEBOOK_SIZE = 64
FALSE_CODES = 0.35
HELDOUT = 1 << 40


def small_model() -> ModelConfig:
    """The test preset, fitted to this speech and halved: a decoder block for each of two stages."""
    return preset(
        "test", n_codebooks=CODEBOOKS, codebook_size=CODEBOOK_SIZE, n_phonemes=PHONEMES, d_model=32, n_layers=2, text_dim=24,
        text_layers=1, duration_dim=16,
    )  # fmt: skip


def utterance(seed: int, number: int) -> Utterance:
    """Utterance `number`: a function of (seed, number). A third of its codes are random, as a codec leaves much open."""
    draw = np.random.Generator(np.random.Philox(key=[seed, number]))
    table = np.random.Generator(np.random.Philox(key=[seed, HELDOUT - 1])).integers(0, CODEBOOK_SIZE, (PHONEMES, CODEBOOKS))
    phonemes = draw.integers(1, PHONEMES, int(draw.integers(6, 12))).astype(np.uint16)
    durations = draw.integers(2, 6, len(phonemes)).astype(np.uint16)
    codes = table[np.repeat(phonemes, durations)].T  # [K, T]
    codes = np.where(draw.random(codes.shape) < FALSE_CODES, draw.integers(0, CODEBOOK_SIZE, codes.shape), codes)
    return Utterance(
        id=f"made-up-{seed}-{number}", text=f"text {number}", spoken=f"text {number}", phonemes=phonemes, durations=durations,
        word_starts=(draw.random(len(phonemes)) < 0.3).astype(np.uint8), align_score=0.0, language=LANGUAGE, speaker="made up",
        codes=codes.astype(np.uint16), n_frames=codes.shape[1], speaker_embedding=None, licence="CC0-1.0",
    )  # fmt: skip


@dataclass(frozen=True)
class MadeUpSpeech:
    """A reader of this speech, as the feeder wants one; no position is read twice."""

    seed: int
    heldout_count: int = 32

    async def utterances(self, epoch: int, start: int, stop: int, seed: int) -> Sequence[UtteranceLike]:
        return [utterance(self.seed, position) for position in range(start, stop)]

    async def heldout(self) -> Sequence[UtteranceLike]:
        return self.heldout_utterances()

    def heldout_utterances(self) -> list[Utterance]:
        """Those that are never trained on."""
        return [utterance(self.seed, HELDOUT + number) for number in range(self.heldout_count)]
