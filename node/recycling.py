"""When a worker starts its compute engine anew. Pure.

After a fault of the device it must: what its memory holds is in doubt. Beside that, a process that computes for weeks may be
asked to do so every so many rounds, where nothing is in flight and nothing is lost by it: allocators of devices fragment, and a
thread that was begun anew holds nothing of the rounds before.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_FAULTS = 3
WITHIN_S = 600.0


@dataclass(frozen=True)
class Decision:
    """Whether the engine is started anew."""

    recycle: bool
    reason: str


class RecyclePlan:
    """When to start the engine anew. `now` is in seconds, of a clock that never goes back.

    Args:
        every_rounds: rounds that one engine trains in; 0: as many as there are.
    """

    def __init__(self, every_rounds: int = 0) -> None:
        self._every_rounds = every_rounds
        self._opened = 0
        self._faults: list[float] = []

    def after_fault(self, fault: str, now: float) -> Decision:
        """The device has failed: whether one more try is worth it."""
        self._faults = [*(at for at in self._faults if at > now - WITHIN_S), now]
        if len(self._faults) > MOST_FAULTS:
            return Decision(False, f"{fault} ({len(self._faults)} faults within {WITHIN_S:.0f} s)")
        return Decision(True, fault)

    def between_rounds(self) -> Decision:
        """A replica is about to open a round, with nothing in flight."""
        if self._every_rounds and self._opened >= self._every_rounds:
            return Decision(True, f"{self._opened} rounds on one engine")
        return Decision(False, f"{self._opened} rounds on this engine")

    def opened(self) -> None:
        """A round was opened on this engine."""
        self._opened += 1

    def recycled(self) -> None:
        """There is a new engine."""
        self._opened = 0
