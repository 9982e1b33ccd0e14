"""Numbered points of a process at which it can be killed: its own fault points, and each change that it makes to its files.

A first pass counts the points and names them; a later one is killed at the n-th, or meets a disk that is full or read-only
there. Only for processes that end soon: the audit hook that sees the file changes cannot be taken away again.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from common.faults import Faults

_CHANGES = {"os.rename": "rename", "os.remove": "remove", "os.rmdir": "remove folder", "os.mkdir": "make folder"}
# On a full disk files can still be removed.
_FAILING = {
    errno.ENOSPC: {"open", "rename", "make folder"},
    errno.EROFS: {"open", "rename", "make folder", "remove", "remove folder"},
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Points(Faults):
    """Counts the points of this process.

    Args:
        folder: whose files are watched. at: the number of the point at which it happens, from 1 on; 0: never.
        failure: what happens: SIGKILL comes, or the file change at that point, or the next one, fails with this error.
        names: takes the name of each point, one a line; None: they are not written.
    """

    def __init__(self, folder: Path, *, at: int = 0, failure: int | None = None, names: Path | None = None) -> None:
        super().__init__()
        self._folder = str(folder)
        self._at = at
        self._failure = failure
        self._kills = failure is None
        self._number = 0
        self._names = None if names is None else os.open(names, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.addaudithook(self._audit)

    def reach(self, point: str, **facts: object) -> None:
        """One more point."""
        self._number += 1
        if self._names is not None:
            told = ",".join(f"{key}={value}" for key, value in facts.items())
            os.write(self._names, f"{point}:{told}\n".encode())
        if self._number == self._at and self._kills:
            os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            path, folder = arguments[0], arguments[-1]
            # Paths below a folder that is open (as `rmtree` has them) are relative; nothing else in this process works so.
            inside = str(os.fspath(path)).startswith(self._folder) or (isinstance(folder, int) and folder >= 0)
            what = _CHANGES[event]
        elif event == "open" and isinstance(arguments[0], str | os.PathLike):
            path, flags = arguments[0], arguments[2] or 0
            inside = str(os.fspath(path)).startswith(self._folder) and bool(flags & (_WRITES | os.O_DIRECTORY))
            what = "sync folder" if flags & os.O_DIRECTORY else "open"
        else:
            return
        if inside:
            self.reach(what, path=os.path.basename(os.fspath(path)))
            if self._failure is not None and 0 < self._at <= self._number and what in _FAILING[self._failure]:
                failure, self._failure = self._failure, None
                raise OSError(failure, os.strerror(failure), os.fspath(path))


class Trial(ABC):
    """Something that is done again and again, and killed at another point each time."""

    points: list[str]

    @abstractmethod
    def play(self, number: int, draw: random.Random) -> list[str]:
        """Do it, be killed at the `number`-th point, recover, finish; what was not as it must be."""
