"""Alignment as a gate: does a recording say its text, and does a corpus?

Every clip is scored twice: with its own text, and with the text of another clip (the contrast). The two kinds of score show
what this aligner, codec and language give for a right and for a wrong text, so no number is fixed in advance. A clip whose
own text scores like a wrong one is refused; a corpus whose own texts score no better than others' does not say its texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenizer.align import Aligner, Features, Ids

MIN_SEPARATION = 0.5
MIN_CLIPS = 8


@dataclass(frozen=True)
class Judged:
    """What the scores of a corpus say.

    Args:
        refused: reason by the index of the clip.
        corpus_problem: why no clip can be trusted, or None.
        threshold: scores below it are refused.
        facts: figures behind the verdict, by name.
    """

    refused: dict[int, str]
    corpus_problem: str | None
    threshold: float
    facts: dict[str, float] = field(default_factory=dict)


def judge_alignment(scores: Sequence[float], contrast: Sequence[float]) -> Judged:
    """Refuse the clips whose own text scores like a text of another clip.

    The threshold is where the share of own scores above it, less the share of contrast scores above it, is greatest (Youden's
    index). Wrong transcripts among the own ones scale that difference and do not move its maximum.

    Args:
        scores: of the clips with their own texts.
        contrast: of clips of the same corpus with other clips' texts; any number.
    """
    own, other = np.asarray(scores, dtype=np.float64), np.asarray(contrast, dtype=np.float64)
    if len(own) < MIN_CLIPS or len(other) < MIN_CLIPS:
        return Judged({}, None, -np.inf, {"clips": float(len(own))})
    threshold, separation = _cut(own, other)
    facts = {
        "clips": float(len(own)),
        "separation": separation,
        "own_median": float(np.median(own)),
        "contrast_median": float(np.median(other)),
    }
    if separation < MIN_SEPARATION:
        problem = (
            f"its recordings do not say its texts: their own texts score {facts['own_median']:.2f}, the texts of other clips "
            f"{facts['contrast_median']:.2f}"
        )
        return Judged({}, problem, threshold, facts)
    refused = {
        index: f"its recording does not say its text (alignment score {score:.2f}, at least {threshold:.2f} is wanted)"
        for index, score in enumerate(own.tolist())
        if score < threshold
    }
    return Judged(refused, None, threshold, facts)


def _cut(own: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """(threshold, Youden's index there): midway between the two neighbouring scores."""
    values = np.unique(np.concatenate([own, other]))
    own_below = np.searchsorted(np.sort(own), values, side="left") / len(own)
    other_below = np.searchsorted(np.sort(other), values, side="left") / len(other)
    gain = other_below - own_below
    best = int(np.argmax(gain))
    below = values[best - 1] if best else values[0]
    return float((values[best] + below) / 2), float(gain[best])


def contrast_scores(aligner: Aligner, phonemes: Sequence[Ids], features: Features, seed: int) -> list[float]:
    """Scores of the clips with other clips' texts: for each the text of a clip drawn by `seed` that has no more phonemes than
    the recording has frames and differs from its own. Clips for which there is none are passed over."""
    read = features if callable(features) else features.__getitem__
    draw = np.random.default_rng(seed)
    lengths = np.array([len(ids) for ids in phonemes])
    pairs: list[tuple[int, int]] = []
    for index, own in enumerate(phonemes):
        for other in draw.permutation(len(phonemes))[:32].tolist():
            if lengths[other] <= len(read(index)) and not np.array_equal(phonemes[other], own):
                pairs.append((index, other))
                break
    aligned = aligner.align_all([phonemes[other] for _, other in pairs], lambda place: read(pairs[place][0]))
    return [score for _, score in aligned]
