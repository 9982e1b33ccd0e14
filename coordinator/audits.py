"""What an audit does next. Pure: from the audit, what is known of its members, and the time to an action with its reason.

    drawn -> opened -> a witness is asked -> compared -> passed
                |              |                |
                |              | nobody, or no answer in time
                |              v                v they disagree
                +----------> the referee recomputes -> passed | failed | unresolved

A member that is there and does not open in time is at fault; one that is gone is not, but what rests on the work that it did not
show is not used; and nobody is at fault for a base or a file that the coordinator itself has no more. Where a witness does not
answer the referee recomputes the pass; that it was silent, though it was there, is counted (`audit_rates.Standing.silent`). Some
passes the referee recomputes before a witness is asked, who cannot tell: whoever then answers something else has not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from coordinator.audit_state import Audit, Kind, Part


class Do(StrEnum):
    """What is to be done."""

    WAIT = "wait"
    ASK = "ask a witness"
    COMPARE = "compare"
    ESCALATE = "give it to the referee"
    REFEREE = "recompute"
    REQUEST = "look at the signed request"
    LAPSE = "lapse"
    GONE = "lapse, as its member is gone"
    PASS = "pass"
    NOT_OPENED = "not opened"


@dataclass(frozen=True)
class Facts:
    """What is known around an audit.

    Args:
        there: its member is live under the generation that was audited. going_since: before it nobody's time runs, see
            `Core.going_since`. sending_until: what its member is sending now may take so long.
        current: its round still runs, so that witnesses have its base.
        able: who may be asked, in the order drawn. witness_there: as `there`, of the witness.
        base_kept: the weights of its base can still be had.
    """

    there: bool
    going_since: float
    current: bool
    able: Sequence[str]
    witness_there: bool
    base_kept: bool
    sending_until: float = 0.0


@dataclass(frozen=True)
class Limits:
    """How long is waited, in seconds: for openings, for a witness."""

    opening_s: float
    witness_s: float


@dataclass(frozen=True)
class Action:
    """What is to be done and why.

    Args:
        witness: to be asked. look_again_s: when the same facts, grown older, would say something else.
        silent: the audit goes on without its witness, which was there and had time to answer.
    """

    do: Do
    reason: str
    witness: str = ""
    look_again_s: float = float("inf")
    silent: bool = False


def decide(audit: Audit, facts: Facts, now: float, limits: Limits) -> Action:
    """The next action for one audit."""
    if audit.missing:
        if not facts.there:
            return Action(Do.GONE, "the member was gone before it had opened what was drawn")
        left_s = max(limits.opening_s - (now - max(audit.since, facts.going_since)), facts.sending_until - now)
        names = " and ".join(audit.missing)
        if left_s <= 0:
            return Action(Do.NOT_OPENED, f"no {names} within {limits.opening_s:g} s, though the member was there")
        return Action(Do.WAIT, f"waiting for its {names}", look_again_s=left_s)
    if audit.kind is Kind.REQUEST:
        return Action(Do.REQUEST, "the request is there")
    if not facts.base_kept:
        return Action(Do.LAPSE, "the base of its round is kept no more")
    if audit.kind is Kind.STEP:
        return Action(Do.REFEREE, "the step is opened")
    if audit.escalated:
        return Action(Do.REFEREE, audit.escalated)
    if audit.known and not audit.verified:
        return Action(Do.REFEREE, "its answer is to be known before a witness is asked")
    if Part.WITNESS in audit.files:
        return Action(Do.COMPARE, "the witness has answered")
    return _witness(audit, facts, now, limits)


def in_order(audits: Sequence[Audit]) -> list[Audit]:
    """Those that wait for the referee, the most urgent first.

    Where a witness disagrees somebody is wrong; of the others those come first whose work was done first, so that nobody goes on
    for long with what only a recomputation shows.
    """
    return sorted(audits, key=lambda one: (not (one.escalated and Part.WITNESS in one.files), one.round))


def _witness(audit: Audit, facts: Facts, now: float, limits: Limits) -> Action:
    """The next action for a pass that is opened and that no witness has answered for."""
    left_s = limits.witness_s - (now - max(audit.asked_at, facts.going_since))
    silent = False
    if not facts.current:
        fault = "the round went on before the witness had answered" if audit.witness else "its round is over"
    elif not audit.witness:
        if facts.able:
            return Action(Do.ASK, "the pass is opened", witness=facts.able[0])
        fault = "no replica of another operator that answers has its base"
    elif not facts.witness_there:
        fault = "the witness is gone"
    elif left_s <= 0:
        fault, silent = f"no answer of the witness within {limits.witness_s:g} s", True
    else:
        return Action(Do.WAIT, "waiting for the witness", look_again_s=left_s)
    if audit.verified:
        return Action(Do.PASS, f"the referee came to the same; {fault}", silent=silent)
    return Action(Do.ESCALATE, fault, silent=silent)
