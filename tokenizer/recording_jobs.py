"""Long recordings cut into pieces, one job each, with the pieces in a file that is whole or absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from protocol.tensor_files import json_of, json_tensor, read_tensors, write_tensors
from tokenizer.audio_source import AudioSource
from tokenizer.corpus import Corpus, Recording, Refusal
from tokenizer.text_gate import Passage

if TYPE_CHECKING:
    from tokenizer.recordings.diarise import RecordingTools

NOT_THE_RECORDINGS = (Code.EXTRA_MISSING, Code.OPTION_INVALID, Code.DISK_FULL, Code.STATE_UNREADABLE)


@dataclass(frozen=True)
class RecordingTask:
    """A recording to cut, with its subtitles if it has any."""

    audio: AudioSource
    subtitles: Path | None

    def to_json(self) -> dict[str, Any]:
        return {"audio": self.audio.to_json(), "subtitles": None if self.subtitles is None else str(self.subtitles)}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> RecordingTask:
        subtitles = None if fields["subtitles"] is None else Path(fields["subtitles"])
        return RecordingTask(AudioSource.from_json(fields["audio"]), subtitles)


def cut_job(
    task: RecordingTask,
    tools: RecordingTools,
    path: Path,
    *,
    heard: Callable[[float], None],
    faults: Faults = NO_FAULTS,
    number: int = 0,
) -> None:
    """Cut a recording and write its pieces, or why it is refused, to `path`.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE, EXTRA_MISSING, OPTION_INVALID.
    """
    from tokenizer.recordings.diarise import cut_recording
    from tokenizer.recordings.subtitles import read_subtitles

    about: dict[str, Any] = {"pieces": [], "named": False, "code": None, "reason": ""}
    vectors: list[NDArray[np.float32] | None] = []
    try:
        cues = None if task.subtitles is None else read_subtitles(task.subtitles)
        pieces = cut_recording(task.audio, tools, cues=cues, progress=heard)
        about["named"] = any(cue.speaker is not None for cue in cues or ())
        about["pieces"] = [
            {"start_s": piece.start_s, "stop_s": piece.stop_s, "speaker": piece.speaker, "text": piece.text} for piece in pieces
        ]
        vectors = [piece.embedding for piece in pieces]
    except HocketError as error:
        if error.code in NOT_THE_RECORDINGS:
            raise
        about.update(code=int(error.code), reason=error.detail)
    width = max((len(vector) for vector in vectors if vector is not None), default=1)
    table = np.array([np.zeros(width, np.float32) if vector is None else vector for vector in vectors], np.float32)
    faults.reach("tokenize.cut.before", recording=number)
    write_tensors(
        path,
        {"about": json_tensor(about), "embeddings": table.reshape(len(vectors), width)},
    )
    faults.reach("tokenize.cut.after", recording=number)


def read_pieces(path: Path, recording: Recording, corpus: Corpus) -> tuple[list[Passage], list[Refusal], list[Refusal]]:
    """What a recording has become: its pieces; its refusal; and the pieces that no subtitle covers, which are left out.

    Speakers that subtitles do not name are numbered in each recording, so their names begin with the recording's.
    """
    tensors = read_tensors(path)
    about, table = json_of(tensors["about"]), tensors["embeddings"]
    if about["code"] is not None:
        return [], [Refusal(recording.id, Code(about["code"]), about["reason"])], []
    pieces: list[Passage] = []
    uncovered: list[Refusal] = []
    for number, (piece, vector) in enumerate(zip(about["pieces"], table, strict=True), start=1):
        name = f"{recording.id}-{number:05d}"
        if piece["text"] is None and recording.subtitles is not None:
            where = f"from {piece['start_s']:.1f} to {piece['stop_s']:.1f} s"
            uncovered.append(Refusal(name, Code.TEXT_AUDIO_MISMATCH, f"no subtitle covers the speech {where}"))
            continue
        speaker = piece["speaker"] if about["named"] else f"{recording.id}/{piece['speaker']}"
        pieces.append(
            Passage(
                name, recording.audio, piece["text"], recording.language, speaker, recording.licence or corpus.licence,
                piece["start_s"], piece["stop_s"], vector if vector.any() else None,
            )
        )  # fmt: skip
    return pieces, [], uncovered
