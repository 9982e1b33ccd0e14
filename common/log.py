"""Logs: lines for people on stderr, and an event log in JSON lines for programs that look back on a run."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from common.files import disk_error

_TAIL_BYTES = 1 << 16


def set_up_logging(level: str = "INFO", *, stream: TextIO | None = None) -> None:
    """Send log lines of all our loggers to `stream` (stderr), with time, level and logger name."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class EventLog:
    """An append-only file of JSON objects, one a line, each with `event`, `time` (seconds since the epoch) and `pid`.

    Whatever ends a write half-way (a full disk, a kill), the file is made to consist of whole lines again.

    Args:
        path: of the file; it is made, with its folder, when absent.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE, also from `write`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("ab+", buffering=0)
            self._stream.truncate(_whole_lines(cast(BinaryIO, self._stream)))
        except OSError as error:
            raise disk_error(error, path) from error

    def write(self, event: str, **fields: Any) -> None:
        record = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
        line = (json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n").encode()
        try:
            size = os.fstat(self._stream.fileno()).st_size
            if self._stream.write(line) != len(line):
                self._stream.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise disk_error(error, self._path) from error

    def close(self) -> None:
        self._stream.close()


def _whole_lines(stream: BinaryIO) -> int:
    """Size in bytes of the whole lines of a file."""
    end = stream.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL_BYTES)
        stream.seek(start)
        newline = stream.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_events(path: Path) -> list[dict[str, Any]]:
    """All whole lines of an event log; a last line cut by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]
