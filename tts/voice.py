"""Text in, sound out: an export folder with its reader, its model and its codec, ready to speak."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.files import atomic_write
from tokenizer.codec import Codec, load_codec
from tokenizer.corpora.model import shown
from tokenizer.languages import check_language
from tokenizer.phoneme_lines import parse_phonemes
from tokenizer.phonemes import PhonemeInventory, PhonemeText, Phonemizer
from tts.export import Card, Export, is_export, load_export
from tts.sentences import split_sentences
from tts.synthesis import Line, Sampling, speak_in_steps, speak_many

LINES_AT_A_TIME = 8
BLOCK_S = 0.5
LISTED_VOICES = 20


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
    """A loaded export, ready to speak.

    Args:
        export: of `tts.export.load_export`.
        language: one of the export's tags, in any case; None: the first.
        speaker: one of the export's voices; None: the first. An export without voices has one, whose name it may be.

    Raises:
        HocketError: LANGUAGE_REFUSED, OPTION_INVALID (speaker), CODEC_UNREADABLE, CHECKPOINT_INVALID.
    """

    def __init__(self, export: Export, language: str | None = None, speaker: str | None = None) -> None:
        card = export.card
        if not card.languages:
            raise HocketError(Code.CHECKPOINT_INVALID, "the export names no language")
        tag = None if language is None else check_language(language)
        if tag is not None and tag not in card.languages:
            known = ", ".join(map(shown, card.languages))
            raise HocketError(Code.LANGUAGE_REFUSED, f"{language!r}; the export speaks {known}", remedy=f"use one of {known}")
        self.language = tag or card.languages[0]
        self._language_id = card.languages.index(self.language) if card.config.n_languages > 1 else 0
        self._speaker = _embedding(card, speaker)
        self.stage = export.stage
        self._inventory = PhonemeInventory(card.phonemes)
        self._phonemizer: Phonemizer | None = None
        self.codec: Codec = load_codec(export.codec_folder)

    def sampling(self, **asked: Any) -> Sampling:
        """How to speak: `Sampling`'s own values, but for those that the model cannot honour, and what is asked for.

        Args:
            asked: fields of `Sampling`; None stands for "not asked for".

        Raises:
            HocketError: OPTION_INVALID, as `check_sampling`.
        """
        config = self.stage.config
        usual: dict[str, Any] = {"top_k": min(Sampling.top_k, config.codebook_size)}
        if config.cond_dropout == 0:
            usual["guidance"] = 1.0
        how = Sampling(**{**usual, **{name: value for name, value in asked.items() if value is not None}})
        self.check_sampling(how)
        return how

    def check_sampling(self, how: Sampling) -> None:
        """Refuse what this model cannot honour.

        Guidance weighs what the model says with the text against what it says without; a model that was never trained without
        (`cond_dropout` 0) has no such opinion. More codes than a codebook has cannot be chosen among.

        Raises:
            HocketError: OPTION_INVALID.
        """
        config = self.stage.config
        if how.guidance != 1.0 and config.cond_dropout == 0:
            detail = f"guidance {how.guidance:g}, but the model was trained without condition dropout and cannot be guided"
            raise HocketError(Code.OPTION_INVALID, detail, remedy="use guidance 1.0, or leave it out")
        if how.top_k > config.codebook_size:
            detail = f"top-k {how.top_k}, but a codebook has {config.codebook_size} codes"
            raise HocketError(Code.OPTION_INVALID, detail, remedy="use 0 to choose among all of them")

    def _read(self, text: str) -> PhonemeText:
        if self._phonemizer is None:  # phonemes that a person wrote need no reader
            self._phonemizer = Phonemizer(self.language)
        return self._phonemizer.phonemize(text)

    def _line(self, read: PhonemeText, number: int) -> Line:
        return Line(
            self._inventory.encode(read.phonemes),
            np.array(read.word_starts, np.uint8),
            number=number,
            speaker=self._speaker,
            language=self._language_id,
        )

    def lines(self, text: str) -> list[Line]:
        """The sentences of a text, numbered from 0.

        Raises:
            HocketError: NO_PHONEMES.
        """
        sentences = split_sentences(text)
        if not sentences:
            raise HocketError(Code.NO_PHONEMES, "nothing to say")
        return [self._line(self._read(sentence), number) for number, sentence in enumerate(sentences)]

    def lines_of_phonemes(self, text: str) -> list[Line]:
        """The lines of a text in phonemes (see `tokenizer.phoneme_lines`), numbered from 0; empty lines are left out.

        Raises:
            HocketError: NO_PHONEMES, also for symbols that the export does not know.
        """
        written = [line for line in text.splitlines() if line.strip()]
        if not written:
            raise HocketError(Code.NO_PHONEMES, "nothing to say")
        return [self._line(parse_phonemes(line), number) for number, line in enumerate(written)]

    def codes(self, lines: Sequence[Line], how: Sampling) -> list[NDArray[np.uint16]]:
        """Codes [K, T] of each line, spoken some at a time; which ones go together changes nothing.

        Raises:
            HocketError: OPTION_INVALID, as `check_sampling`; INPUT_INVALID.
        """
        self.check_sampling(how)
        groups = [lines[start : start + LINES_AT_A_TIME] for start in range(0, len(lines), LINES_AT_A_TIME)]
        return [codes for group in groups for codes in speak_many([self.stage], group, how)]

    def speak(self, text: str, how: Sampling | None = None) -> Spoken:
        """Speak a text as a whole.

        Raises:
            HocketError: NO_PHONEMES, INPUT_INVALID, OPTION_INVALID.
        """
        return self.speak_lines(self.lines(text), how)

    def speak_lines(self, lines: Sequence[Line], how: Sampling | None = None) -> Spoken:
        """Speak lines one after the other; without `how`, as `sampling` says."""
        started = time.perf_counter()
        samples = np.concatenate([self.codec.decode(codes) for codes in self.codes(lines, how or self.sampling())])
        return Spoken(samples, self.codec.sample_rate, time.perf_counter() - started)

    def stream(self, lines: Iterable[Line], how: Sampling | None = None) -> Iterator[NDArray[np.float32]]:
        """Speak lines one after the other and give the samples [N] as soon as they are there.

        The codes are those of `speak_lines`. With a codec whose sound depends on neighbouring frames alone the samples come
        every half second, otherwise a line at a time.

        Raises:
            HocketError: OPTION_INVALID, as `check_sampling`, before anything is given out.
        """
        chosen = how or self.sampling()
        self.check_sampling(chosen)
        return self._stream(lines, chosen)

    def _stream(self, lines: Iterable[Line], how: Sampling) -> Iterator[NDArray[np.float32]]:
        for line in lines:
            frames = (step[0] for step in speak_in_steps([self.stage], [line], how))
            yield from decode_in_blocks(self.codec, frames, max(1, round(BLOCK_S * self.codec.frame_rate)))


def _embedding(card: Card, speaker: str | None) -> NDArray[np.float32] | None:
    if speaker is None:
        first = next(iter(card.voices.values()), None)
        return None if first is None else np.array(first, np.float32)
    if speaker in card.voices:
        return np.array(card.voices[speaker], np.float32)
    if card.voices:
        known, more = ", ".join(map(shown, list(card.voices)[:LISTED_VOICES])), len(card.voices) - LISTED_VOICES
        detail = f"the export has no voice {speaker!r}; it has {known}{f' and {more} more' if more > 0 else ''}"
        raise HocketError(Code.OPTION_INVALID, detail, remedy="name one of these")
    if len(card.speakers) == 1:
        if speaker == card.speakers[0]:  # its one voice, by name
            return None
        detail = f"the export has no voice {speaker!r}; its one speaker is {shown(card.speakers[0])}"
        raise HocketError(Code.OPTION_INVALID, detail, remedy="leave the speaker out, or name that one")
    detail = f"the export has no voice {speaker!r}, nor any other by name: it was trained without speaker embeddings"
    remedy = "leave the speaker out, or tokenise the corpus with --speakers and train anew"
    raise HocketError(Code.OPTION_INVALID, detail, remedy=remedy)


def decode_in_blocks(
    codec: Codec, frames: Iterable[NDArray[np.uint16]], block_frames: int
) -> Iterator[NDArray[np.float32]]:
    """Decode codes as they come.

    A block waits for as many frames after it as the codec's sound looks ahead, and is decoded with as many before it; where the
    codec looks arbitrarily far, everything is decoded at the end.

    Args:
        frames: codes uint16 [K, n] one after the other, n may be 0.
        block_frames: frames of a block.

    Yields: samples float32 [N].
    """
    context = codec.decode_context
    held: NDArray[np.uint16] | None = None  # frames from `first` on
    first = said = 0  # frames: the first that is held; how many have been given out
    for part in frames:
        held = part if held is None else np.concatenate([held, part], axis=1)
        while context is not None and first + held.shape[1] >= said + block_frames + context:
            window = held[:, : said - first + block_frames + context]
            yield codec.decode(window)[(said - first) * codec.hop : (said - first + block_frames) * codec.hop]
            said += block_frames
            dropped = max(0, said - context - first)
            held, first = held[:, dropped:], first + dropped
    if held is not None and first + held.shape[1] > said:
        yield codec.decode(held)[(said - first) * codec.hop :]


def load_voice(path: Path, language: str | None = None, speaker: str | None = None) -> Voice:
    """Load an export folder, ready to speak; see `Voice`."""
    return Voice(load_export(path), language, speaker)


def write_wav(path: Path, samples: NDArray[np.float32], sample_rate: int) -> None:
    """Write float samples [N] as 16-bit mono WAV, whole or not at all; what is beyond full scale is scaled down to it."""
    peak = float(np.abs(samples).max(initial=0.0))
    buffer = io.BytesIO()
    soundfile.write(buffer, samples / max(peak, 1.0), sample_rate, format="WAV", subtype="PCM_16")
    atomic_write(path, buffer.getvalue())


def write_speech(voice: Voice, text: str, out: Path, how: Sampling | None = None) -> Spoken:
    """Speak `text` into the WAV file `out`."""
    spoken = voice.speak(text, how)
    write_wav(out, spoken.samples, spoken.sample_rate)
    return spoken
