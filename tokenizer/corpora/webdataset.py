"""WebDataset tars: the members of one key are one sample. Read in place, by offset; nothing is unpacked."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from common.errors import Code, HocketError
from tokenizer.audio import AUDIO_SUFFIXES
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.model import Clip, Recording, Refusal, check_name, check_text, refusal_of, shown, unreadable
from tokenizer.corpora.rows import cell, checked_cell, columns_of
from tokenizer.languages import check_language

TEXT_SUFFIXES = (".txt", ".lab", ".text", ".transcript")
READ = ("text", "language", "speaker", "licence")  # of a sample's JSON
MAX_SIDECAR_BYTES = 1 << 20
MAX_MEMBERS = 100  # of a sample
MAX_HEADER_BYTES = 1 << 20  # of a member's extended header, which holds names


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
                fault = fault or f"{path.name} has this key a second time"
                refused.append(Refusal(shown(key), Code.TEXT_AUDIO_MISMATCH, fault))
                continue
            seen.add(key)
            try:
                sample = _sample(path, key, members)
            except HocketError as error:
                refused.append(refusal_of(key, error))
                continue
            if isinstance(sample, Clip):
                clips.append(sample)
            else:
                recordings.append(sample)
    if clips:
        refused += [Refusal(one.id, Code.TEXT_AUDIO_MISMATCH, "it has no text") for one in recordings]
        recordings = []
    return clips, recordings, refused


class _Headers(io.FileIO):
    """A tar of which no more is read at a time than a header may have: an extended one says itself how long it is."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Members but folders, and what those hold that are small texts."""
    try:
        with _Headers(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            end = -1
            while (member := tar.next()) is not None:
                if member.size < 0 or tar.offset <= end:
                    raise tarfile.ReadError(f"a member of {member.size} bytes")
                end = tar.offset
                tar.members = []  # type: ignore[attr-defined]  # it would keep every header of a large tar
                # A Mac adds a member of this name to each, with what it notes about it.
                if member.isdir() or PurePosixPath(member.name).name.startswith("._"):
                    continue
                content = b""
                if member.isreg() and member.name.lower().endswith((*TEXT_SUFFIXES, ".json")):
                    file.seek(member.offset_data)
                    content = file.read(min(member.size, MAX_SIDECAR_BYTES))
                yield member, content
    except (OSError, ValueError, OverflowError, tarfile.TarError, EOFError) as error:  # places beyond any file's end
        raise unreadable(f"{path} is no plain tar that can be read ({error})", "unpack .gz first, or make it again") from error


def _samples(path: Path) -> Iterator[tuple[str, dict[str, tuple[int, int, bytes]], str]]:
    """(key, {suffix: (offset, size, content where small)}, what is wrong) of consecutive members with one key."""
    key, members, fault = "", dict[str, tuple[int, int, bytes]](), ""
    for member, content in _members(path):
        name = PurePosixPath(member.name)
        stem, dot, suffix = name.name.partition(".")
        mine = str(name.with_name(stem)) if stem else str(name)
        if mine != key:
            if key:
                yield key, members, fault
            key, members, fault = mine, {}, ""
        ending = f".{suffix.lower()}" if dot else ""
        if name.is_absolute() or ".." in name.parts:
            fault = f"the member {shown(member.name[:80])!r} leaves the archive"
        elif not member.isreg() or member.issparse():
            fault = f"the member {shown(member.name[:80])!r} is no plain file"
        elif ending in members:
            fault = f"it has {shown(ending[:80])} twice"
        elif len(members) >= MAX_MEMBERS:
            fault = f"it has more than {MAX_MEMBERS} members"
        else:
            members[ending] = (member.offset_data, member.size, content)
    if key:
        yield key, members, fault


def _sample(path: Path, key: str, members: dict[str, tuple[int, int, bytes]]) -> Clip | Recording:
    sounds = [suffix for suffix in members if suffix in AUDIO_SUFFIXES]
    if len(sounds) != 1:
        among = shown(", ".join(members)[:200]) or "nothing"
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{len(sounds)} recordings among {among}")
    offset, size, _ = members[sounds[0]]
    if offset + size > path.stat().st_size:
        raise HocketError(Code.AUDIO_UNREADABLE, f"{path.name} ends inside it")
    check_name("key", key)
    values: dict[str, str] = {}
    try:
        for suffix, (_, length, content) in members.items():
            if suffix in TEXT_SUFFIXES or suffix == ".json":
                if length > MAX_SIDECAR_BYTES:
                    raise HocketError(Code.NO_PHONEMES, f"its {suffix} has {length} bytes, at most {MAX_SIDECAR_BYTES} are read")
                written = content.decode("utf-8-sig")
                values.update(_facts(written) if suffix == ".json" else {"plain": " ".join(written.split())})
    except (ValueError, RecursionError) as error:
        raise HocketError(Code.NO_PHONEMES, "its text is not UTF-8, or its .json no JSON") from error
    audio = AudioSource(path, offset, size, f"{path.name}:{key}{sounds[0]}")
    language = check_language(values["language"]) if values.get("language") else None
    speaker, licence = values.get("speaker") or None, values.get("licence") or None
    text = values.get("plain", values.get("text"))
    if text is None:
        return Recording(key, audio, None, language, speaker, licence)
    check_text(text)
    if not text:
        raise HocketError(Code.NO_PHONEMES, "its text is empty")
    return Clip(key, audio, text, language, speaker, licence)


def _facts(written: str) -> dict[str, str]:
    """What a sample's JSON says of it; TEXT_AUDIO_MISMATCH, NO_PHONEMES."""
    about = json.loads(written)
    if not isinstance(about, dict):
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, "its .json is no object")
    columns = {meaning: name for meaning, name in columns_of(list(about)).items() if meaning in READ and about[name] is not None}
    return {meaning: checked_cell(meaning, cell(about[name])) for meaning, name in columns.items()}
