"""Corpora in LJSpeech layout: `metadata.csv` with `id|text|normalised text`, and the recordings in `wavs/`.

Beside these a folder may have `heldout.txt` (ids that are never trained on) and `corpus.json` (speaker, language, licence).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio import AUDIO_SUFFIXES

MAX_TABLE_BYTES = 256 * 2**20
LISTED = 5


@dataclass(frozen=True)
class Clip:
    """One recording and its text (the normalised one where there is one)."""

    id: str
    path: Path
    text: str


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
    """What a folder holds: the clips in the order of its table, what was refused, and what it says of itself."""

    path: Path
    clips: list[Clip]
    refused: list[Refusal]
    heldout: list[str] | None = None
    speaker: str = ""
    language: str | None = None
    licence: str = "unknown"


def default_corpus() -> Path:
    """The folder of the corpus that comes with Hocket."""
    return Path(__file__).parent / "data" / "corpus-slt"


def _unreadable(detail: str) -> HocketError:
    return HocketError(Code.CORPUS_UNREADABLE, detail)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise _unreadable(f"{path} has more than {MAX_TABLE_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unreadable(f"{path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        detail = f"{path} is not UTF-8 (byte {error.start})"
        raise HocketError(Code.CORPUS_UNREADABLE, detail, remedy="save it as UTF-8") from error


def _recordings(folder: Path) -> dict[str, Path]:
    """Recordings of `folder`/wavs by id; CORPUS_UNREADABLE if two files have the same id."""
    found: dict[str, Path] = {}
    try:
        paths = sorted(path for path in (folder / "wavs").iterdir() if path.suffix.lower() in AUDIO_SUFFIXES)
    except OSError as error:
        raise _unreadable(f"{folder / 'wavs'} ({error.strerror})") from error
    for path in paths:
        if path.stem in found:
            raise _unreadable(f"{found[path.stem].name} and {path.name} are recordings of one id")
        found[path.stem] = path
    return found


def scan_corpus(folder: Path) -> Corpus:
    """Read a corpus's table and match it with its recordings; what does not match is refused clip by clip.

    Raises:
        HocketError: CORPUS_UNREADABLE if there is no readable table, no recording folder, or a line is no line of one.
    """
    if not folder.is_dir():
        raise _unreadable(f"{folder} is not a folder")
    table = _read_text(folder / "metadata.csv")
    recordings = _recordings(folder)
    clips: list[Clip] = []
    refused: list[Refusal] = []
    seen: set[str] = set()
    for number, line in enumerate(table.split("\n"), start=1):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("|")
        if len(fields) not in (2, 3) or not fields[0].strip():
            raise _unreadable(f"line {number} of {folder / 'metadata.csv'} is not id|text|normalised text")
        name, text = fields[0].strip(), (fields[2].strip() if len(fields) == 3 else "") or fields[1].strip()
        if name in seen:
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"line {number} gives this id a second text"))
        elif name not in recordings:
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"line {number} has no recording in wavs/"))
        elif not text:
            refused.append(Refusal(name, Code.NO_PHONEMES, f"line {number} has no text"))
        else:
            clips.append(Clip(name, recordings[name], text))
        seen.add(name)
    refused += [
        Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"wavs/{path.name} has no line in metadata.csv")
        for name, path in recordings.items()
        if name not in seen
    ]
    if not clips and not refused:
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{folder} holds no clip")
    facts = _facts(folder)
    return Corpus(
        folder, clips, refused, _heldout(folder), facts.get("speaker") or folder.resolve().name, facts.get("language"),
        facts.get("licence") or "unknown",
    )  # fmt: skip


def _facts(folder: Path) -> dict[str, str]:
    path = folder / "corpus.json"
    if not path.exists():
        return {}
    try:
        facts = json.loads(_read_text(path))
    except ValueError as error:
        raise _unreadable(f"{path} is no JSON") from error
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise _unreadable(f"{path} is not an object of texts")
    return facts


def _heldout(folder: Path) -> list[str] | None:
    path = folder / "heldout.txt"
    return _read_text(path).split() if path.exists() else None


def read_ljspeech(folder: Path) -> list[Clip]:
    """The clips of a corpus in which every line has a recording and every recording a line.

    Raises:
        HocketError: CORPUS_UNREADABLE, CORPUS_TOO_SMALL, TEXT_AUDIO_MISMATCH or NO_PHONEMES with the ids concerned.
    """
    corpus = scan_corpus(folder)
    if corpus.refused:
        raise refusal_error(corpus.refused, len(corpus.clips) + len(corpus.refused))
    return corpus.clips


def refusal_error(refused: list[Refusal], total: int) -> HocketError:
    """The error for a corpus with too many refused clips: the commonest reason's number, and the first ids."""
    counts = {code: sum(refusal.code == code for refusal in refused) for code in dict.fromkeys(item.code for item in refused)}
    code = max(counts, key=lambda key: counts[key])
    first = [f"{refusal.id} ({refusal.reason})" for refusal in refused if refusal.code == code][:LISTED]
    more = f" and {counts[code] - len(first)} more" if counts[code] > len(first) else ""
    others = f"; {len(refused) - counts[code]} for other reasons" if len(refused) > counts[code] else ""
    return HocketError(code, f"{len(refused)} of {total} clips are refused: {', '.join(first)}{more}{others}")
