"""Whether a child process that should answer at any time still does: a frozen one is alive, and of no use to anybody.

A pure decider: what became of each question comes in, a decision and its reason come out.
"""

from __future__ import annotations

from dataclasses import dataclass

HELD_UP_S = 0.25  # a time limit that is noticed later than this was not waited for: this process did not run itself
MISSES = 3


@dataclass(frozen=True)
class Judgement:
    """Args: stuck: it is to be ended. reason: one line for the log."""

    stuck: bool
    reason: str


class Pulse:
    """Counts the questions that went unanswered, one after the other.

    Args:
        within_s: how long an answer may take.
    """

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._missed = 0

    def answered(self) -> None:
        """It answered in time."""
        self._missed = 0

    def unanswered(self, waited_s: float) -> Judgement:
        """No answer within the time.

        Args:
            waited_s: as this process measured it. Much more than `within_s`: it did not run itself, so that it cannot tell.
        """
        if waited_s > self.within_s + HELD_UP_S:
            return Judgement(False, f"it did not answer, but we did not run: {waited_s:.1f} s went by, not {self.within_s:g}")
        self._missed += 1
        if self._missed < MISSES:
            return Judgement(False, f"it did not answer within {self.within_s:g} s, {self._missed} of {MISSES} times")
        return Judgement(True, f"it did not answer within {self.within_s:g} s, {MISSES} times in a row")
