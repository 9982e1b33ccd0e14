"""A folder of recordings, each with a text of the same name (.txt, .lab) or subtitles (.srt, .vtt) beside it, or with neither."""

from __future__ import annotations

from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio import audio_files
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.facts import read_text
from tokenizer.corpora.model import Clip, Recording, Refusal, check_name, check_text, refusal_of, shown, unreadable

TEXT_SUFFIXES = (".txt", ".lab")
SUBTITLE_SUFFIXES = (".vtt", ".srt")
MAX_TEXT_BYTES = 1 << 20
# Texts that lie in folders of recordings and belong to none of them.
NO_TRANSCRIPTS = ("heldout", "readme", "license", "licence", "copying", "notice", "changes", "changelog", "authors", "credits")


def scan_folder(folder: Path) -> tuple[list[Clip], list[Recording], list[Refusal]]:
    """Clips and recordings by path; the speaker is the folder in which a recording lies, where that is not `folder` itself.

    A recording with no text in a folder where others have one was forgotten and is refused, as a text without a recording is;
    where none has a text all are long recordings without transcripts.

    Raises:
        HocketError: CORPUS_UNREADABLE if there are texts, and none belongs to a recording.
    """
    clips: list[Clip] = []
    recordings: list[Recording] = []
    refused: list[Refusal] = []
    seen: set[str] = set()
    for path in audio_files(folder):
        relative = path.relative_to(folder)
        name = relative.with_suffix("").as_posix()
        try:
            if name in seen:
                raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{shown(relative.as_posix())} is a second recording of this id")
            seen.add(name)
            found = read_one(path, name, relative.as_posix(), relative.parent.name or None, folder)
        except HocketError as error:
            refused.append(refusal_of(name, error))
            continue
        if isinstance(found, Clip):
            clips.append(found)
        else:
            recordings.append(found)
    lone = _lone_texts(folder, seen)
    if not clips:
        if lone and not refused and all(one.subtitles is None for one in recordings):
            detail = f"{len(lone)} texts of {folder} belong to no recording, such as {shown(lone[0])}"
            raise unreadable(detail, "give each recording a text of the same name beside it, or write a table of them")
        return clips, recordings, refused
    refused += [
        Refusal(one.id, Code.TEXT_AUDIO_MISMATCH, "no text lies beside it") for one in recordings if one.subtitles is None
    ]
    refused += [Refusal(shown(one), Code.TEXT_AUDIO_MISMATCH, "no recording lies beside this text") for one in lone]
    return clips, [one for one in recordings if one.subtitles is not None], refused


def read_one(path: Path, name: str, title: str, speaker: str | None, folder: Path) -> Clip | Recording:
    """A recording with what lies beside it: a clip where that is a text.

    Args:
        folder: that neither it nor its text may leave.

    Raises:
        HocketError: TEXT_AUDIO_MISMATCH, NO_PHONEMES, CORPUS_UNREADABLE.
    """
    check_name("name", name)
    root = folder.resolve()
    texts = [found for suffix in TEXT_SUFFIXES if (found := path.with_suffix(suffix)).is_file()]
    subtitles = [found for suffix in SUBTITLE_SUFFIXES if (found := path.with_suffix(suffix)).is_file()]
    for one in (path, *texts, *subtitles):
        if not one.resolve().is_relative_to(root):
            raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{one.name} is a link that leaves the folder")
    if len(texts) + len(subtitles) > 1:
        both = " and ".join(found.name for found in [*texts, *subtitles])
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, f"{both} both belong to it")
    source = AudioSource(path, name=title)
    if not texts:
        return Recording(name, source, subtitles[0] if subtitles else None, speaker=speaker)
    text = " ".join(read_text(texts[0], MAX_TEXT_BYTES).split())
    check_text(text)
    if not text:
        raise HocketError(Code.NO_PHONEMES, f"{texts[0].name} is empty")
    return Clip(name, source, text, speaker=speaker)


def _lone_texts(folder: Path, names: set[str]) -> list[str]:
    """Texts and subtitles with no recording of their name, by path."""
    suffixes = (*TEXT_SUFFIXES, *SUBTITLE_SUFFIXES)
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    return sorted(
        path.as_posix()
        for path in found
        if path.with_suffix("").as_posix() not in names
        and not path.name.startswith(".")
        and not (path.suffix.lower() == ".txt" and path.stem.lower() in NO_TRANSCRIPTS)
    )
