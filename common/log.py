"""Logs: lines for people on stderr, and an event log in JSON lines for programs that look back on a run."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO


def set_up_logging(level: str = "INFO", *, stream: TextIO | None = None) -> None:
    """Send log lines of all our loggers to `stream` (stderr), with time, level and logger name."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class EventLog:
    """An append-only file of JSON objects, one a line, each with `event`, `time` (seconds since the epoch) and `pid`.

    Args:
        path: of the file; it is made, with its folder, when absent.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("a", encoding="utf-8", buffering=1)

    def write(self, event: str, **fields: Any) -> None:
        record = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
        self._stream.write(json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n")

    def close(self) -> None:
        self._stream.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """All whole lines of an event log; a last line cut by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]
