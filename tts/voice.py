"""Text in, sound out: an export folder with its reader, its model and its codec, ready to speak."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.files import atomic_write
from tokenizer.codec import Codec, load_codec
from tokenizer.phonemes import PhonemeInventory, Phonemizer
from tts.export import Export, is_export, load_export
from tts.synthesis import speak


@dataclass(frozen=True)
class Speaking:
    """How to speak; see `tts.synthesis.speak`.

    Args:
        rate: factor on the durations: 1.4 is slower, 0.8 faster.
    """

    rate: float = 1.0
    temperature: float = 0.6
    top_k: int = 10
    guidance: float = 2.0
    seed: int = 0


@dataclass(frozen=True)
class Spoken:
    """What was made: samples float32 [N], and seconds that it took."""

    samples: NDArray[np.float32]
    sample_rate: int
    took_s: float

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


def find_export(path: Path) -> Path:
    """The export folder at `path`: it, or the `checkpoint` folder inside a demo or run folder.

    Raises:
        HocketError: CHECKPOINT_INVALID.
    """
    for folder in (path, path / "checkpoint"):
        if is_export(folder):
            return folder
    raise HocketError(Code.CHECKPOINT_INVALID, f"{path} holds no export: config.json and model.safetensors")


class Voice:
    """A loaded export that speaks text of its first language.

    Args:
        export: of `tts.export.load_export`.
        language: one of the export's tags; None: the first.

    Raises:
        HocketError: LANGUAGE_REFUSED, CODEC_UNREADABLE, CHECKPOINT_INVALID.
    """

    def __init__(self, export: Export, language: str | None = None) -> None:
        languages = export.card.languages
        if not languages:
            raise HocketError(Code.CHECKPOINT_INVALID, "the export names no language")
        if language is not None and language not in languages:
            raise HocketError(Code.LANGUAGE_REFUSED, f"{language!r}; the export speaks {', '.join(languages)}")
        self.language = language or languages[0]
        self._language_id = languages.index(self.language) if export.card.config.n_languages > 1 else 0
        self.stage = export.stage
        self._inventory = PhonemeInventory(export.card.phonemes)
        self._phonemizer = Phonemizer(self.language)
        self.codec: Codec = load_codec(export.codec_folder)

    def speak(self, text: str, how: Speaking | None = None) -> Spoken:
        """Speak one text.

        Raises:
            HocketError: NO_PHONEMES, INPUT_INVALID, OPTION_INVALID.
        """
        how = how or Speaking()
        started = time.perf_counter()
        read = self._phonemizer.phonemize(text)
        codes = speak(
            [self.stage],
            self._inventory.encode(read.phonemes),
            np.array(read.word_starts, np.uint8),
            seed=how.seed,
            temperature=how.temperature,
            top_k=how.top_k,
            guidance=how.guidance,
            rate=how.rate,
            language=self._language_id,
        )
        samples = self.codec.decode(codes)
        return Spoken(samples, self.codec.sample_rate, time.perf_counter() - started)


def load_voice(path: Path, language: str | None = None) -> Voice:
    """Load an export folder, ready to speak."""
    return Voice(load_export(path), language)


def write_wav(path: Path, samples: NDArray[np.float32], sample_rate: int) -> None:
    """Write float samples [N] as 16-bit mono WAV, whole or not at all; what is beyond full scale is scaled down to it."""
    peak = float(np.abs(samples).max(initial=0.0))
    buffer = io.BytesIO()
    soundfile.write(buffer, samples / max(peak, 1.0), sample_rate, format="WAV", subtype="PCM_16")
    atomic_write(path, buffer.getvalue())


def write_speech(voice: Voice, text: str, out: Path, how: Speaking | None = None) -> Spoken:
    """Speak `text` into the WAV file `out`."""
    spoken = voice.speak(text, how)
    write_wav(out, spoken.samples, spoken.sample_rate)
    return spoken
