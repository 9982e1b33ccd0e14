"""Jobs spread over worker processes, one of which may be this one.

Jobs are handed out as workers become free; their results are files, so the order does not matter. A worker that dies is replaced
and its job is done once more; if that dies as well the work ends with an error.
"""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError, error_of_line
from common.faults import Fault, Faults
from tokenizer.codec import Codec
from tokenizer.devices import available_devices, check_device
from tokenizer.encode_worker import Worker

logger = logging.getLogger(__name__)

Job = dict[str, Any]
"""What a worker is told: "kind", "number", "path" of the result, and what the kind needs."""

Answer = dict[str, Any]
"""{"done": number}, or {"heard": seconds of a recording, "job": number} on the way."""

MODULE = "tokenizer.encode_worker"
JOB_TRIES = 2


@dataclass(frozen=True)
class WorkerSettings:
    """How the work is spread.

    Args:
        devices: of the workers, in turn. processes: how many.
        threads: of each worker on the CPU.
        batch_size: windows of speech embedded together; None: by each device's free memory.
        faults: lines of the fault plan that workers act on.
    """

    devices: tuple[str, ...] = ("cpu",)
    processes: int = 1
    threads: int = 1
    faults: tuple[str, ...] = ()
    batch_size: int | None = None

    @property
    def inside(self) -> bool:
        """Whether this process does the jobs itself."""
        return self.processes == 1 and self.devices[0] == "cpu"

    @property
    def kind(self) -> str:
        """What has a part in the results: the kind of device, not how many there are."""
        return self.devices[0].split(":")[0]

    def check(self) -> None:
        """OPTION_INVALID for devices of different kinds, whose results would depend on which got which job."""
        if self.processes < 1 or not self.devices:
            raise HocketError(Code.OPTION_INVALID, f"{self.processes} processes on {len(self.devices)} devices cannot work")
        if self.batch_size is not None and self.batch_size < 1:
            raise HocketError(Code.OPTION_INVALID, f"batches of {self.batch_size} windows")
        if len({device.split(":")[0] for device in self.devices}) > 1:
            raise HocketError(Code.OPTION_INVALID, f"devices of one kind are wanted, not {', '.join(self.devices)}")


def named_devices(text: str) -> tuple[str, ...]:
    """The devices that a person names: "cuda" for all cards, or a list such as "cuda:0,cuda:1"; OPTION_INVALID otherwise."""
    if text == "cuda":
        cards = tuple(device for device in available_devices() if device.startswith("cuda"))
        return cards or (check_device(text),)
    return tuple(check_device(device.strip()) for device in text.split(","))


@contextmanager
def start_workers(
    settings: WorkerSettings, codec: Codec, folder: Path, fault_plan: Sequence[Fault]
) -> Iterator[Callable[[Sequence[Job]], Iterator[Answer]]]:
    """Workers for the duration of the context, started when there is a job: a function that does jobs and gives the answers.

    Args:
        codec: used by this process itself. folder: the same codec, for other processes.
        fault_plan: of this process, when it works itself.
    """
    if settings.inside:
        answers: deque[Answer] = deque()
        faults, size = Faults(list(fault_plan)), settings.batch_size
        worker = Worker(lambda: codec, settings.devices[0], faults, answers.append, batch_size=size)

        def do(jobs: Sequence[Job]) -> Iterator[Answer]:
            for job in jobs:
                worker.do(job)
                while answers:
                    yield answers.popleft()

        yield do
        return
    hello = {
        "codec": str(folder.absolute()),
        "n_codebooks": codec.n_codebooks,
        "threads": settings.threads,
        "batch_size": settings.batch_size,
    }
    pool = _Pool(settings, hello)
    try:
        yield pool.run
    finally:
        pool.stop()


class _Pool:
    def __init__(self, settings: WorkerSettings, hello: dict[str, Any]) -> None:
        self._settings, self._hello = settings, hello
        self._processes: list[subprocess.Popen[str] | None] = [None] * settings.processes
        self._jobs: list[Job | None] = [None] * settings.processes  # under way at each
        self._heard: queue.Queue[tuple[int, int, str]] = queue.Queue()  # (worker, pid, line; empty: it has ended)
        self._deaths = 0

    def run(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        """Do all jobs; their answers as they come.

        Raises:
            HocketError: what a worker says; CHILD_FAILED when a job has ended its worker twice.
        """
        waiting = deque(jobs)
        tries: Counter[int] = Counter()
        for place in range(min(len(self._processes), len(waiting))):
            self._give(place, waiting.popleft(), tries)
        while any(job is not None for job in self._jobs):
            place, pid, line = self._heard.get()
            process = self._processes[place]
            if process is None or process.pid != pid:
                continue
            if not line:
                self._bury(place, process, waiting, tries)
            else:
                answer = json.loads(line)
                if "error" in answer:
                    raise error_of_line(answer["error"]) or HocketError(Code.CHILD_FAILED, answer["error"])
                if "done" in answer:
                    self._jobs[place] = None
                yield answer
            if self._jobs[place] is None and waiting:
                self._give(place, waiting.popleft(), tries)

    def _bury(self, place: int, process: subprocess.Popen[str], waiting: deque[Job], tries: Counter[int]) -> None:
        ended, job = process.wait(), self._jobs[place]
        self._processes[place], self._jobs[place] = None, None
        if job is None:
            return
        what = f"a worker process ended with {ended} in {job['kind']} job {job['number']}"
        if tries[job["number"]] >= JOB_TRIES:
            remedy = "see what it has logged, and whether there is memory for fewer processes"
            raise HocketError(Code.CHILD_FAILED, f"{what}, for the second time", remedy=remedy)
        logger.warning("%s; the job is done once more", what)
        self._deaths += 1
        waiting.appendleft(job)

    def _give(self, place: int, job: Job, tries: Counter[int]) -> None:
        process = self._processes[place] or self._start(place)
        tries[job["number"]] += 1
        self._jobs[place] = job
        self._tell(process, job)

    @staticmethod
    def _tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return  # it has died; its listener says so

    def _start(self, place: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._processes[place] = process
        threading.Thread(target=self._listen, args=(place, process), daemon=True).start()
        # A line of the plan acts once: whoever replaces the dead finds only what stands there more often.
        left = [line for line, times in Counter(self._settings.faults).items() if times > self._deaths]
        self._tell(process, {**self._hello, "device": self._device(place), "faults": left})
        return process

    def _device(self, place: int) -> str:
        return self._settings.devices[place % len(self._settings.devices)]

    def _listen(self, place: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard.put((place, process.pid, line))
        self._heard.put((place, process.pid, ""))

    def stop(self) -> None:
        """End all workers; what they were doing is left undone."""
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        _close(stream)


def _close(stream: Any) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return  # what was still to be told is of no interest to the dead
