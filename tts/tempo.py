"""Utterances told faster or slower, so that a model has heard other tempos than its corpus has.

A codec's frames follow one another at a fixed rate, so leaving frames out within a phoneme, or giving some twice, changes the
tempo and leaves the sound of each frame, its pitch above all, as it was. Only what is trained on changes; rows keep their codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts.collation import UtteranceLike
from tts.config import ModelConfig
from tts.draws import draw_key
from tts.durations import stretch


@dataclass(frozen=True)
class Retimed:
    """An utterance at another tempo; the fields are those of `tts.batch.UtteranceLike`."""

    id: str
    phonemes: NDArray[Any]
    durations: NDArray[np.int64]
    word_starts: NDArray[Any]
    codes: NDArray[Any]
    n_frames: int
    language: str
    speaker_embedding: Any


def retime(utterance: UtteranceLike, rate: float) -> Retimed:
    """An utterance `rate` times as long.

    Each phoneme's new frames are read from its own old ones, evenly: a phoneme of four frames told in two gives the second and
    the fourth. A phoneme that had no frame gets none.

    Args:
        rate: factor on the durations, above 0.

    Returns: durations summing to round(rate * n_frames), except that every phoneme that had a frame keeps one.
    """
    old = np.asarray(utterance.durations, np.int64)  # [P]
    heard = old > 0
    new = np.zeros_like(old)
    new[heard] = np.maximum(stretch(old[heard], rate), 1)
    phoneme = np.repeat(np.arange(len(old)), new)  # [T'] of each new frame
    within = np.arange(len(phoneme)) - np.repeat(np.cumsum(new) - new, new)
    source = (np.cumsum(old) - old)[phoneme] + ((within + 0.5) * old[phoneme] / new[phoneme]).astype(np.int64)
    return Retimed(
        id=str(getattr(utterance, "id", "")),
        phonemes=utterance.phonemes,
        durations=new,
        word_starts=utterance.word_starts,
        codes=utterance.codes[:, source],
        n_frames=len(source),
        language=utterance.language,
        speaker_embedding=utterance.speaker_embedding,
    )


def vary_tempo(
    utterances: Sequence[UtteranceLike], config: ModelConfig, *, seed: int, epoch: int, first: int
) -> list[UtteranceLike]:
    """Retime a share of the utterances (`config.tempo_share`) by factors evenly spread on a logarithmic scale.

    A function of (seed, epoch, position), so that whoever reads the same lease gets the same microbatches. An utterance that
    would become longer than the model accepts stays as it is.

    Args:
        utterances: of the positions from `first` on, in the epoch's order.
    """
    if config.tempo_share == 0:
        return list(utterances)
    told: list[UtteranceLike] = []
    for position, utterance in enumerate(utterances, first):
        draw = np.random.Generator(np.random.Philox(key=draw_key(seed, f"{epoch}/{position}", "tempo"))).random(2)
        rate = float(np.exp((2 * draw[1] - 1) * np.log(config.tempo_range)))
        varied = retime(utterance, rate) if draw[0] < config.tempo_share else utterance
        told.append(varied if varied.n_frames <= config.max_frames else utterance)
    return told
