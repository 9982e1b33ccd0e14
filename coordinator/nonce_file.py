"""Nonces of messages that change nothing that the journal keeps, so that a restart does not forget them either.

A watch is answered many times a second, so its nonce is not worth a synced transaction: it is handed to the system at once, and
outlives the process, though not a power cut, after which more than the window of a message passes before anything is up again.
Two files take turns, each for three windows, so that neither grows for long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from common.errors import Code, HocketError
from common.files import disk_errors
from protocol.identity import PUBLIC_KEY_BYTES
from protocol.messages import NONCE_BYTES, WINDOW_MS, NonceRow

SPAN_MS = 3 * WINDOW_MS
_ROW = struct.Struct(f"<{PUBLIC_KEY_BYTES}s{NONCE_BYTES}sq")


class NonceFile:
    """The nonces of the last three windows and somewhat more.

    Args:
        folder: for `nonces.0` and `nonces.1`. now_ms: milliseconds since the epoch.

    Raises:
        HocketError: STATE_UNREADABLE, DISK_FULL.
    """

    def __init__(self, folder: Path, now_ms: int) -> None:
        self._paths = [folder / f"nonces.{number}" for number in (0, 1)]
        self._current = -1
        self._stream: BinaryIO | None = None
        self._until_ms = now_ms
        changed = [path.stat().st_mtime_ns if path.exists() else 0 for path in self._paths]
        newest = changed.index(max(changed))
        # The one in use goes on for a span from now: what is in it may be as new as this.
        self._turn(newest, now_ms, fresh=False)

    def rows(self) -> Iterator[NonceRow]:
        """What both files hold, of use or not; a row that was cut is left out."""
        for path in self._paths:
            with disk_errors(path):
                data = path.read_bytes() if path.exists() else b""
            yield from _ROW.iter_unpack(data[: len(data) - len(data) % _ROW.size])

    def add(self, row: NonceRow, now_ms: int) -> None:
        """Keep one nonce. When this returns, it outlives the process. DISK_FULL, STATE_UNREADABLE."""
        if now_ms >= self._until_ms:
            self._turn(1 - self._current, now_ms, fresh=True)
        assert self._stream is not None
        with disk_errors(self._paths[self._current]):
            if self._stream.write(_ROW.pack(*row)) != _ROW.size:
                raise HocketError(Code.DISK_FULL, str(self._paths[self._current]))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _turn(self, number: int, now_ms: int, *, fresh: bool) -> None:
        self.close()
        path = self._paths[number]
        with disk_errors(path):
            # A row that was cut by a full disk would shift all that follow.
            whole = path.stat().st_size // _ROW.size * _ROW.size if path.exists() and not fresh else 0
            self._stream = path.open("ab", buffering=0)
            self._stream.truncate(whole)
        self._current, self._until_ms = number, now_ms + SPAN_MS
