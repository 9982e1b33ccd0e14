"""Alignment as a gate: does a recording say its text, and does a corpus?

Clips are judged by their own text and by the texts of other clips (the contrast). The two kinds show what this aligner, codec
and language give for a right and for a wrong text, so no number is fixed in advance. A clip whose own text looks like a wrong
one is refused; a corpus whose own texts look no better than others' does not say its texts. Judging is pure; `judge_clips`
computes what it judges by.

An aligner that was learnt on a corpus knows that corpus's mistakes too. On hundreds of clips that does not matter, for it
cannot learn so many by heart; on fewer than MIN_CLIPS it can, and then nothing is judged unless the aligner comes from another
corpus (`aligner_file`, `Aligner.fitted_to`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenizer.align import Aligner, Features, Ids, reader_of
from tokenizer.evidence import NAMES, Evidence, Table, contrast_pairs, corpus_evidence
from tokenizer.phonemes import END, PAUSE

# Measured: right corpora 0.88 to 1 (0.81 with a tenth of the transcripts swapped), wrong ones 0.03 to 0.57.
MIN_SEPARATION = 0.75
MIN_CLIPS = 100
MIN_CLIPS_REUSED = 16
MIN_CONTRAST = 32
CAUGHT = 0.965  # share of the contrast below the threshold, at least
GAP = 1.5  # log odds; where the own texts leave such a gap above that, the threshold lies within it
RIDGE = 0.01  # of standardised columns, which are nearly one another's sums; times the number of rows
UNSPOKEN_WEIGHT = 0.15  # of 0.5 for all that is wrong
NEWTON_STEPS = 30


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
    if len(own) < MIN_CLIPS or len(other) < MIN_CONTRAST:
        return Judged({}, None, -np.inf, {"clips": float(len(own))})
    threshold, separation = _cut(own, other)
    return _judged(own, other, threshold, separation, "alignment score {:.2f}, at least {:.2f} is wanted")


def judge_evidence(evidence: Evidence, *, least_clips: int = MIN_CLIPS) -> Judged:
    """Refuse the clips whose own text looks like a text of another clip, by all that their alignments show.

    A logistic regression learns on the corpus itself what tells own texts from others', both kinds weighing the same. The few
    wrong ones among the own cannot turn it; they are what it refuses.
    """
    if len(evidence.own) < least_clips or len(evidence.contrast) < MIN_CONTRAST:
        return Judged({}, None, -np.inf, {"clips": float(len(evidence.own))})
    own, contrast = log_odds(evidence)
    _, separation = _cut(own, contrast)
    threshold = _threshold(own, contrast)
    return _judged(own, contrast, threshold, separation, "log odds {:.1f} that it does, at least {:.1f} are wanted")


def _judged(own: NDArray[np.float64], other: NDArray[np.float64], threshold: float, separation: float, wording: str) -> Judged:
    facts = {
        "clips": float(len(own)),
        "separation": separation,
        "own_median": float(np.median(own)),
        "contrast_median": float(np.median(other)),
        "contrast_above": float((other >= threshold).mean()),
    }
    if separation < MIN_SEPARATION:
        problem = (
            f"its recordings do not say its texts: they fit them little better than the texts of other clips (separation "
            f"{separation:.2f} on a scale from 0 to 1, at least {MIN_SEPARATION} is wanted)"
        )
        return Judged({}, problem, threshold, facts)
    refused = {
        index: f"its recording does not say its text ({wording.format(score, threshold)})"
        for index, score in enumerate(own.tolist())
        if score < threshold
    }
    return Judged(refused, None, threshold, facts)


def _threshold(own: NDArray[np.float64], contrast: NDArray[np.float64]) -> float:
    """Below it are CAUGHT of the contrast, which are as wrong texts are; and if right and wrong ones among the own lie apart
    with a gap between them, those below the gap. Never above 0 for the gap's sake."""
    threshold = float(np.quantile(contrast, CAUGHT))
    ordered = np.sort(own)
    gaps = np.diff(ordered)
    gaps[(ordered[:-1] < threshold) | (ordered[:-1] >= 0)] = 0.0
    widest = int(np.argmax(gaps)) if len(gaps) else 0
    if len(gaps) and gaps[widest] >= GAP:
        threshold = max(threshold, min(0.0, float(ordered[widest] + ordered[widest + 1]) / 2))
    return threshold


def _cut(own: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """(threshold, Youden's index there): midway between the two neighbouring scores."""
    values = np.unique(np.concatenate([own, other]))
    own_below = np.searchsorted(np.sort(own), values, side="left") / len(own)
    other_below = np.searchsorted(np.sort(other), values, side="left") / len(other)
    gain = other_below - own_below
    best = int(np.argmax(gain))
    below = values[best - 1] if best else values[0]
    return float((values[best] + below) / 2), float(gain[best])


def log_odds(evidence: Evidence) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log odds that a clip says the text: of the own texts [N] and of the contrast [M].

    Right and wrong weigh the same in the fit, so 0 is where a text looks as much like one kind as like the other.
    """
    own, other, unspoken = _columns(evidence.own), _columns(evidence.contrast), _columns(evidence.unspoken)
    both = np.concatenate([own, other, unspoken])
    mean, deviation = both.mean(axis=0), both.std(axis=0) + 1e-9

    def scaled(table: Table) -> Table:
        return np.concatenate([(table - mean) / deviation, np.ones((len(table), 1))], axis=1)

    share = UNSPOKEN_WEIGHT if len(unspoken) else 0.0
    weight = len(both) * np.concatenate([
        np.full(len(own), 0.5 / len(own)),
        np.full(len(other), (0.5 - share) / len(other)),
        np.full(len(unspoken), share / max(1, len(unspoken))),
    ])  # fmt: skip
    inputs = scaled(both)
    right = np.arange(len(both)) < len(own)
    ridge = np.diag([RIDGE * len(both)] * (inputs.shape[1] - 1) + [0.0])
    solution = np.zeros(inputs.shape[1])
    for _ in range(NEWTON_STEPS):
        likely = 1 / (1 + np.exp(-np.clip(inputs @ solution, -30, 30)))
        slope = inputs.T @ (weight * (likely - right)) + ridge @ solution
        curvature = (inputs * (weight * likely * (1 - likely) + 1e-9)[:, None]).T @ inputs + ridge
        solution = solution - np.linalg.solve(curvature, slope)
    return scaled(own) @ solution, scaled(other) @ solution


def _columns(table: Table) -> Table:
    """The evidence and one product: a mean over many phonemes says more than one over few."""
    product = table[:, NAMES.index("phoneme_fit")] * table[:, NAMES.index("phonemes")]
    return np.concatenate([table, product[:, None]], axis=1)


def contrast_scores(aligner: Aligner, phonemes: Sequence[Ids], features: Features, seed: int) -> list[float]:
    """Alignment scores of clips with other clips' texts; see `contrast_pairs`."""
    read = reader_of(features)
    lengths = [len(read(index)) for index in range(len(phonemes))]
    pairs = contrast_pairs(phonemes, lengths, seed=seed)
    aligned = aligner.align_all([phonemes[other] for _, other in pairs], lambda place: read(pairs[place][0]))
    return [score for _, score in aligned]


def judge_clips(
    aligner: Aligner,
    phonemes: Sequence[Ids],
    durations: Sequence[NDArray[np.integer]],
    features: Features,
    *,
    symbols: Sequence[str],
    seed: int = 0,
    reused: bool = False,
) -> Judged:
    """Judge aligned clips of one language: which do not say their texts, and whether they do as a whole.

    Args:
        aligner: that aligned them.
        phonemes, durations: ids and frames [P] of each clip.
        features: float32 [T, D] of each, or a function of its index that reads them.
        symbols: the inventory of the ids.
        seed: of the choice of the contrast.
        reused: whether the aligner was learnt on another corpus, so that it cannot have learnt this one's mistakes by heart.

    Returns:
        The verdict; nothing is refused, and `facts` has only "clips", where there are too few clips to judge by.
    """
    silent = [symbols.index(symbol) for symbol in (END, PAUSE) if symbol in symbols]
    evidence = corpus_evidence(aligner, phonemes, durations, features, silent=silent, seed=seed)
    return judge_evidence(evidence, least_clips=MIN_CLIPS_REUSED if reused else MIN_CLIPS)
