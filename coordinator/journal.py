"""The journal: an append-only list of events in SQLite. What is acknowledged to anybody was appended, and synced, before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.faults import Faults

FORMAT = 1


@dataclass(frozen=True)
class Event:
    """Something that happened, in the order of `seq`; `time` in seconds since the epoch."""

    seq: int
    time: float
    kind: str
    data: dict[str, Any]


def _journal_error(error: sqlite3.Error, path: Path) -> HocketError:
    name = getattr(error, "sqlite_errorname", "")
    return HocketError(Code.DISK_FULL if name == "SQLITE_FULL" else Code.STATE_UNREADABLE, f"{path} ({error})")


class Journal:
    """Appends events and reads them back.

    Every append is one transaction, synced to the disk before it returns (WAL, `synchronous=FULL`): after a kill at any
    instruction the journal holds a prefix of what was appended that includes all that `append` returned from.

    Raises:
        HocketError: STATE_UNREADABLE, DISK_FULL.
    """

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        self._faults = faults
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
        except sqlite3.Error as error:
            raise _journal_error(error, path) from error
        try:
            self._prepare()
        except HocketError:
            self._database.close()
            raise

    def _prepare(self) -> None:
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            found = int(self._database.execute("PRAGMA user_version").fetchone()[0])
            if found not in (0, FORMAT):
                raise HocketError(Code.STATE_UNREADABLE, f"{self._path} has format {found}, this software writes {FORMAT}")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS events"
                " (seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL)"
            )
            self._database.execute(f"PRAGMA user_version={FORMAT}")
        except sqlite3.Error as error:
            raise _journal_error(error, self._path) from error

    def append(self, kind: str, time: float, data: dict[str, Any]) -> Event:
        """Add one event; when this returns, the event survives a power cut."""
        self._faults.reach("coordinator.journal.append", kind=kind)
        text = json.dumps(data, separators=(",", ":"), sort_keys=True, allow_nan=False)
        try:
            cursor = self._database.execute("INSERT INTO events (time, kind, json) VALUES (?, ?, ?)", (time, kind, text))
        except sqlite3.Error as error:
            raise _journal_error(error, self._path) from error
        self._faults.reach("coordinator.journal.appended", kind=kind)
        assert cursor.lastrowid is not None
        # What the state is folded from is what a restart will read, not what was handed in (tuples, integer keys).
        return Event(cursor.lastrowid, time, kind, json.loads(text))

    def events(self) -> Iterator[Event]:
        """All events, oldest first."""
        try:
            for seq, time, kind, text in self._database.execute("SELECT seq, time, kind, json FROM events ORDER BY seq"):
                try:
                    data = json.loads(text)
                except ValueError as error:
                    raise self.damaged(seq) from error
                yield Event(seq, time, kind, data)
        except sqlite3.Error as error:
            raise _journal_error(error, self._path) from error

    def last_time(self) -> float:
        """The time of the newest event; 0.0 while there is none."""
        try:
            row = self._database.execute("SELECT time FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise _journal_error(error, self._path) from error
        return float(row[0]) if row is not None else 0.0

    def damaged(self, seq: int) -> HocketError:
        """The error for an event that is not what this software wrote."""
        return HocketError(
            Code.STATE_UNREADABLE, f"event {seq} in {self._path} is damaged", remedy="restore the state directory from a backup"
        )

    def close(self) -> None:
        self._database.close()
