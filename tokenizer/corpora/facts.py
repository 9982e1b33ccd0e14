"""What a folder says of itself beside its clips: `corpus.json` (speaker, language, licence) and `heldout.txt` (ids)."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizer.corpora.model import unreadable

MAX_TABLE_BYTES = 256 * 2**20


def read_text(path: Path, max_bytes: int = MAX_TABLE_BYTES) -> str:
    """A text file in UTF-8; CORPUS_UNREADABLE."""
    try:
        if path.stat().st_size > max_bytes:
            raise unreadable(f"{path} has more than {max_bytes} bytes")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise unreadable(f"{path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise unreadable(f"{path} is not UTF-8 (byte {error.start})", "save it as UTF-8") from error


def read_facts(folder: Path) -> dict[str, str]:
    """The texts of `folder`/corpus.json; none where there is no such file."""
    path = folder / "corpus.json"
    if not path.exists():
        return {}
    try:
        facts = json.loads(read_text(path))
    except ValueError as error:
        raise unreadable(f"{path} is no JSON") from error
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise unreadable(f"{path} is not an object of texts")
    return facts


def read_heldout(folder: Path) -> list[str] | None:
    """The ids of `folder`/heldout.txt; None where there is no such file."""
    path = folder / "heldout.txt"
    return read_text(path).split() if path.exists() else None
