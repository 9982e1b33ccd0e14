"""A row of any table to a clip: column names as people write them, and every value checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.model import Clip, Recording, Refusal
from tokenizer.languages import check_language

# What a column means, by the names that it has in the field's manifests (NeMo, Common Voice, Hugging Face, LibriSpeech).
SYNONYMS: dict[str, tuple[str, ...]] = {
    "audio": ("audio", "path", "file", "audio_filepath", "file_name", "filename", "audio_path", "wav"),
    "text": ("normalized_text", "normalised_text", "text", "sentence", "transcript", "transcription"),
    "id": ("id", "utt_id", "utterance_id", "clip_id"),
    "speaker": ("speaker", "speaker_id", "client_id", "speaker_name"),
    "language": ("language", "locale", "lang"),
    "licence": ("licence", "license"),
    "start": ("start", "start_s", "offset", "start_time"),
    "stop": ("stop", "end", "stop_s", "end_s", "end_time"),
    "duration": ("duration", "duration_s"),
    "subtitles": ("subtitles", "srt", "vtt"),
}
MAX_TEXT = 100_000  # characters; a hostile or misread cell, no utterance


def columns_of(names: Sequence[str]) -> dict[str, str]:
    """Which column of a table holds what: {"audio": its name, ...}; the first synonym that there is wins."""
    found = {name.strip().lower(): name for name in reversed(names)}
    meant = {meaning: [one for one in synonyms if one in found] for meaning, synonyms in SYNONYMS.items()}
    return {meaning: found[there[0]] for meaning, there in meant.items() if there}


@dataclass
class RowReader:
    """Turns rows into clips and recordings.

    Args:
        folder: that the table lies in; every recording must lie below it.
        columns: of `columns_of`.
    """

    folder: Path
    columns: Mapping[str, str]
    clips: list[Clip] = field(default_factory=list)
    recordings: list[Recording] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _languages: dict[str, str | HocketError] = field(default_factory=dict)
    _root: Path | None = None

    def take(self, row: Mapping[str, object], where: str) -> None:
        """One row; what is wrong with it becomes a refusal.

        Args:
            where: names the row, as "line 7".
        """
        values = {meaning: _text(row.get(name)) for meaning, name in self.columns.items()}
        audio = values.get("audio", "")
        name = values.get("id") or (Path(audio).with_suffix("").as_posix() if audio else where)
        start, stop = values.get("start", ""), values.get("stop", "")
        if not values.get("id") and start:
            name = f"{name}@{start}"
        try:
            self._take(name, audio, values, start, stop, where)
        except HocketError as error:
            self.refused.append(Refusal(name, error.code, f"{where}: {error.detail}"))

    def _take(self, name: str, audio: str, values: Mapping[str, str], start: str, stop: str, where: str) -> None:
        if name in self._seen:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, "gives this id a second row")
        self._seen.add(name)
        if not audio:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, "names no recording")
        source = AudioSource(self._inside(audio), name=audio)
        language = self._language(values.get("language", ""))
        speaker, licence = values.get("speaker") or None, values.get("licence") or None
        text = values.get("text", "")
        if len(text) > MAX_TEXT:
            raise HocketError(Code.NO_PHONEMES, f"a text of {len(text)} characters is no utterance")
        if subtitles := values.get("subtitles", ""):
            self.recordings.append(Recording(name, source, self._inside(subtitles), language, speaker, licence))
            return
        if "text" not in self.columns:
            self.recordings.append(Recording(name, source, None, language, speaker, licence))
            return
        if not text:
            raise HocketError(Code.NO_PHONEMES, "has no text")
        start_s = _seconds(start, "start") if start else 0.0
        stop_s = _seconds(stop, "stop") if stop else None
        if stop_s is None and start and (duration := values.get("duration", "")):
            stop_s = start_s + _seconds(duration, "duration")
        if stop_s is not None and stop_s <= start_s:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"ends at {stop_s:g} s, before its start at {start_s:g} s")
        self.clips.append(Clip(name, source, text, language, speaker, licence, start_s, stop_s))

    def _inside(self, written: str) -> Path:
        """A file that a row names: below the table's folder, links followed."""
        if "\0" in written:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, "a path with a NUL character")
        if self._root is None:
            self._root = self.folder.resolve()
        path = self.folder / written
        try:
            real = path.resolve()
            if not real.is_relative_to(self._root):
                raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{written} lies outside of the table's folder")
            if not real.is_file():
                raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{written} does not exist")
        except (OSError, RuntimeError) as error:  # names that are too long; links in a circle
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{written[:80]} cannot be looked at") from error
        return path

    def _language(self, tag: str) -> str | None:
        if not tag:
            return None
        if tag not in self._languages:
            try:
                self._languages[tag] = check_language(tag)
            except HocketError as error:
                self._languages[tag] = error
        known = self._languages[tag]
        if isinstance(known, HocketError):
            raise known
        return known


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _seconds(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e6:
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"its {what} {text[:20]!r} is no number of seconds")
    return value
