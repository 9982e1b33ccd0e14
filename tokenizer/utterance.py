"""One tokenised utterance, as a row of a shard holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError


@dataclass(frozen=True)
class Utterance:
    """One tokenised utterance.

    Args:
        id: of the clip, unique in its dataset.
        text: as the corpus has it. spoken: as it is said.
        phonemes: ids uint16 [P]. durations: frames a phoneme uint16 [P], summing to n_frames.
        word_starts: uint8 [P], 1 at the first phoneme of a word.
        align_score: mean log probability a frame of the alignment; near 0 is good.
        language: BCP 47. speaker: name. licence: of the recording.
        codes: uint16 [K, T]. n_frames: T.
        speaker_embedding: float32 [E] of length 1, or None.
    """

    id: str
    text: str
    spoken: str
    phonemes: NDArray[np.uint16]
    durations: NDArray[np.uint16]
    word_starts: NDArray[np.uint8]
    align_score: float
    language: str
    speaker: str
    codes: NDArray[np.uint16]
    n_frames: int
    speaker_embedding: NDArray[np.float32] | None
    licence: str

    def check(self) -> None:
        """SHARD_DAMAGED if lengths and sums do not fit each other."""
        p = len(self.phonemes)
        frames = self.n_frames
        if self.codes.ndim != 2 or self.codes.shape[0] == 0 or self.codes.shape[1] != frames or frames == 0:
            raise HocketError(Code.SHARD_DAMAGED, f"{self.id}: codes {self.codes.shape} for {frames} frames")
        if p == 0 or len(self.durations) != p or len(self.word_starts) != p or not self.phonemes.all():
            raise HocketError(Code.SHARD_DAMAGED, f"{self.id}: phonemes, durations and word starts do not belong together")
        if int(self.durations.sum(dtype=np.int64)) != frames or not self.durations.all():
            raise HocketError(Code.SHARD_DAMAGED, f"{self.id}: durations do not sum to {frames} frames, or one is 0")
        if not np.isfinite(self.align_score):
            raise HocketError(Code.SHARD_DAMAGED, f"{self.id}: its alignment score is not finite")
        if self.speaker_embedding is not None and not np.isfinite(self.speaker_embedding).all():
            raise HocketError(Code.SHARD_DAMAGED, f"{self.id}: its speaker embedding is not finite")

    @property
    def size_bytes(self) -> int:
        """Roughly what the row takes in memory."""
        embedding = 0 if self.speaker_embedding is None else self.speaker_embedding.nbytes
        arrays = self.codes.nbytes + self.phonemes.nbytes + self.durations.nbytes + self.word_starts.nbytes
        return arrays + embedding + len(self.text) + len(self.spoken) + 256
