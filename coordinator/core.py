"""The heart of a running coordinator: the journal, the state folded from it, what members last said, and who waits for news."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from common.errors import Code, HocketError
from common.faults import Faults
from coordinator.admission import STRANGER, Entry
from coordinator.assignment import Candidate, Role, Wanted
from coordinator.failures import Signs
from coordinator.journal import Journal
from coordinator.leases import Sizes, next_range
from coordinator.lost_work import wanted
from coordinator.measures import bytes_record, loss_per_code, one_line, report_record
from coordinator.placement import address_range, lot, same_hand
from coordinator.rounds import Phase
from coordinator.run import Lease, Member, RunState
from coordinator.run_config import RunConfig
from protocol.calibration import MAX_CLASS_CHARACTERS, class_refusal
from protocol.generated import hocket_pb2 as pb
from protocol.manifest import VersionManifest

logger = logging.getLogger(__name__)

LEASES_IN_HAND = 2      # a feeder may ask for its next lease before its last report has arrived
MISMATCHES_ALLOWED = 3
RECENT = 50
PROCESSES_COUNTED = 64  # of one member: what further ones send is not counted

Nonce = tuple[str, str, int]


@dataclass(frozen=True)
class Refused:
    """Why a request was not met; the caller may try again later."""

    reason: str


class Core:
    """One event loop's owner of the run. Every change goes through `emit`: first the journal, then the state.

    Args:
        clock: seconds since the epoch, that never go back, over restarts either; see `common.clock`.
        secret: from which places are drawn; who knows it can foresee them.
    """

    def __init__(
        self, config: RunConfig, journal: Journal, state: RunState, faults: Faults, clock: Callable[[], float],
        secret: bytes = b"",
    ) -> None:  # fmt: skip
        self.config = config
        self.state = state
        self.faults = faults
        self.clock = clock
        self.manifest: VersionManifest | None = None
        self.last_seen: dict[str, float] = {}
        self.pins: frozenset[str] = frozenset()
        self.broken: dict[str, float] = {}
        self.reports: dict[tuple[str, int], dict[str, Any]] = {}
        self.bytes_sent: dict[str, dict[str, int]] = dict(state.bytes_sent)
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.pids: dict[str, int] = {}
        self._named: dict[tuple[str, int], dict[str, float]] = {}
        self._speeds: dict[str, tuple[int, float]] = {}
        self.reason = state.phase_reason
        self.ipfs: dict[str, int | None] | None = None  # how far pushing is; None: there is none
        self.wake = asyncio.Event()
        self._journal = journal
        self._secret = secret
        self._news = asyncio.Event()
        self._resumed_at = 0.0

    @property
    def sizes(self) -> Sizes:
        """How the dataset is cut into leases."""
        rounds = self.config.rounds
        return Sizes(
            self.state.dataset["rows"], self.state.dataset["frames"],
            rounds.frames_per_inner_step, rounds.microbatches_per_inner_step,
        )  # fmt: skip

    @property
    def wanted_data(self) -> tuple[int, int]:
        """Rows and frames that this round is to train, with those that make up for what was lost."""
        return wanted(self.state, self.reports.values(), self.sizes)

    def emit(self, kind: str, /, **data: Any) -> None:
        """Journal an event and take it into the state; whoever waits for a higher revision, and the driver, look again."""
        revision = self.state.revision
        event = self._journal.append(kind, self.clock(), data)
        self.state.apply(event)
        self.recent.append({"time": event.time, "kind": kind, **_in_short(event.data)})
        if self.state.revision != revision:
            self._news.set()
            self._news = asyncio.Event()
        self.wake.set()

    async def news(self, known_revision: int, wait_s: float) -> None:
        """Return when the revision is above `known_revision`, or after `wait_s`."""
        if self.state.revision > known_revision or wait_s <= 0:
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            return

    # ---- members -----------------------------------------------------------------------------------------------------

    def check_shut_out(self, member: str) -> None:
        """BANNED for one that the organiser has put out, QUARANTINED for one that was found to have cheated."""
        self.state.admission.check_banned(member)
        if (record := self.state.audit.quarantined.get(member)) is not None:
            raise HocketError(Code.QUARANTINED, f"{record['reason']}; evidence: {record['evidence_cid']}")

    def check_join(self, member: str, request: pb.JoinRequest) -> None:
        """JOIN_REFUSED for a peer id that another one uses, a full run, another dtype, or a member that can hold no stage."""
        if reason := class_refusal(request.device_class):
            raise HocketError(Code.JOIN_REFUSED, reason, remedy="let torch compute in float32: `docs/verification.md` says how")
        others = [one for one in self.state.members.values() if one.live and one.member != member]
        if any(one.peer_id == request.peer_id for one in others):
            raise HocketError(
                Code.JOIN_REFUSED, "another member uses this peer id", remedy="remove peer.key from the state directory"
            )  # fmt: skip
        if len(others) >= self.config.membership.max_members:
            raise HocketError(Code.JOIN_REFUSED, f"the run has its {len(others)} members")
        limit_bytes = request.memory_limit_bytes
        if not self.wanted.fitting(limit_bytes):
            least_mib = -(-min(self.state.stage_bytes) // 2**20)
            raise HocketError(
                Code.JOIN_REFUSED, f"no stage fits into a memory limit of {limit_bytes / 2**20:.0f} MiB",
                remedy=f"the smallest stage takes {least_mib} MiB",
            )  # fmt: skip

    def join(self, member: str, request: pb.JoinRequest, nonce: Nonce, entry: Entry = STRANGER, address: str = "") -> None:
        """A member's process starts, or starts anew. JOIN_REFUSED as of `check_join`.

        Args:
            entry: of the decision to let it in. address: that it called from.
        """
        self.check_join(member, request)
        self._hear(member)
        self.emit(
            "joined", member=member, peer_id=request.peer_id, operator=one_line(entry.operator or request.operator, 200),
            nonce=nonce, report=self._last_words(member), address=address, invitation=entry.invitation,
            info={
                "software": one_line(request.software, 200), "threads": request.threads,
                "memory_limit_bytes": request.memory_limit_bytes,
                "wire_encodings": [one_line(name, 16) for name in request.wire_encodings[:8]],
                "device_class": one_line(request.device_class, MAX_CLASS_CHARACTERS),
            },
        )  # fmt: skip
        logger.info("member %s joined (%s)", member[:12], one_line(request.operator, 80) or "no operator named")

    def seen(self, member: str) -> Member | None:
        """A member gave a sign of life; one that was lost, but not barred, is live again. None: it never joined."""
        known = self.state.members.get(member)
        if known is None:
            return None
        self._hear(member)
        if not known.live and not known.barred:
            logger.info("member %s is back", member[:12])
            self.emit("revived", member=member)
        return known

    def _hear(self, member: str) -> None:
        self.last_seen[member] = self.clock()
        self.broken.pop(member, None)

    def connection_broke(self, member: str) -> None:
        """A watch of the member was cut while it was held: unless it is heard of again soon, it is lost."""
        self.broken.setdefault(member, self.clock())
        self.wake.set()

    @property
    def going_since(self) -> float:
        """When this process started, or went on after it had been held up: whoever is waited for has had time since then."""
        return max(self.state.started_at, self._resumed_at)

    def signs(self, member: Member, now: float) -> Signs:
        """What is known of a live member, for the judgement whether it is lost."""
        seen, broke = self.last_seen.get(member.member), self.broken.get(member.member)
        return Signs(
            quiet_s=now - (self.going_since if seen is None else seen),
            returning=seen is None,
            broken_s=None if broke is None else now - broke,
            suspicions=len(named := self._named_by_callers(member, now)),
            shunned_s=min(named) if len(named) >= 2 and self._all_and_replaceable(member, len(named)) else None,
        )

    def _named_by_callers(self, member: Member, now: float) -> list[float]:
        """For how long each caller, a replica of the stage before, has named the member in all of its reports, in seconds."""
        if not member.stage or member.role is not Role.REPLICA:
            return []
        found = []
        for (name, generation), peers in self._named.items():
            one = self.state.members[name]
            calls = one.live and one.role is Role.REPLICA and one.stage == member.stage - 1 and one.generation == generation
            if calls and member.peer_id in peers:
                found.append(now - peers[member.peer_id])
        return found

    def _all_and_replaceable(self, member: Member, named: int) -> bool:
        """Whether so many are all callers of the member, and a standby of its stage is ready to take its place."""
        assert member.stage is not None
        everyone = len(self.state.replicas(member.stage - 1)) == named
        return everyone and any(self.state.is_ready(one) for one in self.state.standbys(member.stage))

    @property
    def wanted(self) -> Wanted:
        """How many replicas and standbys there should be."""
        config, state = self.config, self.state
        return Wanted(
            state.stages, config.rounds.replicas_wanted, config.membership.standbys, state.stage_bytes,
            *config.membership.caps(config.aggregation.tolerate),
        )  # fmt: skip

    def candidates(self) -> list[Candidate]:
        """The live members, as the assignment sees them."""
        return [
            Candidate(
                one.member, one.stage, one.last_stage, one.role, self.state.is_ready(one), self._speed(one),
                one.info.get("memory_limit_bytes", 0), lot(self._secret, one.member),
                same_hand(one.operator), address_range(one.address),
            )
            for one in self.state.members.values() if one.live
        ]  # fmt: skip

    def _speed(self, member: Member) -> float | None:
        """Frames per second that the member last reported under its present generation."""
        generation, frames_per_s = self._speeds.get(member.member, (-1, 0.0))
        return frames_per_s if generation == member.generation else None

    def excuse(self, seconds: float) -> None:
        """Time in which this process itself did not run is nobody's silence, and no deadline runs in it."""
        self._resumed_at = self.clock()
        for times in (self.last_seen, self.broken):
            for member in times:
                times[member] += seconds

    def leave(self, member: str, reason: str, nonce: Nonce) -> None:
        """A member says good-bye; again does no harm."""
        reason = one_line(reason, 200)
        if self.state.members[member].live:
            # Barred, as what it sent before may come after its good-bye, and must not bring it back.
            self.emit("left", member=member, reason=f"left: {reason}", barred=True, report=self._last_words(member), nonce=nonce)
            logger.info("member %s left: %s", member[:12], reason)

    def lose(self, member: str, reason: str, *, barred: bool = False) -> None:
        """Give a member up; its assignment and its unfinished leases end. A barred one must join anew to be live again."""
        self.emit("lost", member=member, reason=reason, barred=barred, report=self._last_words(member))
        logger.warning("member %s is lost: %s", member[:12], reason)

    def ban(self, member: str, reason: str, nonce: Nonce) -> None:
        """Put a member out, or keep somebody from coming in, until `pardon`."""
        self.emit("banned", member=member, reason=one_line(reason, 200), report=self._last_words(member), nonce=nonce)
        logger.warning("member %s is banned: %s", member[:12], one_line(reason, 200) or "no reason was given")

    def quarantine(self, member: str, record: dict[str, Any]) -> None:
        """Shut a member out: its place, its update of this round and what it reported of it are gone.

        Args:
            record: `kind`, `reason`, `evidence_cid`, `base_cid`, `round`, `stage`, `operator`.
        """
        self._last_words(member)
        self.emit("quarantined", member=member, **record)
        logger.error("member %s is quarantined (%s): %s", member[:12], record["kind"], record["reason"])

    def assign(self, member: str, stage: int, reason: str, role: Role = Role.REPLICA) -> None:
        """Give a member a stage to serve, or to stand by for, under its next generation."""
        generation = self.state.members[member].generation + 1
        self.emit(
            "assigned", member=member, stage=stage, role=role.value, generation=generation, reason=reason,
            report=self._last_words(member),
        )  # fmt: skip
        logger.info("member %s is a %s of stage %d (generation %d): %s", member[:12], role, stage, generation, reason)

    def _last_words(self, member: str) -> dict[str, Any] | None:
        """The report of a replica whose assignment ends, so that what it trained in this round still counts."""
        known = self.state.members.get(member)
        if known is None:
            return None
        self._named.pop((member, known.generation), None)
        return self.reports.pop((member, known.generation), None)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def count_own_blocks(self, pid: int, sent_bytes: int) -> None:
        """What this coordinator's own block peer, process `pid`, has sent since its start."""
        self.bytes_sent[f"own/{pid}"] = {"blocks": sent_bytes}

    def take_report(self, member: Member, report: pb.MemberReport) -> None:
        """What a member says about itself: readiness, finished leases, losses. What is not of its assignment is not counted."""
        self.pids[member.member] = report.pid
        process = f"{member.member}/{report.pid}"
        known = process in self.bytes_sent
        if known or (report.pid and sum(one.startswith(member.member) for one in self.bytes_sent) < PROCESSES_COUNTED):
            self.bytes_sent[process] = bytes_record(report)
        if member.stage is None or report.generation != member.generation or report.stage != member.stage:
            return
        state = self.state
        if report.ready_base_cid == state.base_cid and not state.is_ready(member):
            self._check_ready(member, report.weights_sha256)
        if member.role is not Role.REPLICA:
            return
        if 0 < report.throughput < inf:
            self._speeds[member.member] = (member.generation, report.throughput)
        if report.round != state.round or state.phase not in (Phase.PREPARING, Phase.OPEN, Phase.CLOSING):
            return
        record = report_record(member.member, report)
        self.reports[member.member, member.generation] = record
        self._take_suspects(member, record["suspects"])
        if member.stage == 0:
            self._take_leases(member, report)
            if report.ready_base_cid == state.base_cid and state.base_cid not in state.heldout:
                self._take_heldout(member, report)

    def _take_suspects(self, member: Member, suspects: list[str]) -> None:
        """Remember since when the member names whom."""
        before = self._named.pop((member.member, member.generation), {})
        if suspects:
            self._named[member.member, member.generation] = {peer: before.get(peer, self.clock()) for peer in suspects}
            self.wake.set()

    def _check_ready(self, member: Member, weights_sha256: bytes) -> None:
        assert self.manifest is not None and member.stage is not None
        expected = self.manifest.stages[member.stage].sha256
        if weights_sha256.hex() == expected:
            self.emit("ready", member=member.member, base_cid=self.state.base_cid)
            return
        found = weights_sha256.hex()[:16] or "nothing"
        logger.error("member %s has loaded %s for stage %d instead of %s", member.member[:12], found, member.stage, expected[:16])
        stage = member.stage
        self.emit("mismatch", member=member.member, stage=stage, base_cid=self.state.base_cid, found=weights_sha256.hex())
        if self.state.members[member.member].mismatches > MISMATCHES_ALLOWED:
            self.lose(member.member, "it keeps loading other weights than the version's", barred=True)
        else:
            self.assign(member.member, stage, "it loaded other weights than the version's and must load them again", member.role)

    def _take_leases(self, member: Member, report: pb.MemberReport) -> None:
        for done in report.leases_done:
            lease = self.state.leases.get(done.lease_id)
            fits = done.microbatches <= self.config.rounds.microbatches_per_inner_step
            # No utterance is longer than the model allows, nor than all there is.
            whole = int(self.state.dataset["frames"])
            longest = min(int(self.state.model_config.get("max_frames", whole)), whole)
            fits = fits and lease is not None and done.frames <= lease.range.rows * longest
            if lease is not None and lease.member == member.member and lease.done_at is None and fits:
                self.emit("lease_done", lease_id=done.lease_id, frames=done.frames, microbatches=done.microbatches)

    def _take_heldout(self, member: Member, report: pb.MemberReport) -> None:
        ce, count = [one.ce_sum for one in report.heldout], [one.count for one in report.heldout]
        loss = loss_per_code(ce, count)
        if loss is None or not 0 <= loss < float("inf"):
            return
        self.emit("heldout", base_cid=self.state.base_cid, member=member.member, ce=ce, count=count, loss=loss)
        logger.info("held-out loss of version %d: %.4f", self.state.version, loss)

    # ---- leases ------------------------------------------------------------------------------------------------------

    def grant_lease(self, member: Member, request: pb.LeaseRequest, nonce: Nonce) -> pb.LeaseReply | Refused:
        """The next range of the data for a stage-0 replica, or why there is none now.

        A lease that the replica does not know of was granted in an answer that never came: it is granted again as it is.
        """
        state = self.state
        if member.stage != 0 or member.role is not Role.REPLICA or request.generation != member.generation:
            return Refused("leases go to replicas of stage 0, under their current generation")
        if state.phase is not Phase.OPEN or request.round != state.round:
            return Refused(f"round {state.round} is in phase {state.phase}")
        if not state.is_ready(member):
            return Refused("the base is not reported as loaded")
        if request.HasField("known_lease_id"):
            unheard = [one for one in state.outstanding if one.generation == member.generation
                       and one.member == member.member and one.lease_id > request.known_lease_id]  # fmt: skip
            if unheard:
                return _granted(unheard[0])
        if state.planned_rows >= self.wanted_data[0]:
            return Refused("the round's frames are all leased")
        if sum(lease.member == member.member for lease in state.outstanding) >= LEASES_IN_HAND:
            return Refused(f"{LEASES_IN_HAND} leases are unfinished")
        grant = next_range(state.cursor, state.returned, self.sizes)
        lease_id = state.next_lease_id
        self.emit(
            "lease", lease_id=lease_id, member=member.member, generation=member.generation, recycled=grant.recycled,
            epoch=grant.range.epoch, start=grant.range.start, stop=grant.range.stop,
            first_microbatch_id=state.next_microbatch_id, microbatches=self.config.rounds.microbatches_per_inner_step,
            nonce=nonce,
        )  # fmt: skip
        return _granted(state.leases[lease_id])


def _granted(lease: Lease) -> pb.LeaseReply:
    return pb.LeaseReply(
        granted=True, lease_id=lease.lease_id, epoch=lease.range.epoch, start=lease.range.start, stop=lease.range.stop,
        first_microbatch_id=lease.first_microbatch_id,
    )  # fmt: skip


def _in_short(data: dict[str, Any]) -> dict[str, Any]:
    """An event for people: without its long parts."""
    return {key: value for key, value in data.items() if isinstance(value, str | int | float | bool) and len(str(value)) <= 200}
