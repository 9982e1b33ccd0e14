"""A clip on its way through the pipeline: where its sound lies, and what its text has become."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer.audio_source import AudioSource


@dataclass(frozen=True)
class Item:
    """An utterance whose text has been read, or that has none.

    Args:
        audio, start_s, stop_s: its sound; stop_s None: to the end.
        text: as the corpus has it; empty where there is no transcript.
        spoken: as it is said.
        phonemes: ids uint16 [P]. word_starts: uint8 [P]. Of an utterance without transcript: END alone.
        language: BCP 47. speaker, licence: names.
        embedding: float32 [E] of its speaker, where cutting its recording has given one.
        dropped: characters of the text that have no reading and were left out.
    """

    id: str
    audio: AudioSource
    start_s: float
    stop_s: float | None
    text: str
    spoken: str
    phonemes: NDArray[np.uint16]
    word_starts: NDArray[np.uint8]
    language: str
    speaker: str
    licence: str
    embedding: NDArray[np.float32] | None = None
    dropped: str = ""

    @property
    def transcribed(self) -> bool:
        return bool(self.text)
