"""What a corpus is, whatever its layout: clips with texts, long recordings, and what was refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource

LISTED = 5
MAX_ID = 500  # characters
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")
MAX_TEXT = 100_000  # characters; a hostile or misread cell, no utterance


@dataclass(frozen=True, slots=True)
class Clip:
    """One utterance: a recording, or a part of one, and its text.

    Args:
        audio: where it lies.
        text: the normalised one where there is one.
        language: canonical tag, speaker, licence: where the corpus says so for this clip.
        start_s, stop_s: the part, in seconds; None: to the end.
    """

    id: str
    audio: AudioSource
    text: str
    language: str | None = None
    speaker: str | None = None
    licence: str | None = None
    start_s: float = 0.0
    stop_s: float | None = None

    @property
    def path(self) -> Path:
        """The file that holds it."""
        return self.audio.path


@dataclass(frozen=True, slots=True)
class Recording:
    """A long recording without cuts, with subtitles or without."""

    id: str
    audio: AudioSource
    subtitles: Path | None = None
    language: str | None = None
    speaker: str | None = None
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A clip that is left out, and why."""

    id: str
    code: Code
    reason: str

    def line(self) -> str:
        return f"{self.id}: H{int(self.code)} {self.reason}"


@dataclass(frozen=True)
class Corpus:
    """What a corpus holds: the clips in the order of its table, what was refused, and what it says of itself.

    Args:
        layout: "ljspeech", "table", "folder", "webdataset" or "recording".
    """

    path: Path
    clips: list[Clip]
    refused: list[Refusal]
    heldout: list[str] | None = None
    speaker: str = ""
    language: str | None = None
    licence: str = "unknown"
    recordings: list[Recording] = field(default_factory=list)
    layout: str = "ljspeech"

    def first(self, clips: int) -> Corpus:
        """Its first so many clips that can be read, as a corpus without the rest.

        Of those to be held out the ones that are among them stay, and where none is, nothing is said. Names that even the whole
        corpus does not have stay too: they are somebody's slip.
        """
        taken = self.clips[:clips]
        left_out = {clip.id for clip in self.clips[clips:]} | {refusal.id for refusal in self.refused}
        heldout = [name for name in self.heldout or () if name not in left_out]
        return replace(self, clips=taken, refused=[], heldout=heldout or None)


def shown(name: str) -> str:
    """A name that anyone may have written, for a line of a message: control characters are escaped, and it has an end."""
    escaped = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), name[:MAX_ID])
    return escaped + ("..." if len(name) > MAX_ID else "")


def check_name(what: str, name: str) -> None:
    """Refuse an id, a path or a name that could not stand in a list, one a line.

    Raises:
        HocketError: TEXT_AUDIO_MISMATCH.
    """
    if len(name) > MAX_ID:
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"its {what} has {len(name)} characters, at most {MAX_ID} are taken")
    if _CONTROL.search(name):
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"its {what} '{shown(name)}' has control characters or is not UTF-8")


def check_text(text: str) -> None:
    """Refuse what is no text, though it is a string.

    Raises:
        HocketError: NO_PHONEMES.
    """
    if len(text) > MAX_TEXT:
        raise HocketError(Code.NO_PHONEMES, f"a text of {len(text)} characters is no utterance")
    if "\0" in text:
        raise HocketError(Code.NO_PHONEMES, "its text has a NUL character: it is damaged, or not UTF-8")
    if _HALF.search(text):
        raise HocketError(Code.NO_PHONEMES, "its text has half of a character (a lone surrogate)")


def refusal_of(name: str, error: HocketError, where: str = "") -> Refusal:
    """An error as the refusal of one clip, with what to do where that tells more: the likely tag of a language.

    Args:
        where: the row, as "line 7: ".
    """
    reason = f"{error.detail} ({error.remedy})" if error.code is Code.LANGUAGE_REFUSED else error.detail
    return Refusal(shown(name), error.code, where + reason)


def unreadable(detail: str, remedy: str | None = None) -> HocketError:
    """CORPUS_UNREADABLE."""
    if remedy is None:
        return HocketError(Code.CORPUS_UNREADABLE, detail)
    return HocketError(Code.CORPUS_UNREADABLE, detail, remedy=remedy)


def refusal_error(refused: list[Refusal], total: int) -> HocketError:
    """The error for a corpus with too many refused clips: the commonest reason's number, and the first ids."""
    counts = {code: sum(refusal.code == code for refusal in refused) for code in dict.fromkeys(item.code for item in refused)}
    code = max(counts, key=lambda key: counts[key])
    first = [f"{refusal.id} ({refusal.reason})" for refusal in refused if refusal.code == code][:LISTED]
    more = f" and {counts[code] - len(first)} more" if counts[code] > len(first) else ""
    others = f"; {len(refused) - counts[code]} for other reasons" if len(refused) > counts[code] else ""
    return HocketError(code, f"{len(refused)} of {total} clips are refused: {', '.join(first)}{more}{others}")
