"""What a worker process does: jobs that it is told on its standard input, one JSON object a line, and answers in the same form.

The first line says which codec, device and folder; every other is a job. The process ends when its input ends, in the middle of
a job too: the results of jobs are whole or absent, and nothing is written when nobody waits for it any more.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from common.errors import HocketError
from common.faults import Fault, Faults
from tokenizer.codec import Codec, load_codec
from tokenizer.encode_jobs import ClipTask, VoiceOf, encode_job

Say = Callable[[dict[str, Any]], None]


class Worker:
    """Does jobs with models that are loaded once, when the first job needs them.

    Args:
        codec: loads the codec. device: of the models.
        batch_size: windows of speech embedded together; None: by the device's free memory.
    """

    def __init__(
        self, codec: Callable[[], Codec], device: str, faults: Faults, say: Say, *, batch_size: int | None = None
    ) -> None:
        self._batch_size = batch_size
        self._load, self._device, self._faults, self._say = codec, device, faults, say
        self._codec: Codec | None = None
        self._voice: VoiceOf | None = None
        self._encoder: Any = None
        self._tools: Any = None

    def do(self, job: dict[str, Any]) -> None:
        """Do one job and say that it is done.

        Raises:
            HocketError: what ends the work, such as a full disk; what is wrong with a clip is in the job's result.
        """
        if job["kind"] == "encode":
            self._encode(job)
        else:
            self._cut(job)
        self._say({"done": job["number"]})

    def _encode(self, job: dict[str, Any]) -> None:
        if self._codec is None:
            self._codec = self._load()
        if job["speakers"] and self._voice is None:
            from tokenizer.recordings.clip_voice import ClipVoice

            self._voice = ClipVoice(self._speaker_encoder())
        clips = [ClipTask.from_json(clip) for clip in job["clips"]]
        voice = self._voice if job["speakers"] else None
        encode_job(clips, self._codec, Path(job["path"]), voice_of=voice, faults=self._faults, number=job["number"])

    def _cut(self, job: dict[str, Any]) -> None:
        from tokenizer.recording_jobs import RecordingTask, cut_job

        def heard(seconds: float) -> None:
            self._say({"heard": seconds, "job": job["number"]})

        task = RecordingTask.from_json(job["recording"])
        cut_job(task, self._recording_tools(), Path(job["path"]), heard=heard, faults=self._faults, number=job["number"])

    def _speaker_encoder(self) -> Any:
        if self._encoder is None:
            from tokenizer.recordings.embed import SpeakerEncoder

            self._encoder = SpeakerEncoder(self._device, self._batch_size)
        return self._encoder

    def _recording_tools(self) -> Any:
        if self._tools is None:
            from tokenizer.recordings.diarise import RecordingTools
            from tokenizer.recordings.vad import SileroVad

            self._tools = RecordingTools(SileroVad(), self._speaker_encoder())
        return self._tools


def _listen(lines: TextIO, jobs: queue.Queue[dict[str, Any]]) -> None:
    for line in lines:
        jobs.put(json.loads(line))
    os._exit(0)  # at once, for whoever wanted the results is gone or has all of them


def main() -> None:
    """Serve until the input ends."""
    import torch

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, jobs), daemon=True).start()
    first = jobs.get()
    torch.set_num_threads(first["threads"])
    faults = Faults([Fault.parse(line) for line in first["faults"]])
    folder, n_codebooks, device = Path(first["codec"]), first["n_codebooks"], first["device"]
    load = functools.partial(load_codec, folder, n_codebooks=n_codebooks, device=device)
    worker = Worker(load, device, faults, say, batch_size=first["batch_size"])
    while True:
        try:
            worker.do(jobs.get())
        except HocketError as error:
            say({"error": error.line()})


if __name__ == "__main__":
    main()
