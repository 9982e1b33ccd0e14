"""A row of any table to a clip: column names as people write them, and every value checked."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.model import Clip, Recording, Refusal, check_name, check_text, refusal_of, shown
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
    _parents: dict[Path, Path] = field(default_factory=dict)
    _root: Path = field(init=False)

    def __post_init__(self) -> None:
        self._root = self.folder.resolve()

    def take(self, row: Mapping[str, object], where: str) -> None:
        """One row; what is wrong with it becomes a refusal.

        Args:
            where: names the row, as "line 7".
        """
        values = {meaning: cell(row.get(name)) for meaning, name in self.columns.items()}
        name = _name_of(values, where)
        try:
            self._take(name, {meaning: checked_cell(meaning, value) for meaning, value in values.items()}, where)
        except HocketError as error:
            self.refused.append(refusal_of(name, error, f"{where}: "))

    def _take(self, name: str, values: Mapping[str, str], where: str) -> None:
        audio, start, stop = (values.get(meaning, "") for meaning in ("audio", "start", "stop"))
        check_name("id", name)
        if name in self._seen:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, "gives this id a second row")
        self._seen.add(name)
        if not audio:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, "names no recording")
        source = AudioSource(self._inside(audio), name=audio)
        language = self._language(values.get("language", ""))
        speaker, licence = values.get("speaker") or None, values.get("licence") or None
        text = values.get("text", "")
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
        path = self.folder / written
        try:
            if not path.name or path == self.folder:
                raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(written)} is no file")
            real = self._parent(path) / path.name
            kind = os.lstat(real).st_mode
            if path.name == ".." or stat.S_ISLNK(kind):
                real = path.resolve()
                kind = os.stat(real).st_mode
                if not real.is_relative_to(self._root):
                    raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(written)} leads outside of the table's folder")
            if not stat.S_ISREG(kind):
                raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(written)} is no file")
        except FileNotFoundError as error:
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(written)} does not exist") from error
        except (OSError, RuntimeError, ValueError) as error:  # names that are too long, or no names; links in a circle
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(written[:80])} cannot be looked at") from error
        return path

    def _parent(self, path: Path) -> Path:
        """The folder of a file, links followed. Looked up once: a table names thousands of files in each."""
        parent = path.parent
        if parent not in self._parents:
            self._parents[parent] = parent.resolve()
        real = self._parents[parent]
        if not real.is_relative_to(self._root):
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(path.name)} lies outside of the table's folder")
        return real

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


def cell(value: object) -> str | object:
    """A cell as text; what is neither text nor number is left, to be refused."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def checked_cell(meaning: str, value: str | object) -> str:
    """A value of `cell` that is a text, and one that may stand for `meaning`; TEXT_AUDIO_MISMATCH, NO_PHONEMES."""
    if not isinstance(value, str):
        detail = f"its {meaning} is a {type(value).__name__} and no text"
        raise HocketError(Code.NO_PHONEMES if meaning == "text" else Code.TEXT_AUDIO_MISMATCH, detail)
    if meaning == "text":
        check_text(value)
    else:
        check_name(meaning, value)
    return value


def _name_of(values: Mapping[str, str | object], where: str) -> str:
    """The id of a row: its own, or its recording's path without the ending, with the start of the part."""
    if isinstance(own := values.get("id", ""), str) and own:
        return own
    audio, start = values.get("audio", ""), values.get("start", "")
    if not isinstance(audio, str) or not audio:
        return where
    path = PurePosixPath(audio)
    name = path.with_suffix("").as_posix() if path.name else audio
    return f"{name}@{start}" if start else name


def _seconds(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e6:
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"its {what} {text[:20]!r} is no number of seconds")
    return value
