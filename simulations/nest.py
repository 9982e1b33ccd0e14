"""A process that has loaded what a worker needs, and forks into workers: the simulation's half is `simulations.nursery`.

Loading it takes four seconds of a core; a cluster of fourteen workers on one machine would do that fourteen times. The nest has
no thread of Python's, no connection and no random state of ours, so a fork of it is as good as a process that was started anew:
it gets an environment, a folder, a log and a standard input of its own, and runs its module as `python -m` does.

Requests come over a socket, one message each: JSON, with the descriptors of the log and of the standard input. What became of
them goes to standard output in lines of JSON: `{"born": pid}` for each request in turn, `{"ended": pid, "code": code}` later.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 1 << 16
LOADED = ("node.worker", "cli.run_commands", "simulations.attacks.catalogue")


@dataclass(frozen=True)
class Birth:
    """What a new process is to be."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log: int
    stdin: int

    @classmethod
    def take(cls, asked: socket.socket) -> Birth | None:
        """The next one that is asked for; None: nobody asks any more."""
        data, descriptors, _, _ = socket.recv_fds(asked, MOST_BYTES, 2)
        return cls(**json.loads(data), log=descriptors[0], stdin=descriptors[1]) if data else None


def say(**word: Any) -> None:
    os.write(1, json.dumps(word).encode() + b"\n")


def bury() -> None:
    """Tell of all that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say(ended=pid, code=os.waitstatus_to_exitcode(status))


def fork_for(asked: socket.socket) -> Birth | None:
    """Fork for whoever asks, until nobody does. Returns in the new processes, with what each is to be; at the end None."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker)
    while True:
        ready, _, _ = select.select([asked.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            bury()
        if asked.fileno() not in ready:
            continue
        birth = Birth.take(asked)
        if birth is None:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (woken, waker):
                os.close(descriptor)
            asked.close()
            return birth
        say(born=pid)
        os.close(birth.log)
        os.close(birth.stdin)


def become(birth: Birth) -> None:
    """Be the new process: what this one has of the nest's is replaced, and the module runs to its end."""
    os.dup2(birth.stdin, 0)
    os.dup2(birth.log, 1)
    os.dup2(birth.log, 2)
    os.close(birth.stdin)
    os.close(birth.log)
    os.chdir(birth.folder)
    os.environ.clear()
    os.environ.update(birth.environment)
    tempfile.tempdir = None     # it was chosen from the nest's environment, if it was
    sys.argv = [birth.module, *birth.arguments]
    runpy.run_module(birth.module, run_name="__main__", alter_sys=True)


def main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in LOADED:
        importlib.import_module(name)
    # What is there now is there for good: no collection in a fork writes to its pages, so that all share them.
    gc.freeze()
    say(ready=os.getpid())
    if (birth := fork_for(asked)) is not None:
        become(birth)


if __name__ == "__main__":
    main()
