"""What survives a restart of audits: those under way, what ended ones have shown of each member, and who is quarantined.

A part of `run.RunState`, folded from the journal's events; see there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from coordinator.audit_draw import FIRST_STEP
from coordinator.audit_rates import Outcome, Standing

WINDOW = 64     # decided audits that are remembered for the alarm of a device class
ENDED = 200     # ended audits that are told


class Kind(StrEnum):
    """What an audit is about."""

    PASS = "pass"          # a microbatch of the first inner step: recomputed by a witness, else by the referee
    STEP = "step"          # a later inner step: replayed by the referee
    REQUEST = "request"    # what the stage before sent for a microbatch, where sender and receiver committed to different things


class Part(StrEnum):
    """Files of an audit, by who made them and what they show."""

    INPUT = "input"
    OUTPUT = "output"
    STEP = "step"
    REQUEST = "request"
    WITNESS = "witness"


PARTS = {
    Kind.PASS: (Part.INPUT, Part.OUTPUT), Kind.STEP: (Part.STEP,), Kind.REQUEST: (Part.REQUEST,),
}  # fmt: skip


@dataclass(frozen=True)
class Opening:
    """A file that came for an audit and is on disk, `path` relative to the state directory; `signed`: its signed head, in hex."""

    sha256: str
    size_bytes: int
    path: str
    member: str
    signed: str


@dataclass
class Audit:
    """One audit under way.

    Args:
        member: who is audited, and must open. version: of the base, whose CID is `base_cid`.
        microbatch: -1 for a step. link: hex, of the commit that drew it. rates: with which it was drawn.
        most_bytes: of each file. closing: drawn when the update was in. since: when it was drawn. files: what has come.
        witness: whom the pass was given to; input_cid: of the file with its input. escalated: why it goes to the referee.
        known: the referee recomputes it before a witness is asked. verified: it did, and came to the same.
        accused: of a REQUEST: the member that sent something else than it committed to by `accused_link`.
    """

    id: str
    kind: Kind
    member: str
    operator: str
    device_class: str
    stage: int
    round: int
    generation: int
    part: int
    step: int
    microbatch: int
    version: int
    base_cid: str
    link: str
    since: float
    most_bytes: int
    rates: dict[str, Any] = field(default_factory=dict)
    files: dict[Part, Opening] = field(default_factory=dict)
    witness: str = ""
    asked_at: float = 0.0
    input_cid: str = ""
    escalated: str = ""
    closing: bool = False
    known: bool = False
    verified: bool = False
    accused: str = ""
    accused_link: str = ""

    @property
    def missing(self) -> list[Part]:
        """What its member has yet to open."""
        return [part for part in PARTS[self.kind] if part not in self.files]


@dataclass
class AuditState:
    """All of it. `unseen`: member and link of what was drawn in this round and never shown, as its member was gone."""

    audits: dict[str, Audit] = field(default_factory=dict)
    drawn_ids: set[str] = field(default_factory=set)
    drawn_steps: set[tuple[str, int, int, int, str]] = field(default_factory=set)
    unseen: set[tuple[str, str]] = field(default_factory=set)
    ended: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    quarantined: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    excluded: dict[tuple[int, str], str] = field(default_factory=dict)
    window: list[tuple[str, str, bool]] = field(default_factory=list)

    def standing(self, member: str) -> Standing:
        """What audits have shown of a member."""
        return self.standings.get(member, Standing())

    def of(self, member: str) -> list[Audit]:
        """Audits under way of a member."""
        return [one for one in self.audits.values() if one.member == member]

    @property
    def bases(self) -> set[str]:
        """Versions that audits under way start from, and those that evidence does: whoever checks it needs them."""
        return {one.base_cid for one in self.audits.values()} | {one["base_cid"] for one in self.history}

    @property
    def oldest_round(self) -> int | None:
        """Of the audits under way; None: there are none."""
        return min((one.round for one in self.audits.values()), default=None)

    # ---- events ------------------------------------------------------------------------------------------------------

    def drawn(self, time: float, data: dict[str, Any]) -> None:
        """An audit begins."""
        fields = {key: value for key, value in data.items() if key in Audit.__dataclass_fields__}
        fields["kind"] = Kind(data["kind"])
        one = Audit(since=time, **fields)
        self.audits[one.id] = one
        self.drawn_ids.add(one.id)
        if one.kind is Kind.STEP and one.step > FIRST_STEP:
            self.drawn_steps.add((one.member, one.round, one.generation, one.part, one.link))
        self._count(one, "drawn")

    def opened(self, time: float, data: dict[str, Any]) -> None:
        """A file has come."""
        opening = Opening(data["sha256"], data["size_bytes"], data["path"], data["member"], data["signed"])
        self.audits[data["id"]].files[Part(data["part"])] = opening
        if Part(data["part"]) is Part.WITNESS:
            self.standings[data["member"]] = self.standing(data["member"]).answered()

    def asked(self, time: float, data: dict[str, Any]) -> None:
        """A witness gets the pass."""
        one = self.audits[data["id"]]
        one.witness, one.asked_at, one.input_cid = data["witness"], time, data["input_cid"]

    def escalated(self, time: float, data: dict[str, Any]) -> None:
        """The referee is to recompute it; `silent`: where it is for the witness's silence."""
        one = self.audits[data["id"]]
        one.escalated = data["reason"]
        if data.get("silent"):
            self.standings[one.witness] = self.standing(one.witness).after(Outcome.SILENT, one.round, data["reason"])

    def found_right(self, time: float, data: dict[str, Any]) -> None:
        """The referee came to the same; a witness is asked nevertheless."""
        self.audits[data["id"]].verified = True

    def end(self, time: float, data: dict[str, Any]) -> None:
        """An audit ended: for its member with `outcome`, for others as `standings` says, (member, outcome, reason) each."""
        one = self.audits.pop(data["id"])
        outcome = Outcome(data["outcome"])
        self._count(one, outcome.value)
        if outcome is Outcome.GONE:
            self.unseen.add((one.member, one.link))
        for member, word, reason in data["standings"]:
            self.standings[member] = self.standing(member).after(Outcome(word), one.round, reason, one.step)
        for device_class, member, passed in data.get("window", ()):
            self.window.append((device_class, member, passed))
        del self.window[:-WINDOW]
        told = ("id", "outcome", "reason", "by", "statistics")
        self.ended.append({
            "kind": one.kind.value, "member": one.member, "stage": one.stage, "round": one.round, "step": one.step,
            "microbatch": one.microbatch, "time": time, **{key: data[key] for key in told if key in data},
        })  # fmt: skip
        del self.ended[:-ENDED]

    def new_round(self) -> None:
        """Draws of rounds before are over; audits of them go on."""
        self.excluded, self.unseen, self.drawn_steps, self.drawn_ids = {}, set(), set(), set(self.audits)

    def suspect(self, time: float, data: dict[str, Any]) -> None:
        """A member's work is audited for certain, for a reason that proves nothing."""
        self.standings[data["member"]] = replace(self.standing(data["member"]), suspected=data["reason"], in_a_row=0)

    def quarantine(self, data: dict[str, Any], ruled_round: int) -> None:
        """A member is shut out until it is pardoned; what is under way of it ends with it.

        Args:
            ruled_round: in which it is; `round` of the event is the one of the work that it is for.
        """
        record = {**{key: value for key, value in data.items() if key != "report"}, "ruled_round": ruled_round}
        self.quarantined[data["member"]] = record
        self.history.append(record)

    def pardoned(self, data: dict[str, Any]) -> None:
        """A member may come back; it begins as a new one, under suspicion."""
        if self.quarantined.pop(data["member"], None) is not None:
            self.standings[data["member"]] = Standing(suspected="it was quarantined before")

    def exclude(self, stage: int, member: str, reason: str) -> None:
        """A member's update of this round is not aggregated."""
        self.excluded[stage, member] = reason

    def _count(self, one: Audit, what: str) -> None:
        self.counts.setdefault((one.round, one.stage), Counter())[what] += 1

    # ---- for people --------------------------------------------------------------------------------------------------

    def counts_json(self) -> list[dict[str, Any]]:
        """How many audits each round and stage had, and how they ended."""
        return [
            {"round": round, "stage": stage, **dict(sorted(count.items()))}
            for (round, stage), count in sorted(self.counts.items())
        ]

    def quarantined_json(self) -> list[dict[str, Any]]:
        """Everybody who was ever quarantined, in order."""
        kept = ("operator", "stage", "kind", "round", "ruled_round", "evidence_cid", "reason")
        return [{"identity": one["member"], **{key: one[key] for key in kept}} for one in self.history]


AUDIT_HANDLERS: dict[str, Callable[[AuditState, float, dict[str, Any]], None]] = {
    "audit_drawn": AuditState.drawn,
    "audit_opened": AuditState.opened,
    "audit_asked": AuditState.asked,
    "audit_escalated": AuditState.escalated,
    "audit_verified": AuditState.found_right,
    "audit_suspected": AuditState.suspect,
    "audit_ended": AuditState.end,
}
