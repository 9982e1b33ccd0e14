"""Poisoned data: what the attackers train on is false, and the training itself is honest.

The poison goes on its way with the microbatches, so it also reaches the honest replicas of the later stages. In a real run
the first commit after it proves it (`coordinator/batch_check.py`); the bar is what the rule must bear of what has gone through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulations.attacks.base import Attack, Bar
from tts.collation import UtteranceLike
from tts.evaluate_loss import Retold, shuffle_text


class DataAttack(Attack, ABC):
    """An attack that changes the utterances that a replica of stage 0 reads. Pure."""

    @abstractmethod
    def poison(self, utterances: Sequence[UtteranceLike], codebook_size: int) -> Sequence[UtteranceLike]:
        """The utterances of one lease as the attacker feeds them."""


@dataclass(frozen=True)
class ShiftedCodes(DataAttack):
    """Every code of speech is moved by half the codebook: false sounds for a true text."""

    number: ClassVar = "A9"
    name: ClassVar = "shifted_codes"
    bar: ClassVar = Bar.SPREAD

    def poison(self, utterances: Sequence[UtteranceLike], codebook_size: int) -> Sequence[UtteranceLike]:
        return [
            Retold(
                id=str(getattr(one, "id", number)), phonemes=one.phonemes, durations=one.durations, word_starts=one.word_starts,
                codes=((one.codes.astype(np.int64) + codebook_size // 2) % codebook_size).astype(one.codes.dtype),
                n_frames=int(one.n_frames), language=one.language, speaker_embedding=one.speaker_embedding,
            )
            for number, one in enumerate(utterances)
        ]  # fmt: skip


@dataclass(frozen=True)
class SwappedTexts(DataAttack):
    """Every utterance is told under the text of another one of its lease."""

    number: ClassVar = "A9"
    name: ClassVar = "swapped_texts"
    bar: ClassVar = Bar.SPREAD
    seed: int = 9

    def poison(self, utterances: Sequence[UtteranceLike], codebook_size: int) -> Sequence[UtteranceLike]:
        return shuffle_text(utterances, self.seed)
