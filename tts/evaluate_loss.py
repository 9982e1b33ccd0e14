"""Held-out loss, and whether a model reads its text: with another sentence's text the loss must rise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts.batch import collate
from tts.collation import UtteranceLike
from tts.draws import draw_key
from tts.dropout import PassContext
from tts.durations import fit
from tts.reference import AnyStage, forward_chain

MAX_BATCH_FRAMES = 2000


@dataclass(frozen=True)
class Retold:
    """The codes of one utterance under the text of another."""

    id: str
    phonemes: NDArray[Any]
    durations: NDArray[Any]
    word_starts: NDArray[Any]
    codes: NDArray[Any]
    n_frames: int
    language: str
    speaker_embedding: Any


@dataclass(frozen=True)
class HeldoutLoss:
    """Cross-entropy of a fixed set: sums [K] and counts [K]."""

    ce: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def per_code(self) -> float:
        return sum(self.ce) / max(1, sum(self.count))

    @property
    def per_codebook(self) -> tuple[float, ...]:
        return tuple(total / max(1, count) for total, count in zip(self.ce, self.count, strict=True))


@dataclass(frozen=True)
class TextCheck:
    """Loss per code with the right text and with several shuffles of it."""

    right: float
    shuffled: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How much the wrong text costs, on average."""
        return sum(self.shuffled) / len(self.shuffled) - self.right

    @property
    def spread(self) -> float:
        """How far the shuffles lie apart."""
        return max(self.shuffled) - min(self.shuffled)

    @property
    def reads_its_text(self) -> bool:
        return self.gap > self.spread


def eval_batches(utterances: Sequence[UtteranceLike], max_frames: int = MAX_BATCH_FRAMES) -> list[list[UtteranceLike]]:
    """Group utterances of like length into batches of at most `max_frames` frames, padding included; one at least."""
    batches: list[list[UtteranceLike]] = []
    for utterance in sorted(utterances, key=lambda item: int(item.n_frames)):
        if batches and (len(batches[-1]) + 1) * int(utterance.n_frames) <= max_frames:
            batches[-1].append(utterance)
        else:
            batches.append([utterance])
    return batches


def heldout_loss(
    stages: Sequence[AnyStage], utterances: Sequence[UtteranceLike], *, languages: Sequence[str] = ()
) -> HeldoutLoss:
    """Cross-entropy of utterances through all stages, every random mask off."""
    config = stages[0].config
    ce, count = np.zeros(config.n_codebooks, np.float64), np.zeros(config.n_codebooks, np.int64)
    for group in eval_batches(utterances):
        sums = forward_chain(stages, collate(group, config, languages), PassContext(train=False))
        ce += sums.ce.double().cpu().numpy()
        count += sums.count.cpu().numpy()
    return HeldoutLoss(ce=tuple(ce.tolist()), count=tuple(count.tolist()))


def shuffle_text(utterances: Sequence[UtteranceLike], seed: int) -> list[Retold]:
    """Give every utterance the text of another one, its durations fitted to the frames there are.

    No utterance keeps its own text where there are two or more. A function of (the list, seed).
    """
    order = np.random.Generator(np.random.Philox(key=draw_key(seed, "shuffle", "text"))).permutation(len(utterances))
    donors = {int(a): int(b) for a, b in zip(order, np.roll(order, 1), strict=True)}
    retold = []
    for index, utterance in enumerate(utterances):
        donor = utterances[donors[index]]
        retold.append(
            Retold(
                id=str(getattr(utterance, "id", index)),
                phonemes=donor.phonemes,
                word_starts=donor.word_starts,
                durations=fit(donor.durations, int(utterance.n_frames)),
                codes=utterance.codes,
                n_frames=int(utterance.n_frames),
                language=utterance.language,
                speaker_embedding=utterance.speaker_embedding,
            )
        )
    return retold


def text_check(
    stages: Sequence[AnyStage],
    utterances: Sequence[UtteranceLike],
    *,
    seed: int = 0,
    shuffles: int = 3,
    languages: Sequence[str] = (),
) -> TextCheck:
    """Held-out loss with right and with shuffled text."""
    right = heldout_loss(stages, utterances, languages=languages).per_code
    wrong = (heldout_loss(stages, shuffle_text(utterances, seed + i), languages=languages).per_code for i in range(shuffles))
    return TextCheck(right=right, shuffled=tuple(wrong))
