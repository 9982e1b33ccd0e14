"""How much sound is done, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AudioProgress:
    """
    Args:
        phase: "recordings" or "audio".
        done, total: recordings or clips.
        seconds: of sound that is done; before: of these, what an earlier start had done already.
    """

    phase: str
    done: int
    total: int
    seconds: float
    before: float

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    def speed(self, elapsed_s: float) -> float:
        """Times real time, in `elapsed_s` of work."""
        return (self.seconds - self.before) / elapsed_s if elapsed_s > 0 else 0.0
