"""When a member is lost. Pure: from signs of life, broken connections and other members' suspicions to a verdict.

A member's heartbeat is its watch: it asks again as soon as it is answered, and is answered within `heartbeat_s`. What another
says never suffices: a member is lost only when its own heartbeat is overdue, so a liar cannot evict one that is there. The one
exception is a member that all of its callers, at least two, fail to reach for long, while somebody waits to replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Six heartbeats fit into the silence that nobody needs to confirm, so a few may be late on a busy machine.
HEARTBEATS = 6
# What follows is the least time without a sign of life, in heartbeats and in seconds, before a member is given up ...
# ... on one caller's word: a heartbeat has certainly been missed.
ONE_SUSPICION = (2.0, 1.0)
# ... on the word of two: they saw it at different times, and a late heartbeat would have to coincide with both.
TWO_SUSPICIONS = (1.25, 0.5)
# A connection that broke under a held watch mostly means that the process is gone. A live one, cut off by a router that started
# anew, is back within a second: its first retry comes after a quarter of that. This long it has, or this share of the silence.
BROKEN_S = 1.0
BROKEN_SHARE = 0.25
# A caller whose call failed as well has nothing to do with the coordinator's connection: two paths broke at once.
BROKEN_SUSPECTED_S = 0.25
# A member that beats but that no caller reaches, as its own network fails towards them, keeps its place for this many silences.
SHUNNED_FACTOR = 2.0
# After a restart of the coordinator members come back at the pace of their own retries, which grow.
RETURN_FACTOR = 3.0


def heartbeat_s(silence_s: float) -> float:
    """How long a watch is held at most, in seconds, where a member may be silent for `silence_s`."""
    return silence_s / HEARTBEATS


@dataclass(frozen=True)
class Signs:
    """What is known of one live member. Ages in seconds.

    Args:
        quiet_s: since its last sign of life, or since this coordinator started.
        returning: nothing was heard of it since this coordinator started.
        broken_s: since its held watch broke, with no sign of life after that; None: it did not.
        suspicions: members of the stage before, thus callers, that name it in their latest report.
        shunned_s: for how long all of its callers, at least two, have named it, while a standby is ready; None: they do not.
    """

    quiet_s: float
    returning: bool = False
    broken_s: float | None = None
    suspicions: int = 0
    shunned_s: float | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a member is lost.

    Args:
        look_again_s: when the same signs, grown older, would be judged otherwise; 0 when it is lost.
    """

    lost: bool
    reason: str
    look_again_s: float = 0.0


def judge(signs: Signs, silence_s: float) -> Verdict:
    """Whether a member is lost, and why.

    Args:
        silence_s: how long a member may be silent that nothing else speaks against.
    """
    bounds = [(RETURN_FACTOR * silence_s if signs.returning else silence_s, signs.quiet_s, "silent")]
    if signs.returning and signs.suspicions:
        # Its callers are back and it is not.
        bounds.append((silence_s, signs.quiet_s, "suspected by a caller and silent since this coordinator started,"))
    if not signs.returning:
        beat_s = heartbeat_s(silence_s)
        if signs.suspicions >= 1:
            bounds.append((_bound(ONE_SUSPICION, beat_s, silence_s), signs.quiet_s, "suspected by a caller and silent"))
        if signs.suspicions >= 2:
            what = f"suspected by {signs.suspicions} callers and silent"
            bounds.append((_bound(TWO_SUSPICIONS, beat_s, silence_s), signs.quiet_s, what))
        if signs.shunned_s is not None:
            bounds.append((SHUNNED_FACTOR * silence_s, signs.shunned_s, "no caller reaches it, and a standby is ready; so"))
        if signs.broken_s is not None:
            grace_s = min(BROKEN_S, BROKEN_SHARE * silence_s)
            bounds.append((grace_s, signs.broken_s, "its connection broke; gone"))
            if signs.suspicions:
                suspected_s = min(BROKEN_SUSPECTED_S, grace_s)
                bounds.append((suspected_s, signs.broken_s, "its connection broke and a caller suspects it; gone"))
    left_s, bound_s, age_s, what = min((bound - age, bound, age, what) for bound, age, what in bounds)
    if left_s <= 0:
        return Verdict(True, f"{what} for {age_s:.1f} s, the bound is {bound_s:.2g} s")
    return Verdict(False, f"heard of {signs.quiet_s:.1f} s ago", left_s)


def _bound(least: tuple[float, float], beat_s: float, silence_s: float) -> float:
    heartbeats, seconds = least
    return min(max(heartbeats * beat_s, seconds), silence_s)
