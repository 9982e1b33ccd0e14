"""The texts of a corpus, read before any audio is: what each clip says, and whether the corpus is worth the work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.corpus import Corpus, Recording, Refusal, refusal_error
from tokenizer.fronts.identify import likely_language
from tokenizer.items import Item
from tokenizer.languages import check_language
from tokenizer.phoneme_lines import write_phonemes
from tokenizer.phonemes import END, PhonemeInventory, PhonemeText, Phonemizer, inventory_for
from tokenizer.recordings.subtitles import read_subtitles

logger = logging.getLogger(__name__)

MAX_REFUSED = 0.02
LOGGED_CLIPS = 3  # phonemes of so many clips a language are logged, for a person to look at


@dataclass(frozen=True)
class Passage:
    """A clip, a cue or a piece of a recording before its text is read; `language` as the corpus says, or None."""

    id: str
    audio: AudioSource
    text: str | None
    language: str | None
    speaker: str
    licence: str
    start_s: float = 0.0
    stop_s: float | None = None
    embedding: np.ndarray | None = None


def default_language(corpus: Corpus, said: str | None) -> str | None:
    """The language of rows that name none: what the person said, or else what the corpus says of itself.

    Raises:
        HocketError: LANGUAGE_REFUSED for a tag that is none, if the two differ, or if there is neither and a row needs it.
    """
    language = check_language(said) if said is not None else None
    if corpus.language:
        own = check_language(corpus.language)
        if language is not None and own.split("-")[0] != language.split("-")[0]:
            detail = f"{language}, but {corpus.path} says that it speaks {own}"
            raise HocketError(Code.LANGUAGE_REFUSED, detail, remedy=f"use {own}")
        language = language or own
    if language is None:
        bare = [clip.id for clip in corpus.clips if clip.language is None]
        bare += [recording.id for recording in corpus.recordings if recording.language is None]
        if bare:
            detail = f"{len(bare)} clips of {corpus.path} name no language, such as {bare[0]}"
            raise HocketError(Code.LANGUAGE_REFUSED, detail, remedy="give --language, or a column with the language of every row")
    return language


def check_refused(refused: Sequence[Refusal], total: int, share: float) -> None:
    """Raise the commonest reason when more than `share` of `total` clips are refused."""
    if len(refused) > share * total:
        raise refusal_error(list(refused), total)


@dataclass
class TextReader:
    """Reads texts, each in its language.

    Args:
        default: language of texts that have none of their own.
    """

    default: str | None
    spoken: dict[str, list[str]] = field(default_factory=dict)  # texts that were read, by language
    _phonemizers: dict[str, Phonemizer | HocketError] = field(default_factory=dict)
    _logged: Counter[str] = field(default_factory=Counter)

    def language_of(self, passage: Passage) -> str:
        """Its own language, or else the default; LANGUAGE_REFUSED without either."""
        language = passage.language or self.default
        if language is None:
            raise HocketError(Code.LANGUAGE_REFUSED, f"{passage.id} names no language", remedy="give --language")
        return language

    def phonemizer(self, language: str) -> Phonemizer:
        """The front end of a language, loaded once; LANGUAGE_REFUSED, EXTRA_MISSING."""
        if language not in self._phonemizers:
            try:
                self._phonemizers[language] = Phonemizer(language)
            except HocketError as error:
                self._phonemizers[language] = error
        found = self._phonemizers[language]
        if isinstance(found, HocketError):
            raise HocketError(found.code, found.detail, remedy=found.remedy)
        return found

    def read(self, passage: Passage) -> Item:
        """What a passage says.

        Raises:
            HocketError: NO_PHONEMES, SCRIPT_MISMATCH, LANGUAGE_REFUSED, EXTRA_MISSING.
        """
        language = self.language_of(passage)
        if passage.text is None:
            inventory = inventory_for([language])
            return _item(passage, language, PhonemeText("", [END], [False]), inventory)
        phonemizer = self.phonemizer(language)
        read = phonemizer.phonemize(passage.text)
        item = _item(passage, language, read, phonemizer.inventory)
        self.spoken.setdefault(language, []).append(passage.text)
        if self._logged[language] < LOGGED_CLIPS:
            self._logged[language] += 1
            logger.info("%s (%s) says: %s", passage.id, language, write_phonemes(read))
        return item

    def read_all(self, passages: Sequence[Passage], refused: list[Refusal]) -> list[Item]:
        """What each of them says; those that say nothing are added to `refused`. An extra that is missing ends the work."""
        items: list[Item] = []
        for passage in passages:
            try:
                items.append(self.read(passage))
            except HocketError as error:
                if error.code is Code.EXTRA_MISSING or (error.code is Code.LANGUAGE_REFUSED and passage.language is None):
                    raise
                refused.append(Refusal(passage.id, error.code, error.detail))
        return items

    def check_languages(self) -> None:
        """LANGUAGE_REFUSED, with the likely tag, where the texts of a language are not in it."""
        for language, texts in self.spoken.items():
            verdict = likely_language(texts, language)
            if not verdict.fits:
                remedy = f"use {verdict.likely}" if verdict.likely else "give the language that the texts are in"
                raise HocketError(Code.LANGUAGE_REFUSED, f"{language}: {verdict.reason}", remedy=remedy)


def _item(passage: Passage, language: str, read: PhonemeText, inventory: PhonemeInventory) -> Item:
    return Item(
        id=passage.id,
        audio=passage.audio,
        start_s=passage.start_s,
        stop_s=passage.stop_s,
        text=passage.text or "",
        spoken=read.spoken,
        phonemes=inventory.encode(read.phonemes),
        word_starts=np.array(read.word_starts, dtype=np.uint8),
        language=language,
        speaker=passage.speaker,
        licence=passage.licence,
        embedding=passage.embedding,
        dropped=read.dropped,
    )


def passages_of(corpus: Corpus) -> list[Passage]:
    """The clips of a corpus, with speaker and licence of the corpus where they name none."""
    return [
        Passage(
            clip.id, clip.audio, clip.text, clip.language, clip.speaker or corpus.speaker, clip.licence or corpus.licence,
            clip.start_s, clip.stop_s,
        )
        for clip in corpus.clips
    ]  # fmt: skip


def check_cues(recordings: Sequence[Recording], reader: TextReader) -> tuple[int, list[Refusal]]:
    """How many cues the subtitles of recordings have, and those that say nothing, before any audio is read.

    Subtitles that cannot be read count as one.
    """
    count = 0
    refused: list[Refusal] = []
    for recording in recordings:
        if recording.subtitles is None:
            continue
        try:
            cues = read_subtitles(recording.subtitles)
        except HocketError as error:
            count += 1
            refused.append(Refusal(recording.id, error.code, error.detail))
            continue
        count += len(cues)
        said = [
            Passage(f"{recording.id} at {cue.start_s:.1f} s", recording.audio, cue.text, recording.language, "", "")
            for cue in cues
        ]
        reader.read_all(said, refused)
    return count - len(refused), refused
