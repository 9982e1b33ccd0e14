"""From what was heard of each clip to the figures of a kind of clip. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts.evaluation.similarity import similarity
from tts.evaluation.words import ErrorRate, bootstrap_interval, total

SYNTHESIS, CODEC, RECORDINGS = "synthesis", "codec", "recordings"
KINDS = (SYNTHESIS, CODEC, RECORDINGS)


@dataclass(frozen=True)
class Heard:
    """One clip and what was made of it.

    Args:
        id: of the sentence. speaker: whose it is.
        seconds: of sound. took_s: of computing it; None for a recording.
        understood: by the recogniser; None where it does not know the language, and so are words and characters.
        words, characters: errors in them.
        dnsmos: None where it was not measured, or for silence. embedding: float32 [E] of the voice, likewise.
        rate_error: how far its length is from the one that the durations and the rate ask for, as a share; speech only.
        tempo: length that the predicted durations ask for at rate 1, as a share of the recording's; synthesis only.
    """

    id: str
    speaker: str
    seconds: float
    took_s: float | None = None
    understood: str | None = None
    words: ErrorRate | None = None
    characters: ErrorRate | None = None
    dnsmos: float | None = None
    embedding: NDArray[np.float32] | None = None
    rate_error: float | None = None
    tempo: float | None = None


@dataclass(frozen=True)
class Figures:
    """The figures of one kind of clip; None where nothing could be measured.

    Args:
        wer, cer: errors a word and a character, over all sentences. words: how many there were.
        interval: of the word error rate, 95 %, bootstrapped over sentences.
        dnsmos: mean over `dnsmos_n` clips. similarity: mean cosine with the speaker's recordings.
        rate_error: mean. tempo: median. rtf: seconds of computing a second of sound.
        n: clips. seconds: of sound in all.
    """

    wer: float | None
    cer: float | None
    words: int
    interval: tuple[float, float] | None
    dnsmos: float | None
    dnsmos_n: int
    similarity: float | None
    rate_error: float | None
    tempo: float | None
    rtf: float | None
    n: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "interval": None if self.interval is None else list(self.interval)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def figures_of(clips: Sequence[Heard], recordings: Sequence[Heard], seed: int = 0) -> Figures | None:
    """The figures of clips of one kind; None for no clip.

    Args:
        recordings: that their voices are compared with. seed: of the interval.
    """
    if not clips:
        return None
    words = [clip.words for clip in clips if clip.words is not None]
    characters = [clip.characters for clip in clips if clip.characters is not None]
    seconds = sum(clip.seconds for clip in clips)
    took = [clip.took_s for clip in clips if clip.took_s is not None]
    tempos = [clip.tempo for clip in clips if clip.tempo is not None]
    speakers = {clip.id: clip.speaker for clip in (*clips, *recordings)}
    return Figures(
        wer=total(words).rate if words else None,
        cer=total(characters).rate if characters else None,
        words=total(words).words,
        interval=bootstrap_interval(words, seed),
        dnsmos=_mean([clip.dnsmos for clip in clips]),
        dnsmos_n=sum(clip.dnsmos is not None for clip in clips),
        similarity=similarity(_embeddings(clips), _embeddings(recordings), speakers),
        rate_error=_mean([clip.rate_error for clip in clips]),
        tempo=float(np.median(tempos)) if tempos else None,
        rtf=sum(took) / seconds if took and seconds > 0 else None,
        n=len(clips),
        seconds=seconds,
    )


def _embeddings(clips: Sequence[Heard]) -> dict[str, NDArray[np.float32]]:
    return {clip.id: clip.embedding for clip in clips if clip.embedding is not None}


def by_speaker(heard: Mapping[str, Sequence[Heard]], seed: int = 0) -> dict[str, dict[str, Figures | None]]:
    """The figures of each speaker's clips, by kind; empty where there is only one speaker."""
    names = sorted({clip.speaker for clips in heard.values() for clip in clips})
    if len(names) < 2:
        return {}

    def of(kind: str, name: str) -> list[Heard]:
        return [clip for clip in heard.get(kind, ()) if clip.speaker == name]

    return {name: {kind: figures_of(of(kind, name), of(RECORDINGS, name), seed) for kind in KINDS} for name in names}
