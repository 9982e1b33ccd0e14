"""LJSpeech layout: `metadata.csv` with `id|text|normalised text`, and the recordings in `wavs/`."""

from __future__ import annotations

from pathlib import Path

from common.errors import Code
from tokenizer.audio import AUDIO_SUFFIXES
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.facts import read_text
from tokenizer.corpora.model import Clip, Refusal, unreadable


def _recordings(folder: Path) -> dict[str, Path]:
    """Recordings of `folder`/wavs by id; CORPUS_UNREADABLE if two files have the same id."""
    found: dict[str, Path] = {}
    try:
        paths = sorted(path for path in (folder / "wavs").iterdir() if path.suffix.lower() in AUDIO_SUFFIXES)
    except OSError as error:
        raise unreadable(f"{folder / 'wavs'} ({error.strerror})") from error
    for path in paths:
        if path.stem in found:
            raise unreadable(f"{found[path.stem].name} and {path.name} are recordings of one id")
        found[path.stem] = path
    return found


def scan_ljspeech(folder: Path) -> tuple[list[Clip], list[Refusal]]:
    """Clips in the order of the table, and what does not match.

    Raises:
        HocketError: CORPUS_UNREADABLE if there is no readable table, no recording folder, or a line is no line of one.
    """
    table = read_text(folder / "metadata.csv")
    recordings = _recordings(folder)
    clips: list[Clip] = []
    refused: list[Refusal] = []
    seen: set[str] = set()
    for number, line in enumerate(table.split("\n"), start=1):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("|")
        if len(fields) not in (2, 3) or not fields[0].strip():
            raise unreadable(f"line {number} of {folder / 'metadata.csv'} is not id|text|normalised text")
        name, text = fields[0].strip(), (fields[2].strip() if len(fields) == 3 else "") or fields[1].strip()
        if name in seen:
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"line {number} gives this id a second text"))
        elif name not in recordings:
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"line {number} has no recording in wavs/"))
        elif not text:
            refused.append(Refusal(name, Code.NO_PHONEMES, f"line {number} has no text"))
        else:
            clips.append(Clip(name, AudioSource(recordings[name]), text))
        seen.add(name)
    refused += [
        Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"wavs/{path.name} has no line in metadata.csv")
        for name, path in recordings.items()
        if name not in seen
    ]
    return clips, refused
