"""The referee as a child that stays: `python -m tts.referee_child --config FILE --stages N [--calibration FILE]`.

It says `{"up": pid}` when it is ready. Each line of its standard input is a job (see `tts.referee`); it is answered by
`{"begun": id}` when the work on it begins, so that whoever waits knows what a child that ends was doing, and by the ruling.
When the input ends the child ends at once, in the middle of a job too: nobody waits for it any more.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from pydantic import ValidationError

from common.errors import Code, HocketError
from common.stop import stop_signals
from protocol.calibration import read_calibration, shipped_calibration
from tts.config import ModelConfig
from tts.referee import Referee

Say = Callable[[dict[str, Any]], None]


def serve(referee: Referee, jobs: Iterable[dict[str, Any]], say: Say) -> None:
    """Do the jobs one after the other."""
    gc.freeze()  # the imported modules are not looked through again after each job
    for job in jobs:
        say({"begun": str(job.get("id", ""))})
        say(referee.judge(job))
        gc.collect()  # an error's traceback holds a job's tensors in a cycle


def _waiting(lines: TextIO) -> Iterator[dict[str, Any]]:
    """The jobs as they come; the process ends with its input, which is read beside the work."""
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in lines:
            jobs.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield jobs.get()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tts.referee_child", description="Recompute what members have opened.")
    parser.add_argument("--config", type=Path, required=True, help="of the model, JSON")
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--calibration", type=Path, help="a table of tolerances; without it the one that comes with the program")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for number in stop_signals():
        # They reach a whole group of processes. This one ends when the coordinator does, and not with a job half done before it.
        signal.signal(number, signal.SIG_IGN)
    words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for a ruling

    def say(word: dict[str, Any]) -> None:
        print(json.dumps(word), file=words, flush=True)

    try:
        try:
            config = ModelConfig.from_json(options.config.read_bytes())
        except (OSError, ValidationError) as error:
            raise HocketError(Code.INPUT_INVALID, f"{options.config}: {error}") from error
        table = read_calibration(options.calibration) if options.calibration else shipped_calibration()
        referee = Referee(config, options.stages, table)
    except HocketError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    say({"up": os.getpid()})
    serve(referee, _waiting(sys.stdin), say)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
