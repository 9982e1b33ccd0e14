"""How long a worker may take to leave that is told to stop. Pure.

Whoever stops a worker, a service manager or a container engine, kills it some seconds later. So all that it still does has one
end in common, and what is done first leaves some of the time for what follows: also where the coordinator does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """What is done on the way out, in this order: how long it may take by itself, and the seconds after the word within which."""

    HAND_OVER = (8.0, 8.0)
    GOOD_BYE = (3.0, 9.0)
    OPENINGS = (3.0, 10.0)


@dataclass
class Farewell:
    """The time of one worker's leave.

    Args:
        began: when it was told to stop, in seconds of a clock that goes on evenly; None: it was not, it leaves by itself.
    """

    began: float | None = None

    def left_s(self, part: Part, now: float) -> float:
        """Seconds that a part may take from now on.

        Args:
            now: of the same clock.
        """
        most_s, within_s = part.value
        return most_s if self.began is None else min(most_s, max(0.0, self.began + within_s - now))
