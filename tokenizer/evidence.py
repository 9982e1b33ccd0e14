"""What an alignment shows of whether a recording says a text: a few numbers for each pair of recording and text.

The plain alignment score has two weaknesses as a judge. In a clip of one word most frames are the silence around it, which
fits every text; and one sound that the aligner knows badly can outweigh all others. So beside the score there are means over
the sounding phonemes alone, each against the best symbol at the same frame ("goodness of pronunciation", Witt and Young 2000)
and cut off below, and figures of the durations: a wrong text has many phonemes of a single frame, others far too long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenizer.align import Aligner, Features, Ids, frame_blocks, reader_of

NAMES = (
    "score",  # mean log p(symbol | frame) along the path
    "fit",  # mean log ratio to the best symbol of the frame
    "sounding_fit",  # the same over the frames of sounding phonemes
    "phoneme_fit",  # the same with every sounding phoneme counted once
    "single",  # share of sounding phonemes of one frame
    "length",  # mean log duration of the sounding phonemes
    "spread",  # standard deviation of the same
    "phonemes",  # log of their number
)
LOWEST_SCORE = -12.0
LOWEST_FIT = -6.0
CONTRASTS = 4  # texts of others a clip
CONTRAST_PAIRS = 4000  # in all, whatever the size of the corpus
CONTRAST_FRAMES = 1500  # longer clips need no contrast of their own
UNSPOKEN_CLIPS = 200  # of each of the two kinds
SILENCE_FRAMES = 2000  # of the corpus, from which silent recordings are made up
TRIES = 32

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """Evidence of a corpus.

    Args:
        own: float64 [N, E], of each clip with its own text; columns as in NAMES.
        contrast: float64 [M, E], of clips with the texts of others.
        clips: int64 [M], which clip each row of `contrast` is of.
        unspoken: float64 [S, E], of texts with what is no speech: the silence of the corpus, and its frames in random order.
    """

    own: Table
    contrast: Table
    clips: NDArray[np.int64]
    unspoken: Table


def path_evidence(
    aligner: Aligner,
    phonemes: Sequence[Ids],
    durations: Sequence[NDArray[np.integer]],
    features: Features,
    *,
    silent: Collection[int],
) -> Table:
    """Evidence float64 [N, E] of utterances that are aligned already.

    Args:
        phonemes, durations: ids and frames [P] of each.
        features: float32 [T, D] of each, or a function of its index that reads them; one is in memory at a time.
        silent: ids of the symbols without sound (END and PAUSE).
    """
    read = reader_of(features)
    rows = np.empty((len(phonemes), len(NAMES)))
    for index, (ids, path) in enumerate(zip(phonemes, durations, strict=True)):
        symbols = np.repeat(ids.astype(np.int64), path)
        score, best = np.empty(len(symbols)), np.empty(len(symbols))
        with torch.no_grad():
            for first, table in frame_blocks(aligner, aligner.symbol_log_probs, ids, read(index)):
                part = slice(first, first + len(table))
                score[part] = table[np.arange(len(table)), symbols[part]]
                best[part] = table.max(axis=1)
        rows[index] = _figures(ids, np.asarray(path, dtype=np.int64), score, score - best, silent)
    return rows


def _figures(ids: Ids, path: NDArray[np.int64], score: Table, fit: Table, silent: Collection[int]) -> list[float]:
    sounding = ~np.isin(ids, list(silent))
    if not sounding.any():
        sounding = np.ones(len(ids), dtype=bool)
    starts = np.cumsum(path) - path
    by_phoneme = np.maximum(np.add.reduceat(fit, starts) / path, LOWEST_FIT)[sounding]
    fit = np.maximum(fit, LOWEST_FIT)
    # Half a frame more, so that one frame and two are not further apart than two and four.
    length = np.log(path[sounding] + 0.5)
    return [
        float(np.maximum(score, LOWEST_SCORE).mean()),
        float(fit.mean()),
        float(fit[np.repeat(sounding, path)].mean()),
        float(by_phoneme.mean()),
        float((path[sounding] == 1).mean()),
        float(length.mean()),
        float(length.std()),
        float(np.log(sounding.sum())),
    ]


def contrast_pairs(phonemes: Sequence[Ids], n_frames: Sequence[int], *, seed: int) -> list[tuple[int, int]]:
    """(clip, another clip whose text it is given) of the contrast, by clip. Pure.

    The other text differs from the clip's own and has no more phonemes than the clip has frames. A large corpus is sampled.
    """
    draw = np.random.default_rng(seed)
    n_clips = len(phonemes)
    usable = [index for index in range(n_clips) if n_frames[index] <= CONTRAST_FRAMES]
    few = n_clips * CONTRASTS
    each = CONTRASTS if few >= 200 else min(max(n_clips - 1, 0), -(-200 // max(n_clips, 1)))
    if len(usable) * each > CONTRAST_PAIRS:
        usable = sorted(int(index) for index in draw.choice(usable, CONTRAST_PAIRS // each, replace=False))
    pairs: list[tuple[int, int]] = []
    for index in usable:
        others: list[int] = []
        for other in draw.choice(n_clips, min(TRIES, n_clips), replace=False).tolist():
            fits = len(phonemes[other]) <= n_frames[index] and not np.array_equal(phonemes[other], phonemes[index])
            if fits and len(others) < each:
                others.append(other)
        pairs += [(index, other) for other in others]
    return pairs


def corpus_evidence(
    aligner: Aligner,
    phonemes: Sequence[Ids],
    durations: Sequence[NDArray[np.integer]],
    features: Features,
    *,
    silent: Collection[int],
    seed: int = 0,
) -> Evidence:
    """Evidence of aligned clips with their own texts and with those of others; memory does not grow with the corpus's frames."""
    read = reader_of(features)
    own = path_evidence(aligner, phonemes, durations, read, silent=silent)
    pairs = contrast_pairs(phonemes, [int(np.sum(path, dtype=np.int64)) for path in durations], seed=seed)
    texts = [phonemes[other] for _, other in pairs]

    def sound(place: int) -> NDArray[np.float32]:
        return read(pairs[place][0])

    paths = [path for path, _ in aligner.align_all(texts, sound)]
    contrast = path_evidence(aligner, texts, paths, sound, silent=silent)
    unspoken = _unspoken(aligner, phonemes, durations, read, silent, seed)
    return Evidence(own, contrast, np.array([clip for clip, _ in pairs], dtype=np.int64), unspoken)


def _unspoken(
    aligner: Aligner,
    phonemes: Sequence[Ids],
    durations: Sequence[NDArray[np.integer]],
    read: Callable[[int], NDArray[np.float32]],
    silent: Collection[int],
    seed: int,
) -> Table:
    """Evidence [S, E] of texts with silence and with their own frames in random order, as far as clips are short.

    Without these a recording of nothing is judged by what no pair of speech and text has shown: all of it fits END well.
    """
    usable = [index for index, path in enumerate(durations) if int(np.sum(path, dtype=np.int64)) <= CONTRAST_FRAMES]
    draw = np.random.default_rng(seed)
    chosen = draw.choice(usable, min(UNSPOKEN_CLIPS, len(usable)), replace=False).tolist() if usable else []
    silence: list[NDArray[np.float32]] = []
    for index in chosen:
        if sum(len(part) for part in silence) < SILENCE_FRAMES:
            silence.append(read(index)[np.repeat(np.isin(phonemes[index], list(silent)), durations[index])])
    quiet = np.concatenate(silence) if silence else np.zeros((0, 0), dtype=np.float32)
    of_clips = chosen * 2 if len(quiet) else chosen

    def sound(place: int) -> NDArray[np.float32]:
        """Made anew each time it is asked for, so that one is in memory."""
        own = np.random.default_rng([seed, place])
        if place < len(chosen):
            frames = read(of_clips[place])  # [T, D]
            return frames[own.permutation(len(frames))]
        return quiet[own.integers(len(quiet), size=int(np.sum(durations[of_clips[place]], dtype=np.int64)))]

    texts = [phonemes[index] for index in of_clips]
    paths = [path for path, _ in aligner.align_all(texts, sound)]
    return path_evidence(aligner, texts, paths, sound, silent=silent)
