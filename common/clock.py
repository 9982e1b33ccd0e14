"""A clock for durations that are kept over restarts: seconds since the epoch, but it neither jumps nor goes back."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """The system's clock at the start, and from then on as much later as has really gone by.

    What was measured with it stays right when somebody, or NTP, sets the system's clock. It is not for dating what others
    check against their own clocks.

    Args:
        not_before: the latest time that was recorded with this clock in an earlier process; it starts there when the
            system's clock was set back since.
        wall, monotonic: the two clocks, in seconds.
    """

    def __init__(
        self,
        not_before: float = 0.0,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._offset = max(wall(), not_before) - monotonic()

    def __call__(self) -> float:
        return self._offset + self._monotonic()
