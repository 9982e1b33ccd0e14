"""A folder of recordings, each with a text of the same name (.txt, .lab) or subtitles (.srt, .vtt) beside it, or with neither."""

from __future__ import annotations

from pathlib import Path

from common.errors import Code, HocketError
from tokenizer.audio import audio_files
from tokenizer.audio_source import AudioSource
from tokenizer.corpora.facts import read_text
from tokenizer.corpora.model import Clip, Recording, Refusal

TEXT_SUFFIXES = (".txt", ".lab")
SUBTITLE_SUFFIXES = (".vtt", ".srt")
MAX_TEXT_BYTES = 1 << 20


def scan_folder(folder: Path) -> tuple[list[Clip], list[Recording], list[Refusal]]:
    """Clips and recordings by path; the speaker is the folder in which a recording lies, where that is not `folder` itself.

    A recording with no text in a folder where others have one was forgotten and is refused; where none has a text all are long
    recordings without transcripts.
    """
    clips: list[Clip] = []
    recordings: list[Recording] = []
    refused: list[Refusal] = []
    bare: list[Recording] = []
    seen: set[str] = set()
    root = folder.resolve()
    for path in audio_files(folder):
        relative = path.relative_to(folder)
        name = relative.with_suffix("").as_posix()
        speaker = relative.parent.name or None
        if not path.resolve().is_relative_to(root):
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"{relative} is a link that leaves the folder"))
            continue
        if name in seen:
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"{relative} is a second recording of this id"))
            continue
        seen.add(name)
        source = AudioSource(path, name=relative.as_posix())
        texts = [found for suffix in TEXT_SUFFIXES if (found := path.with_suffix(suffix)).is_file()]
        subtitles = [found for suffix in SUBTITLE_SUFFIXES if (found := path.with_suffix(suffix)).is_file()]
        if len(texts) + len(subtitles) > 1:
            both = " and ".join(found.name for found in [*texts, *subtitles])
            refused.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"{both} both belong to it"))
        elif subtitles:
            recordings.append(Recording(name, source, subtitles[0], speaker=speaker))
        elif not texts:
            bare.append(Recording(name, source, speaker=speaker))
        else:
            try:
                text = " ".join(read_text(texts[0], MAX_TEXT_BYTES).split())
            except HocketError as error:
                refused.append(Refusal(name, error.code, error.detail))
                continue
            if text:
                clips.append(Clip(name, source, text, speaker=speaker))
            else:
                refused.append(Refusal(name, Code.NO_PHONEMES, f"{texts[0].name} is empty"))
    if clips:
        refused += [Refusal(one.id, Code.TEXT_AUDIO_MISMATCH, "no text lies beside it") for one in bare]
    else:
        recordings += bare
    return clips, recordings, refused
