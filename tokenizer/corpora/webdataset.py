"""WebDataset tars: the members of one key are one sample. Read in place, by offset; nothing is unpacked."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from common.errors import Code, HocketError
from tokenizer.audio import AUDIO_SUFFIXES
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.model import Clip, Recording, Refusal, unreadable
from tokenizer.corpora.rows import columns_of
from tokenizer.languages import check_language

TEXT_SUFFIXES = (".txt", ".lab", ".text", ".transcript")
MAX_SIDECAR_BYTES = 1 << 20


def scan_tars(paths: list[Path]) -> tuple[list[Clip], list[Recording], list[Refusal]]:
    """The samples of tars, in their order.

    Raises:
        HocketError: CORPUS_UNREADABLE for a tar that is damaged or compressed.
    """
    clips: list[Clip] = []
    recordings: list[Recording] = []
    refused: list[Refusal] = []
    seen: set[str] = set()
    for path in paths:
        for key, members, fault in _samples(path):
            if fault or key in seen:
                refused.append(Refusal(key, Code.TEXT_AUDIO_MISMATCH, fault or f"{path.name} has this key a second time"))
                continue
            seen.add(key)
            sample = _sample(path, key, members)
            if isinstance(sample, Clip):
                clips.append(sample)
            elif isinstance(sample, Recording):
                recordings.append(sample)
            else:
                refused.append(sample)
    if clips:
        refused += [Refusal(one.id, Code.TEXT_AUDIO_MISMATCH, "it has no text") for one in recordings]
        recordings = []
    return clips, recordings, refused


def _samples(path: Path) -> Iterator[tuple[str, dict[str, tuple[int, int, bytes]], str]]:
    """(key, {suffix: (offset, size, content where small)}, what is wrong) of consecutive members with one key."""
    key, members, fault = "", dict[str, tuple[int, int, bytes]](), ""
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep every header of a large tar
                if member.isdir():
                    continue
                name = PurePosixPath(member.name)
                stem, dot, suffix = name.name.partition(".")
                mine = str(name.with_name(stem)) if stem else str(name)
                if mine != key:
                    if key:
                        yield key, members, fault
                    key, members, fault = mine, {}, ""
                if name.is_absolute() or ".." in name.parts:
                    fault = f"the member {member.name[:80]!r} leaves the archive"
                elif not member.isreg() or member.issparse():
                    fault = f"the member {member.name[:80]!r} is no plain file"
                else:
                    content = b""
                    ending = f".{suffix.lower()}"
                    if ending in TEXT_SUFFIXES or ending == ".json":
                        file = tar.extractfile(member)
                        content = file.read(MAX_SIDECAR_BYTES + 1) if file is not None else b""
                    members[ending if dot else ""] = (member.offset_data, member.size, content)
        if key:
            yield key, members, fault
    except (OSError, tarfile.TarError, EOFError) as error:
        raise unreadable(f"{path} is no plain tar that can be read ({error})", "unpack .gz first, or make it again") from error


def _sample(path: Path, key: str, members: dict[str, tuple[int, int, bytes]]) -> Clip | Recording | Refusal:
    sounds = [suffix for suffix in members if suffix in AUDIO_SUFFIXES]
    if len(sounds) != 1:
        return Refusal(key, Code.TEXT_AUDIO_MISMATCH, f"{len(sounds)} recordings among {', '.join(members) or 'nothing'}")
    offset, size, _ = members[sounds[0]]
    if offset + size > path.stat().st_size:
        return Refusal(key, Code.AUDIO_UNREADABLE, f"{path.name} ends inside it")
    audio = AudioSource(path, offset, size, f"{path.name}:{key}{sounds[0]}")
    values: dict[str, str] = {}
    try:
        for suffix, (_, length, content) in members.items():
            if content and length > MAX_SIDECAR_BYTES:
                return Refusal(key, Code.NO_PHONEMES, f"its {suffix} has {length} bytes")
            if suffix in TEXT_SUFFIXES:
                values["text"] = " ".join(content.decode("utf-8-sig").split())
            elif suffix == ".json":
                about = json.loads(content.decode("utf-8-sig"))
                if not isinstance(about, dict):
                    return Refusal(key, Code.TEXT_AUDIO_MISMATCH, "its .json is no object")
                for meaning, name in columns_of(list(about)).items():
                    if isinstance(about[name], str):
                        values.setdefault(meaning, about[name].strip())
    except (ValueError, RecursionError):
        return Refusal(key, Code.NO_PHONEMES, "its text is not UTF-8, or its .json no JSON")
    language = values.get("language")
    if language:
        try:
            language = check_language(language)
        except HocketError as error:
            return Refusal(key, error.code, error.detail)
    speaker, licence = values.get("speaker") or None, values.get("licence") or None
    if "text" not in values:
        return Recording(key, audio, None, language or None, speaker, licence)
    if not values["text"]:
        return Refusal(key, Code.NO_PHONEMES, "its text is empty")
    return Clip(key, audio, values["text"], language or None, speaker, licence)
