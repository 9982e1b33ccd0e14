"""The state of a run: a fold over the journal's events, and nothing else. No clock, no disk, no randomness.

Whatever a restarted coordinator must know is here; what members will tell again (reports, liveness) is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordinator.admission import Admission
from coordinator.assignment import Role
from coordinator.audit_state import AUDIT_HANDLERS, AuditState
from coordinator.history import History
from coordinator.journal import Event
from coordinator.leases import Cursor, Fate, Range
from coordinator.records import Lease, Member, Update
from coordinator.rounds import Phase

__all__ = ["Lease", "Member", "RunState", "Update"]

HISTORY = 64        # arrivals remembered for the adaptive deadlines
NONCES = 4096       # accepted messages remembered over a restart; more within three minutes are refused by their time


@dataclass
class RunState:
    """Everything that survives a restart. Changed by `apply` only."""

    seq: int = 0
    revision: int = 0
    run_id: str = ""
    run_toml: str = ""
    model_config: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    stages: int = 0
    stage_bytes: tuple[int, ...] = ()
    starts: int = 0
    started_at: float = 0.0
    port: int = 0
    bootstrap: list[str] = field(default_factory=list)

    members: dict[str, Member] = field(default_factory=dict)
    admission: Admission = field(default_factory=Admission)
    nonces: list[tuple[str, str, int]] = field(default_factory=list)

    phase: Phase = Phase.GATHERING
    phase_since: float = 0.0
    phase_reason: str = ""
    round: int = 0
    opened_at: float = 0.0
    covered_since: float | None = None
    base_cid: str = ""
    version: int = -1
    versions: list[dict[str, Any]] = field(default_factory=list)

    cursor: Cursor = field(default_factory=Cursor)
    returned: list[Range] = field(default_factory=list)
    retried: dict[Range, int] = field(default_factory=dict)
    next_lease_id: int = 1
    next_microbatch_id: int = 0
    leases: dict[int, Lease] = field(default_factory=dict)
    target_rows: int = 0
    target_frames: int = 0
    total_frames: int = 0
    frames_counted: int = 0

    updates: dict[tuple[int, str], Update] = field(default_factory=dict)
    past_reports: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    aggregated: bool = False
    bytes_sent: dict[str, dict[str, int]] = field(default_factory=dict)
    stage_results: dict[int, dict[str, Any]] = field(default_factory=dict)

    audit: AuditState = field(default_factory=AuditState)

    rounds: History = field(default_factory=History)
    heldout: dict[str, dict[str, Any]] = field(default_factory=dict)
    listened: list[dict[str, Any]] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    close_s: list[float] = field(default_factory=list)
    open_s: list[float] = field(default_factory=list)
    lease_s: list[float] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        """Take one event into the state; events come in the journal's order, each once."""
        if event.seq <= self.seq:
            raise ValueError(f"event {event.seq} after {self.seq}")
        if event.kind in AUDIT_HANDLERS:
            AUDIT_HANDLERS[event.kind](self.audit, event.time, event.data)
        else:
            _HANDLERS[event.kind](self, event.time, event.data)
        self.seq = event.seq
        if event.kind in _VISIBLE:
            self.revision += 1
        self._watch_coverage(event.time)

    # ---- views -------------------------------------------------------------------------------------------------------

    def replicas(self, stage: int) -> list[Member]:
        """Live replicas of a stage, by member id."""
        return self._serving(stage, Role.REPLICA)

    def standbys(self, stage: int) -> list[Member]:
        """Live members that keep a stage's base ready and serve nothing, by member id."""
        return self._serving(stage, Role.STANDBY)

    def _serving(self, stage: int, role: Role) -> list[Member]:
        there = (one for one in self.members.values() if one.live and one.stage == stage and one.role is role)
        return sorted(there, key=lambda one: one.member)

    @property
    def planned_rows(self) -> int:
        """Rows of this round that are leased and not given back."""
        return sum(lease.range.rows for lease in self.leases.values() if not lease.returned)

    @property
    def outstanding(self) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.outstanding]

    def fate(self, lease: Lease) -> Fate:
        """A lease of this round, as the decision about its rows sees it."""
        ids = range(lease.first_microbatch_id, lease.first_microbatch_id + lease.issued)
        return Fate(lease.lease_id, lease.range.rows, ids, lease.microbatches, lease.done_at is not None, bool(lease.returned),
                    self.retried.get(lease.range, 0))  # fmt: skip

    def is_ready(self, member: Member) -> bool:
        """Whether the member has loaded the base of this round."""
        return member.ready_base != "" and member.ready_base == self.base_cid

    # ---- events ------------------------------------------------------------------------------------------------------

    def _created(self, time: float, data: dict[str, Any]) -> None:
        self.run_id, self.run_toml, self.stages = data["run_id"], data["run_toml"], data["stages"]
        self.model_config, self.dataset = data["model_config"], data["dataset"]
        self.stage_bytes = tuple(data.get("stage_bytes", ()))
        self.phase_since = time

    def _started(self, time: float, data: dict[str, Any]) -> None:
        self.starts += 1
        self.started_at = time

    def _listening(self, time: float, data: dict[str, Any]) -> None:
        self.port = data["port"]

    def _bootstrap(self, time: float, data: dict[str, Any]) -> None:
        self.bootstrap = data["multiaddrs"]

    def _joined(self, time: float, data: dict[str, Any]) -> None:
        known = self.members.get(data["member"])
        member = Member(data["member"], data["peer_id"], data["operator"], address=data.get("address", ""), info=data["info"])
        self.admission.joined(data)
        self._keep_report(data)
        if known is not None:
            # A new process of a known member: what the old one was doing is gone, its number goes on rising.
            self._end(known, "joined anew")
            member.generation, member.last_stage = known.generation, known.last_stage
        self.members[member.member] = member
        self._remember_nonce(data)

    def _revived(self, time: float, data: dict[str, Any]) -> None:
        member = self.members[data["member"]]
        member.live, member.reason = True, ""

    def _lost(self, time: float, data: dict[str, Any]) -> None:
        member = self.members[data["member"]]
        self._end(member, data["reason"])
        member.live, member.reason, member.barred = False, data["reason"], data.get("barred", False)
        self._keep_report(data)
        self._remember_nonce(data)

    def _banned(self, time: float, data: dict[str, Any]) -> None:
        self.admission.bans[data["member"]] = data["reason"]
        self._remember_nonce(data)
        name, reason = data["member"], f"banned: {data['reason']}"
        if name in self.members:
            self._lost(time, {**data, "reason": reason, "barred": True, "nonce": None})
        self._leave_out_all(name, reason)

    def _pardoned(self, time: float, data: dict[str, Any]) -> None:
        self.admission.bans.pop(data["member"], None)
        self.audit.pardoned(data)
        self._remember_nonce(data)

    def _invited(self, time: float, data: dict[str, Any]) -> None:
        self.admission.invite(data)
        self._remember_nonce(data)

    def _invitation_revoked(self, time: float, data: dict[str, Any]) -> None:
        self.admission.revoke(data)
        self._remember_nonce(data)

    def _quarantined(self, time: float, data: dict[str, Any]) -> None:
        name, reason = data["member"], f"quarantined: {data['reason']}"
        if member := self.members.get(name):
            self._end(member, reason)
            member.live, member.reason, member.barred = False, reason, True
        self.audit.quarantine(data, self.round)
        self._leave_out_all(name, reason)

    def _left_out(self, time: float, data: dict[str, Any]) -> None:
        self._leave_out(data["stage"], data["member"], data["reason"])

    def _leave_out(self, stage: int, member: str, reason: str) -> None:
        """An update of this round is not aggregated, if its stage is not done yet."""
        if stage not in self.stage_results and self.updates.pop((stage, member), None) is not None:
            self.audit.exclude(stage, member, reason)

    def _leave_out_all(self, member: str, reason: str) -> None:
        """`_leave_out` for whatever a member has handed in."""
        for stage, author in list(self.updates):
            if author == member:
                self._leave_out(stage, author, reason)

    def _assigned(self, time: float, data: dict[str, Any]) -> None:
        member = self.members[data["member"]]
        self._end(member, data["reason"])
        member.stage = member.last_stage = data["stage"]
        member.generation, member.role = data["generation"], Role(data.get("role", Role.REPLICA))
        self._keep_report(data)

    def _mismatch(self, time: float, data: dict[str, Any]) -> None:
        self.members[data["member"]].mismatches += 1

    def _ready(self, time: float, data: dict[str, Any]) -> None:
        member = self.members[data["member"]]
        member.ready_base = data["base_cid"]
        member.late_round = self.round if self.phase in (Phase.CLOSING, Phase.AGGREGATING) else 0
        if self.phase is Phase.PREPARING:
            _remember(self.prepare_s, time - max(self.phase_since, self.started_at))

    def _phase(self, time: float, data: dict[str, Any]) -> None:
        before, self.phase = self.phase, Phase(data["phase"])
        if before is Phase.OPEN and self.phase is Phase.CLOSING:
            _remember(self.open_s, time - max(self.phase_since, self.started_at))
        self.phase_since, self.phase_reason, self.aggregated = time, data["reason"], False
        if self.phase is Phase.PREPARING:
            self.round = data["round"]
            self._clear_round()
        elif self.phase is Phase.OPEN:
            self.opened_at = time
            self.target_rows, self.target_frames = data["target_rows"], data["target_frames"]
            self.total_frames = data["total_frames"]
        elif self.phase is Phase.AGGREGATING:
            self.counts = data["counts"]
            self.bytes_sent |= data["counts"]["bytes"]
            self._lease_again(data.get("due_again", ()))
        if self.phase is Phase.CLOSING:
            for lease in self.outstanding:
                self._give_back(lease, "the round closes")
        elif self.phase is Phase.GATHERING:
            # Nothing came of the round, so what was trained on is as good as new.
            for lease in self.leases.values():
                if not lease.returned:
                    self._give_back(lease, data["reason"])

    def _lease(self, time: float, data: dict[str, Any]) -> None:
        taken = Range(data["epoch"], data["start"], data["stop"])
        if data["recycled"]:
            self.returned.remove(taken)
        else:
            self.cursor = Cursor(taken.epoch, taken.stop)
        self.leases[data["lease_id"]] = Lease(
            data["lease_id"], data["member"], data["generation"], taken, data["first_microbatch_id"], time, data["microbatches"]
        )
        self.next_lease_id = data["lease_id"] + 1
        self.next_microbatch_id = data["first_microbatch_id"] + data["microbatches"]
        self._remember_nonce(data)

    def _lease_done(self, time: float, data: dict[str, Any]) -> None:
        lease = self.leases[data["lease_id"]]
        lease.done_at, lease.frames, lease.microbatches = time, data["frames"], data["microbatches"]
        if not lease.returned:
            _remember(self.lease_s, time - max(lease.granted_at, self.started_at))
        elif lease.range in self.returned and self.fate(lease).whole:
            # Late, but nobody else has taken the range yet.
            self.returned.remove(lease.range)
            lease.returned = ""

    def _lease_returned(self, time: float, data: dict[str, Any]) -> None:
        self._give_back(self.leases[data["lease_id"]], data["reason"])

    def _heldout(self, time: float, data: dict[str, Any]) -> None:
        self.heldout[data["base_cid"]] = data
        self.rounds.set_heldout_loss(data["base_cid"], data["loss"])

    def _listened(self, time: float, data: dict[str, Any]) -> None:
        self.listened.append(data)

    def _update(self, time: float, data: dict[str, Any]) -> None:
        self._remember_nonce(data)
        fields = {key: data[key] for key in Update.__dataclass_fields__ if key != "microbatches"}
        update = Update(microbatches=[(one, frames) for one, frames in data["microbatches"]], **fields)
        self.updates[update.stage, update.member] = update
        if self.phase is Phase.CLOSING:
            _remember(self.close_s, time - max(self.phase_since, self.started_at))

    def _stage_done(self, time: float, data: dict[str, Any]) -> None:
        self.stage_results[data["stage"]] = data

    def _version(self, time: float, data: dict[str, Any]) -> None:
        self.version, self.base_cid = data["version"], data["cid"]
        self.versions.append({"version": data["version"], "round": data["round"], "cid": data["cid"]})
        self.frames_counted += data["frames"]
        self.aggregated = self.phase is Phase.AGGREGATING
        if data["record"]:
            self.rounds.append({**data["record"], "seconds": time - self.opened_at})
        # Standbys and late members may still send what belongs to the round: nothing of it counts any more.
        self._clear_round()

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _clear_round(self) -> None:
        self.leases, self.updates, self.past_reports = {}, {}, []
        self.counts, self.stage_results = {}, {}
        self.audit.new_round()

    def _end(self, member: Member, reason: str) -> None:
        for lease in self.outstanding:
            if lease.member == member.member:
                self._give_back(lease, f"its holder ended: {reason}")
        member.stage, member.ready_base = None, ""

    def _give_back(self, lease: Lease, reason: str) -> None:
        lease.returned = reason
        self.returned.append(lease.range)

    def _lease_again(self, due: list[tuple[int, str]]) -> None:
        """Rows of finished leases go out once more; it is kept how often a range failed."""
        fates = {lease_id: self.fate(lease) for lease_id, lease in self.leases.items()}
        for lease_id, reason in due:
            self._give_back(self.leases[lease_id], reason)
        for lease_id, fate in fates.items():
            span = self.leases[lease_id].range
            if fate.done and fate.whole:
                self.retried.pop(span, None)
            elif lease_id in dict(due):
                self.retried[span] = fate.retried + 1

    def _keep_report(self, data: dict[str, Any]) -> None:
        """What a replica had reported of this round before its assignment ended still counts."""
        if report := data.get("report"):
            self.past_reports.append(report)

    def _remember_nonce(self, data: dict[str, Any]) -> None:
        if nonce := data.get("nonce"):
            self.nonces.append((nonce[0], nonce[1], nonce[2]))
            del self.nonces[:-NONCES]

    def _watch_coverage(self, time: float) -> None:
        covered = self.stages > 0 and all(self.replicas(stage) for stage in range(self.stages))
        if not covered:
            self.covered_since = None
        elif self.covered_since is None:
            self.covered_since = time


def _remember(history: list[float], seconds: float) -> None:
    history.append(max(seconds, 0.0))
    del history[:-HISTORY]


_HANDLERS: dict[str, Callable[[RunState, float, dict[str, Any]], None]] = {
    "created": RunState._created,
    "started": RunState._started,
    "listening": RunState._listening,
    "bootstrap": RunState._bootstrap,
    "joined": RunState._joined,
    "revived": RunState._revived,
    "lost": RunState._lost,
    "left": RunState._lost,
    "banned": RunState._banned,
    "pardoned": RunState._pardoned,
    "invited": RunState._invited,
    "invitation_revoked": RunState._invitation_revoked,
    "assigned": RunState._assigned,
    "mismatch": RunState._mismatch,
    "ready": RunState._ready,
    "phase": RunState._phase,
    "lease": RunState._lease,
    "lease_done": RunState._lease_done,
    "lease_returned": RunState._lease_returned,
    "heldout": RunState._heldout,
    "listened": RunState._listened,
    "update": RunState._update,
    "stage_done": RunState._stage_done,
    "version": RunState._version,
    "quarantined": RunState._quarantined,
    "left_out": RunState._left_out,
}
# Events that change what members, or the report, are told.
_VISIBLE = frozenset(
    {
        "created", "started", "bootstrap", "joined", "revived", "lost", "left", "banned", "assigned", "ready", "phase", "heldout",
        "listened", "version", "quarantined", "audit_asked",
    }
)  # fmt: skip
