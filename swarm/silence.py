"""Judges the peer of one call by its silence, and never by a time in which this process itself did not run.

A process that was stopped, suspended or short of processor time finds a timer run out and, unread beside it, what its peer
has sent meanwhile. So a timer that has run out does not end the call yet: what has come in is read first, for a moment, or for
a second when the timer went off late. The time lost so is nobody's silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HELD_UP_S = 0.25
READ_FIRST_S = 0.1
READ_LONGER_S = 1.0


class SilenceWatch:
    """The watch over one call; `start` it within the `asyncio.timeout` block that it is to end.

    Args:
        silence_s: the longest time without a sign of life.
        heard: is told the length [s] of each gap that a sign of life ends; the first one began with the call.
    """

    def __init__(self, silence_s: float, heard: Callable[[float], None] | None = None) -> None:
        self._silence_s = silence_s
        self._tell = heard
        self._loop = asyncio.get_running_loop()
        self._last = self._due = 0.0
        self._absent_s = 0.0
        self._reading = False
        self._scope: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.silent = False

    def start(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self._last = self._loop.time()
        self._look_at(self._last + self._silence_s)

    def heard(self) -> None:
        """The peer gave a sign of life."""
        now = self._loop.time()
        if self._tell is not None:
            self._tell(max(0.0, now - self._last - self._absent_s))
        self._last, self._absent_s = now, 0.0

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, due: float) -> None:
        self._due = due
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        late_s = now - self._due
        until = self._last + self._absent_s + self._silence_s
        if now < until:
            self._reading = False
            self._look_at(until)  # something has been heard since the timer was set
        elif late_s > HELD_UP_S:
            self._absent_s += late_s
            self._reading = True
            self._look_at(now + READ_LONGER_S)
        elif not self._reading:
            self._reading = True
            self._look_at(now + READ_FIRST_S)
        elif self._scope is not None:
            self.silent = True
            self._scope.reschedule(now)
