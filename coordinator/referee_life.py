"""When the referee's child is asked, cut off or let go. Pure: from what is known of it and the time to a turn with its reason.

The child holds torch in memory, so it is started for the first work and ends when none has come for a while. One that does not
come to the end of a job is killed, for it may never; the next job is another child's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Turn(StrEnum):
    """What is to be done."""

    ASK = "give it a job"  # where there is no child one is started
    WAIT = "wait"
    CUT = "kill it"
    END = "let it end"


@dataclass(frozen=True)
class Facts:
    """What is known. Times are seconds of any steady clock.

    Args:
        up: there is a child. wanted: there is work for it. start_after: before it no other child is started.
        busy_since: when it was given the job that it is doing; None: it has none.
        free_since: when it came to the end of the last one.
    """

    up: bool
    wanted: bool
    busy_since: float | None
    free_since: float
    start_after: float


@dataclass(frozen=True)
class Limits:
    """Seconds that a job may take, and that a child waits for the next one."""

    job_s: float
    idle_s: float


@dataclass(frozen=True)
class Action:
    """What is to be done and why; `look_again_s`: when the same facts, grown older, would say something else."""

    turn: Turn
    reason: str
    look_again_s: float = float("inf")


def decide(facts: Facts, now: float, limits: Limits) -> Action:
    """What is done about the child now."""
    if facts.busy_since is not None:
        left_s = limits.job_s - (now - facts.busy_since)
        if left_s <= 0:
            return Action(Turn.CUT, f"it has not come to the end of a job within {limits.job_s:g} s")
        return Action(Turn.WAIT, "it is at work", left_s)
    if facts.wanted:
        pause_s = 0.0 if facts.up else facts.start_after - now
        if pause_s > 0:
            return Action(Turn.WAIT, "those before it ended too soon", pause_s)
        return Action(Turn.ASK, "there is work")
    if not facts.up:
        return Action(Turn.WAIT, "there is no work")
    left_s = limits.idle_s - (now - facts.free_since)
    if left_s <= 0:
        return Action(Turn.END, f"no work has come for {limits.idle_s:g} s")
    return Action(Turn.WAIT, "work may come", left_s)
