"""How a run moves from phase to phase. Pure: from facts and the time to a decision and its reason.

GATHERING -> PREPARING -> OPEN -> CLOSING -> AGGREGATING -> PREPARING of the next round, and so on; after the last version one
more PREPARING in which that version is evaluated, then FINISHED. A round that brought no update goes back to GATHERING.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    GATHERING = "GATHERING"
    PREPARING = "PREPARING"
    OPEN = "OPEN"
    CLOSING = "CLOSING"
    AGGREGATING = "AGGREGATING"
    FINISHED = "FINISHED"


# A run gets at most so many rounds ahead of its audits, so that a slow referee does not let a cheat go on for long.
MOST_BEHIND = 3


@dataclass(frozen=True)
class StageFacts:
    """One stage.

    Args:
        live: assigned replicas that are not lost.
        ready: of these, those that have loaded the round's base.
        awaited: of these, those that trained in this round and have not submitted their update.
        updates: acknowledged updates of this round.
    """

    live: int
    ready: int
    awaited: int
    updates: int


@dataclass(frozen=True)
class Facts:
    """What the decision is made from. Times are seconds since the epoch, `*_s` are durations.

    Args:
        since: when the phase began, or this coordinator process started, whichever is later.
        covered_since: since when every stage has a live replica; None: one has none.
        versions_left: versions still to be made; 0: only the last evaluation is left.
        base_evaluated: the held-out loss of the base is known, or none is wanted.
        audits_open: audits for which everything has come that members have to show.
        audits_behind: how many rounds ago the work was that the oldest of them is about.
        planned_rows, target_rows: rows leased and not given back, and rows wanted, of this round; what was lost is wanted anew.
        leases_outstanding: leases of this round that are not finished.
        frames_done: frames counted in this round so far.
        aggregated: this round's version is published.
    """

    phase: Phase
    since: float
    stages: tuple[StageFacts, ...]
    covered_since: float | None
    replicas_wanted: int
    gather_s: float
    versions_left: int
    base_evaluated: bool
    planned_rows: int
    target_rows: int
    leases_outstanding: int
    frames_done: int
    prepare_limit_s: float
    open_limit_s: float
    close_limit_s: float
    evaluate_limit_s: float
    aggregated: bool = False
    audits_open: int = 0
    audits_behind: int = 0


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Args:
        enter: the phase to enter; None: stay.
        new_round: the phase belongs to a new round.
        reason: one line for people.
        wake_at: when to decide again if nothing happens before; None: only when something happens.
    """

    enter: Phase | None
    reason: str
    wake_at: float | None = None
    new_round: bool = False


def _names(stages: list[int]) -> str:
    return ("stage " if len(stages) == 1 else "stages ") + ", ".join(map(str, stages))


def decide(facts: Facts, now: float) -> Decision:
    """The next phase, or why the run stays in this one."""
    match facts.phase:
        case Phase.GATHERING:
            return _gathering(facts, now)
        case Phase.PREPARING:
            return _evaluating(facts, now) if facts.versions_left == 0 else _preparing(facts, now)
        case Phase.OPEN:
            return _open(facts, now)
        case Phase.CLOSING:
            return _closing(facts, now)
        case Phase.AGGREGATING:
            if facts.aggregated:
                return Decision(Phase.PREPARING, "the new version is published", new_round=True)
            return Decision(None, "the updates are being aggregated")
        case Phase.FINISHED:
            return Decision(None, "every version that the run file asks for is made")


def _gathering(facts: Facts, now: float) -> Decision:
    missing = [index for index, stage in enumerate(facts.stages) if stage.live == 0]
    if missing or facts.covered_since is None:
        return Decision(None, f"waiting for members: no replica for {_names(missing)}" if missing else "waiting for members")
    thin = [index for index, stage in enumerate(facts.stages) if stage.live < facts.replicas_wanted]
    if not thin:
        return Decision(Phase.PREPARING, f"every stage has {facts.replicas_wanted} replicas", new_round=True)
    until = facts.covered_since + facts.gather_s
    if now >= until:
        return Decision(Phase.PREPARING, f"every stage is covered for {facts.gather_s:.0f} s; no longer waiting for a "
                                         f"replica more for {_names(thin)}", new_round=True)
    return Decision(None, f"waiting for {facts.replicas_wanted} replicas for {_names(thin)}", wake_at=until)


def _preparing(facts: Facts, now: float) -> Decision:
    if any(stage.live == 0 for stage in facts.stages):
        missing = [index for index, stage in enumerate(facts.stages) if stage.live == 0]
        return Decision(Phase.GATHERING, f"{_names(missing)} lost the last replica")
    held_until = facts.since + facts.evaluate_limit_s
    if facts.audits_behind > MOST_BEHIND and now < held_until:
        return Decision(None, f"audits of {facts.audits_behind} rounds ago are still being recomputed", wake_at=held_until)
    if all(stage.ready == stage.live for stage in facts.stages):
        return Decision(Phase.OPEN, "every replica has loaded the base")
    late = [index for index, stage in enumerate(facts.stages) if stage.ready < stage.live]
    until = facts.since + facts.prepare_limit_s
    if now < until:
        return Decision(None, f"replicas of {_names(late)} are loading the base", wake_at=until)
    if all(stage.ready for stage in facts.stages):
        return Decision(Phase.OPEN, f"a replica of each stage is ready after {facts.prepare_limit_s:.1f} s; late: {_names(late)}")
    unready = [index for index, stage in enumerate(facts.stages) if not stage.ready]
    return Decision(None, f"no replica of {_names(unready)} has loaded the base after {facts.prepare_limit_s:.1f} s")


def _evaluating(facts: Facts, now: float) -> Decision:
    if facts.base_evaluated and not facts.audits_open:
        return Decision(Phase.FINISHED, "the last version is published and evaluated")
    until = facts.since + facts.evaluate_limit_s
    if facts.base_evaluated:
        if now >= until:
            return Decision(Phase.FINISHED, f"{facts.audits_open} audits have not ended within {facts.evaluate_limit_s:.0f} s")
        return Decision(None, "the last audits are being recomputed", wake_at=until)
    if now >= until:
        return Decision(Phase.FINISHED, f"the last version is published, but not evaluated within {facts.evaluate_limit_s:.0f} s")
    return Decision(None, "the last version is being evaluated", wake_at=until)


def _open(facts: Facts, now: float) -> Decision:
    if facts.planned_rows >= facts.target_rows and facts.leases_outstanding == 0:
        return Decision(Phase.CLOSING, "the frame target is reached")
    # A time in which a stage had nobody is nobody's delay.
    until = max(facts.since, facts.covered_since or 0.0) + facts.open_limit_s
    missing = [index for index, stage in enumerate(facts.stages) if stage.live == 0]
    gap = f"; {_names(missing)} has no replica" if missing else ""
    if now < until:
        return Decision(None, f"leases are being trained{gap}", wake_at=until)
    if facts.frames_done == 0:
        return Decision(None, f"nothing is trained after {facts.open_limit_s:.1f} s{gap}: the round stays open")
    return Decision(Phase.CLOSING, f"the deadline of {facts.open_limit_s:.1f} s has passed{gap}")


def _closing(facts: Facts, now: float) -> Decision:
    awaited = [index for index, stage in enumerate(facts.stages) if stage.awaited]
    came = sum(stage.updates for stage in facts.stages)
    until = facts.since + facts.close_limit_s
    if awaited and now < until:
        return Decision(None, f"waiting for updates of {_names(awaited)}", wake_at=until)
    if came == 0:
        return Decision(Phase.GATHERING, "the round brought no update: its data goes back, the base stays")
    if awaited:
        late = f"no longer waiting for {_names(awaited)} after {facts.close_limit_s:.1f} s"
        return Decision(Phase.AGGREGATING, f"{came} updates; {late}")
    return Decision(Phase.AGGREGATING, f"all {came} updates are in")
