"""How much of whose work is audited, and what follows from how audits ended. Pure.

Nobody is trusted at first: a new member's rounds are all audited until `new_rounds` of them passed. From then on a share of them
is. A member that is suspected, because an audit of it was left open or because its work disagreed with another's, is audited
always, until as many audits in a row have passed. The standing never weighs an update: it is aggregated like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from coordinator.audit_draw import Rates

CLEARED_BY = 4          # audits that must pass in a row before a suspicion is forgotten
NOT_OPENED_ALLOWED = 1  # steps of which a member has left out what was drawn; with the next one it is quarantined
GONE_ALLOWED = 3        # rounds in which a member was gone when it had to open: from then on its updates are left out
SILENCES_ALLOWED = 1    # in a row, as a witness; with the next one it is asked no more, until a suspicion of it is forgotten
CLASS_FAILURES = 0.3    # of a device class's members failing in a window: then it is the thresholds that are wrong
CLASS_LEAST = 3         # operators whose members fail before anything is said about a class


class Outcome(StrEnum):
    """How an audit ended."""

    PASSED = "passed"
    FAILED = "failed"            # by a recomputation of our own, or by what the member itself signed
    UNRESOLVED = "unresolved"    # neither side within the tolerance
    NOT_OPENED = "not opened"    # a live member did not show what was drawn
    GONE = "gone"                # its member was lost, or had begun its stage anew, before it had shown what was drawn
    LAPSED = "lapsed"            # nobody's doing: the referee could not recompute it, or its base is kept no more
    SILENT = "silent"            # of its witness alone: it was there, and did not answer in time


class Kind(StrEnum):
    """How members are seen."""

    NEW = "new"
    NORMAL = "normal"
    SUSPECTED = "suspected"


@dataclass(frozen=True)
class Standing:
    """What audits have shown of one member.

    Args:
        passed: audits that passed, ever. in_a_row: since the last one that did not.
        rounds: in which one passed. suspected: why; empty: it is not.
        not_opened: steps of which it left out what was drawn, since it was last free of suspicion; left_out: round and step of
            the last one.
        gone: rounds in which it was gone when it had to open; each run of CLEARED_BY audits that pass makes up for one.
        gone_round: the last of them. unresolved: why its last audit could not confirm its work; empty: it did.
        last_round: of the last audit that passed. silences: in a row, as a witness.
    """

    passed: int = 0
    in_a_row: int = 0
    rounds: int = 0
    suspected: str = ""
    not_opened: int = 0
    gone: int = 0
    gone_round: int = -1
    unresolved: str = ""
    last_round: int = 0
    left_out: tuple[int, int] = (-1, -1)
    silences: int = 0

    def after(self, outcome: Outcome, round: int, reason: str, step: int = 0) -> Standing:
        """The standing once an audit of `step` in `round` has ended."""
        if outcome is Outcome.PASSED:
            row = self.in_a_row + 1
            cleared = row >= CLEARED_BY
            return replace(
                self, passed=self.passed + 1, in_a_row=row, rounds=self.rounds + (round != self.last_round),
                suspected="" if cleared else self.suspected, not_opened=0 if cleared else self.not_opened,
                gone=max(self.gone - (row % CLEARED_BY == 0), 0), unresolved="", last_round=round,
                silences=0 if cleared and self.silent else self.silences,
            )  # fmt: skip
        if outcome is Outcome.LAPSED:
            return self
        if outcome is Outcome.GONE:
            return replace(self, in_a_row=0, gone=self.gone + (round != self.gone_round), gone_round=round)
        if outcome is Outcome.SILENT:
            again = replace(self, silences=self.silences + 1)
            return replace(again, in_a_row=0, suspected=reason) if again.silent else again
        unresolved = reason if outcome is Outcome.UNRESOLVED else self.unresolved
        found = replace(self, in_a_row=0, suspected=reason, unresolved=unresolved)
        # What was drawn of one step is asked for at once: a line that is too slow for it is one fault, not several.
        if outcome is Outcome.NOT_OPENED and (round, step) != self.left_out:
            return replace(found, not_opened=self.not_opened + 1, left_out=(round, step))
        return found

    def answered(self) -> Standing:
        """The standing once it has answered as a witness, whatever it said."""
        return replace(self, silences=0)

    def kind(self, new_rounds: int) -> Kind:
        """How the member is seen."""
        if self.suspected:
            return Kind.SUSPECTED
        return Kind.NEW if self.rounds < new_rounds else Kind.NORMAL

    @property
    def must_go(self) -> str:
        """Why the member is quarantined for what it left out; empty: it is not."""
        if self.not_opened > NOT_OPENED_ALLOWED:
            return f"what was drawn of {self.not_opened} steps did not come, while the member was there"
        return ""

    @property
    def silent(self) -> str:
        """Why it is asked as a witness no more; empty: it is."""
        if self.silences > SILENCES_ALLOWED:
            return f"as a witness it was silent {self.silences} times in a row, though it was there"
        return ""

    @property
    def unverified(self) -> str:
        """Why its updates are left out until audits pass; empty: they are not."""
        if self.gone >= GONE_ALLOWED:
            return f"in {self.gone} rounds it was gone when it had to show what was drawn"
        return f"its last audit could not confirm its work: {self.unresolved}" if self.unresolved else ""


def rates_of(standing: Standing, *, rate: float, new_rounds: int, microbatches: int, steps: int) -> Rates:
    """The rates for a member.

    Args:
        rate: of normal members; 0: nobody is audited. steps: inner steps expected of it in a round.
    """
    if rate <= 0:
        return Rates(0.0, 0, steps)
    return Rates(rate if standing.kind(new_rounds) is Kind.NORMAL else 1.0, microbatches, steps)


def class_alarm(
    results: Iterable[tuple[str, str, bool]], sizes: Mapping[str, int], operators: Mapping[str, str]
) -> dict[str, str]:
    """Device classes of which so many members fail that the thresholds are to be doubted, each with the reason.

    One member that cheats fails alone; a driver or a library that computes otherwise fails with all who use it, whoever they are.
    Its class is what a member says, so several of one operator's, who may say what they like, raise no alarm.

    Args:
        results: (device class, member, whether it passed) of the window's audits that were decided by tolerance.
        sizes: members of each class that the run has. operators: by member, as `operator_of` names them.
    """
    failed: dict[str, set[str]] = {}
    seen: dict[str, set[str]] = {}
    for device_class, member, passed in results:
        seen.setdefault(device_class, set()).add(member)
        if not passed:
            failed.setdefault(device_class, set()).add(member)
    members = {name: max(len(there), sizes.get(name, 0)) for name, there in seen.items()}
    return {
        name: f"calibration: {len(there)} of {members[name]} members of the class {name or 'unknown'} failed"
        for name, there in failed.items()
        if len({operators.get(one, one) for one in there}) >= CLASS_LEAST and len(there) > CLASS_FAILURES * members[name]
    }
