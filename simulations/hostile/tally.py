"""What was thrown at a target and what became of it."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulations.usage import pss_bytes

MAX_FAULTS = 20
SLOW_S = 1.0


@dataclass
class Tally:
    """Of one target.

    Args:
        target: its name.
        kinds: malformed messages by what was done to them.
        outcomes: by what became of them.
        faults: what must not be: an exception that is no numbered error, a message that got through, a slow answer.
        health_s: the longest time until an honest question was answered meanwhile; None where none was asked.
        grown_bytes: by how much the memory in use rose; limit_bytes: by how much it may.
        identical: whether what was trained meanwhile is bit by bit what is trained in quiet; None where nothing was.
        seconds: that it took.
    """

    target: str
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    health_s: float | None = None
    grown_bytes: dict[str, int] = field(default_factory=dict)
    limit_bytes: int = 0
    identical: bool | None = None
    seconds: float = 0.0

    @property
    def messages(self) -> int:
        return sum(self.kinds.values())

    def sent(self, kind: str, outcome: str) -> None:
        self.kinds[kind] += 1
        self.outcomes[outcome] += 1

    def fault(self, text: str) -> None:
        """Note what must not be; of more than 20 the first are kept."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(" ".join(text.split())[:500])

    def health(self, seconds: float) -> None:
        self.health_s = max(self.health_s or 0.0, seconds)

    def grew(self, before: int) -> None:
        """Note by how much this process has grown since `own_bytes` was `before`."""
        self.grown_bytes = {"this process": max(0, own_bytes() - before)}

    def problems(self) -> list[str]:
        """Why the target has not stood it; empty: it has."""
        found = [f"{self.target}: {fault}" for fault in self.faults]
        if self.health_s is not None and self.health_s > SLOW_S:
            found.append(f"{self.target}: an honest question was answered after {self.health_s:.2f} s")
        for name, grown in self.grown_bytes.items():
            if grown > self.limit_bytes:
                found.append(f"{self.target}: {name} grew by {grown / 2**20:.0f} MiB, at most {self.limit_bytes / 2**20:.0f}")
        if self.identical is False:
            found.append(f"{self.target}: what was trained differs from what is trained in quiet")
        return found

    def record(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {
            "target": self.target, "messages": self.messages, "seconds": round(self.seconds, 3),
            "kinds": dict(self.kinds.most_common()), "outcomes": dict(self.outcomes.most_common()), "faults": self.faults,
            "health_s": self.health_s, "grown_bytes": self.grown_bytes, "limit_bytes": self.limit_bytes,
            "identical": self.identical,
        }  # fmt: skip


def own_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    return pss_bytes(os.getpid()) or 0


class _Faults(logging.Handler):
    """Notes log records that tell of an exception which is no numbered error."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(logging.WARNING)
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or (record.levelno >= logging.ERROR and record.name.startswith(("asyncio", "swarm", "grpc"))):
            error = f": {record.exc_info[1]!r}" if record.exc_info else ""
            self._tally.fault(f"logged by {record.name}: {record.getMessage()}{error}")


@contextmanager
def faults_in_logs(tally: Tally) -> Iterator[None]:
    """Have what is logged meanwhile about our own faults counted, and so what no task of the loop has caught."""
    handler = _Faults(tally)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def faults_in_text(text: str) -> list[str]:
    """Tracebacks in a process's log, each by its last line."""
    found = []
    for match in re.finditer(r"Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)*)(\S.*)", text):
        found.append(match.group(2).strip())
    return found
