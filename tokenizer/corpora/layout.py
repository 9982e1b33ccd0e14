"""Which layout a corpus has, and its clips. What could be two things is refused, not guessed."""

from __future__ import annotations

import logging
from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio import AUDIO_SUFFIXES, has_audio
from tokenizer.corpora.facts import read_facts, read_heldout
from tokenizer.corpora.folder import read_one, scan_folder
from tokenizer.corpora.ljspeech import scan_ljspeech
from tokenizer.corpora.model import Clip, Corpus, Recording, Refusal, unreadable
from tokenizer.corpora.table import TABLE_SUFFIXES, is_table, scan_table
from tokenizer.corpora.webdataset import scan_tars

logger = logging.getLogger(__name__)
MEANINGS = {
    "ljspeech": "a folder in LJSpeech layout",
    "table": "a table with a row for each clip",
    "webdataset": "WebDataset tars",
    "folder": "a folder of recordings with what lies beside them",
    "recording": "one recording",
}


def scan_corpus(path: Path) -> Corpus:
    """Read what a corpus holds; what does not match is refused clip by clip.

    Args:
        path: a folder, a table (.csv, .tsv, .jsonl, .parquet), a WebDataset tar, or one long recording.

    Raises:
        HocketError: CORPUS_UNREADABLE if there is no readable corpus, or it could be read in two ways; CORPUS_TOO_SMALL if it
            is empty.
    """
    if path.is_file():
        layout, folder = _layout_of_file(path), path.parent
    elif path.is_dir():
        layout, folder = _layout_of_folder(path), path
    else:
        raise unreadable(f"{path} is neither a folder nor a file")
    clips, recordings, refused = _scan(path, layout)
    if not clips and not refused and not recordings:
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{path} holds no clip")
    counts = f"{len(clips)} clips, {len(recordings)} long recordings, {len(refused)} refused"
    logger.info("%s is read as %s: %s", path, MEANINGS[layout], counts)
    facts = read_facts(folder) if path.is_dir() else {}
    return Corpus(
        path=path,
        clips=clips,
        refused=refused,
        heldout=read_heldout(folder) if path.is_dir() else None,
        speaker=facts.get("speaker") or (path.resolve().name if path.is_dir() else path.stem),
        language=facts.get("language"),
        licence=facts.get("licence") or "unknown",
        recordings=recordings,
        layout=layout,
    )


def _layout_of_file(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return "table"
    if suffix == ".tar":
        return "webdataset"
    if suffix in AUDIO_SUFFIXES:
        return "recording"
    known = ", ".join((*TABLE_SUFFIXES, ".tar"))
    if suffix == ".json":
        raise unreadable(f"{path} is one JSON, which would have to be read as a whole", "write one object a line, as .jsonl")
    raise unreadable(f"{path} is no corpus", f"give a folder, a table or tar ({known}), or a recording")


def _tables(folder: Path) -> list[Path]:
    names = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in TABLE_SUFFIXES and path.is_file()]
    return [path for path in names if path.suffix.lower() not in (".csv", ".tsv") or is_table(path)]


def _tars(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".tar" and path.is_file())


def _layout_of_folder(folder: Path) -> str:
    try:
        tables, tars = _tables(folder), _tars(folder)
        lines = (folder / "metadata.csv").is_file() and folder / "metadata.csv" not in tables
    except OSError as error:
        raise unreadable(f"{folder} ({error.strerror})") from error
    loose = bool(tars) and has_audio(folder)
    kinds = {"metadata.csv with wavs/": lines, "tars": bool(tars), "recordings beside them": loose}
    found = [*(kind for kind, is_there in kinds.items() if is_there), *(table.name for table in tables)]
    if len(found) > 1:
        raise unreadable(f"{folder} could be read in several ways: {', '.join(found)}", "name the one table or tar that is meant")
    if lines:
        return "ljspeech"
    if tables:
        return "table"
    if tars:
        return "webdataset"
    if has_audio(folder):
        return "folder"
    remedy = "give a folder with recordings and their texts, a table of them, or WebDataset tars"
    raise unreadable(f"{folder} has no metadata.csv, no other table, no tar and no recordings", remedy)


def _scan(path: Path, layout: str) -> tuple[list[Clip], list[Recording], list[Refusal]]:
    if layout == "ljspeech":
        clips, refused = scan_ljspeech(path)
        return clips, [], refused
    if layout == "table":
        rows = scan_table(path if path.is_file() else _tables(path)[0])
        return rows.clips, rows.recordings, rows.refused
    if layout == "webdataset":
        return scan_tars([path] if path.is_file() else _tars(path))
    if layout == "recording":
        try:
            found = read_one(path, path.stem, path.name, None, Path(path.resolve().anchor))
        except HocketError as error:
            raise unreadable(f"{path}: {error.detail}", "leave one text or one file of subtitles beside it") from error
        return ([found], [], []) if isinstance(found, Clip) else ([], [found], [])
    clips, recordings, refused = scan_folder(path)
    if not clips and all(one.subtitles is None for one in recordings) and (unread := _unread_tables(path)):
        detail = f"{unread[0]} is no table that can be read, and no recording of {path} has a text"
        raise unreadable(detail, "begin the table with a line of column names, such as path,text")
    return clips, recordings, refused


def _unread_tables(folder: Path) -> list[str]:
    named = (path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".tsv", ".json"))
    return sorted(path.name for path in named if path.name != "corpus.json")
