"""What a corpus is, whatever its layout: clips with texts, long recordings, and what was refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource

LISTED = 5


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Recording:
    """A long recording without cuts, with subtitles or without."""

    id: str
    audio: AudioSource
    subtitles: Path | None = None
    language: str | None = None
    speaker: str | None = None
    licence: str | None = None


@dataclass(frozen=True)
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
        layout: "ljspeech", "table", "folder" or "webdataset".
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
