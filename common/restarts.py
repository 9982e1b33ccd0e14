"""When something that ended is started again, and when it is given up."""

from __future__ import annotations

from collections import deque


class Restarts:
    """Counts the ends of one process, or of one attempt to start it.

    Args:
        limit: how many restarts there are within `window_s`; at the next end it is given up.
        window_s: an end longer ago than this is forgotten.
        first_pause_s: wait before the first restart; it doubles with each further one in the window.
    """

    def __init__(self, limit: int, window_s: float, first_pause_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._first_pause_s = first_pause_s
        self._ends: deque[float] = deque()

    @property
    def count(self) -> int:
        """Ends in the window, as of the last one."""
        return len(self._ends)

    def after_end(self, now: float) -> float | None:
        """It ended at `now`, in seconds of any steady clock: how long to wait before the restart; None: give it up."""
        while self._ends and now - self._ends[0] > self._window_s:
            self._ends.popleft()
        self._ends.append(now)
        if len(self._ends) > self._limit:
            return None
        return self._first_pause_s * 2.0 ** (len(self._ends) - 1)

    def words(self, pause_s: float | None) -> str:
        """The decision for the log."""
        if pause_s is None:
            return f"given up after {self.count} ends in {self._window_s:.0f} s"
        return f"restart {self.count} of {self._limit} in {pause_s:.1f} s"
