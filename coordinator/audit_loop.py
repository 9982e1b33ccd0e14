"""Moves audits on, as `audits.decide` says: asks witnesses, compares, has the referee recompute, and does what follows."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import HocketError
from coordinator.assignment import Role
from coordinator.audit_draw import Able, operator_of, seed_of, witnesses
from coordinator.audit_evidence import Accuser
from coordinator.audit_files import AuditFiles
from coordinator.audit_rates import Outcome, class_alarm
from coordinator.audit_secret import AuditSecrets
from coordinator.audit_state import Audit, Kind, Part
from coordinator.audits import Action, Do, Facts, Limits, decide, in_order
from coordinator.batch_check import BatchCheck
from coordinator.commit_book import CommitBook
from coordinator.core import Core
from coordinator.placement import same_hand
from coordinator.referee import Finding, Referee, Ruling
from coordinator.referee_life import Turn
from coordinator.requests import Guilt, read_exchange
from coordinator.run import Member
from protocol.agreement import Agreement
from protocol.calibration import read_calibration, shipped_calibration
from protocol.opening_checks import compare_passes, gradient_wire
from protocol.openings import read_pass
from protocol.tensor_files import read_tensors
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)

LATE_S = 1.0       # by which a look at the audits may come late before this process is taken to have been held up
RULINGS_TRIED = 3  # times that the referee did not come to an audit, then it lapses


class AuditLoop:
    """The task that carries audits to their end.

    Args:
        core, book, secrets: the run. files: what has come. referee, accuser: see there. store: hands inputs to witnesses.
        batches: knows what stage 0 has read.
    """

    def __init__(
        self, core: Core, book: CommitBook, secrets: AuditSecrets, files: AuditFiles, referee: Referee, accuser: Accuser,
        store: BlockStore, batches: BatchCheck,
    ) -> None:  # fmt: skip
        self._core = core
        self._book = book
        self._secrets = secrets
        self._files = files
        self._referee = referee
        own_table = core.config.audit.calibration
        self._table = read_calibration(Path(own_table)) if own_table else shipped_calibration()
        self._accuser = accuser
        self._store = store
        self._batches = batches
        self._tried: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self._ruling: asyncio.Task[None] | None = None
        self._quiet = asyncio.Event()
        self._due_at = core.clock()
        self._going_since = self._due_at

    async def run(self) -> None:
        """Until cancelled. HocketError for a fault that only a person can mend."""
        tick_s = self._core.config.membership.silence_s / 4
        try:
            while True:
                self.changed.clear()
                self._forgive_own_absence()
                wait_s = min(await self.step(), tick_s)
                self._due_at = self._core.clock() + wait_s
                if not self._core.state.audit.audits:
                    self._quiet.set()
                try:
                    async with asyncio.timeout(wait_s):
                        await self.changed.wait()
                except TimeoutError:
                    continue
        finally:
            if self._ruling is not None:
                self._ruling.cancel()
                await asyncio.gather(self._ruling, return_exceptions=True)
            await self._referee.close()

    async def settled(self, limit_s: float) -> None:
        """Wait until the audits that are under way have ended, at most `limit_s`; what has not is left for the next start."""
        self._quiet.clear()
        self.changed.set()
        try:
            async with asyncio.timeout(limit_s):
                await self._quiet.wait()
        except TimeoutError:
            logger.warning("%d audits have not ended within %.0f s", len(self._core.state.audit.audits), limit_s)

    async def step(self) -> float:
        """Do what can be done; how long nothing will change by itself, in seconds."""
        if self._ruling is not None and self._ruling.done():
            ended, self._ruling = self._ruling, None
            ended.result()
        look_again_s = float("inf")
        recompute: list[Audit] = []
        for audit in list(self._core.state.audit.audits.values()):
            action = self._next(audit)
            if action.do is Do.WAIT:
                look_again_s = min(look_again_s, action.look_again_s)
            elif action.do is Do.REFEREE:
                recompute.append(audit)
            else:
                await self._act(audit, action)
                look_again_s = 0.0
        tended = await self._referee.tend(wanted=bool(recompute))
        look_again_s = min(look_again_s, tended.look_again_s)
        if tended.turn is Turn.ASK and self._ruling is None:
            # Beside what else there is to do: the referee takes its time. Which one is next is seen anew after each.
            self._ruling = asyncio.create_task(self._recompute(in_order(recompute)[0]))
            self._ruling.add_done_callback(lambda _: self.changed.set())
        return max(look_again_s, 0.01)

    def _forgive_own_absence(self) -> None:
        """Time in which this process did not run is nobody's, and here nobody else may have looked at it before."""
        if (now := self._core.clock()) - self._due_at > LATE_S:
            self._going_since = now

    # ---- what is known -----------------------------------------------------------------------------------------------

    def _next(self, audit: Audit) -> Action:
        core, config = self._core, self._core.config.audit
        state = core.state
        if audit.member in state.audit.quarantined:
            return Action(Do.LAPSE, "its member is quarantined")
        member, witness = state.members.get(audit.member), state.members.get(audit.witness)
        there = member is not None and member.live and (member.generation, member.stage) == (audit.generation, audit.stage)
        facts = Facts(
            # Whoever has begun its stage anew has nothing left of what it did before.
            there=there and not any(
                key > (audit.generation, audit.part) for key in self._book.chains(audit.round, audit.member)
            ),
            going_since=max(core.going_since, self._going_since, self._files.heard_at(audit.member)),
            sending_until=self._files.sending_until(audit.member),
            current=(state.round, state.base_cid) == (audit.round, audit.base_cid),
            able=self._able(audit) if not audit.witness else (),
            witness_there=witness is not None and witness.live and witness.stage == audit.stage,
            base_kept=self._referee.has_base(audit),
        )
        return decide(audit, facts, core.clock(), Limits(config.opening_s, config.witness_s))

    def _able(self, audit: Audit) -> list[str]:
        state = self._core.state
        asked = [one for one in state.replicas(audit.stage) if not state.audit.standing(one.member).silent]
        able = [_able(one) for one in asked if state.is_ready(one)]
        prover = Able(audit.member, audit.operator, audit.device_class)
        return witnesses(self._seed(audit), audit.microbatch, prover, able)

    def _seed(self, audit: Audit) -> bytes:
        return seed_of(self._secrets.secret(audit.round), bytes.fromhex(audit.link))

    # ---- what is done ------------------------------------------------------------------------------------------------

    async def _act(self, audit: Audit, action: Action) -> None:
        core = self._core
        if action.do is Do.ASK:
            cid = await asyncio.to_thread(self._store.add_file, self._files.path(audit, Part.INPUT))
            core.emit("audit_asked", id=audit.id, witness=action.witness, input_cid=cid)
        elif action.do is Do.ESCALATE:
            core.emit("audit_escalated", id=audit.id, reason=action.reason, silent=action.silent)
        elif action.do is Do.COMPARE:
            await self._compare(audit)
        elif action.do is Do.REQUEST:
            await self._look_at_request(audit)
        elif action.do is Do.PASS:
            silence = [(audit.witness, Outcome.SILENT, action.reason)] if action.silent else []
            await self._end(audit, Outcome.PASSED, action.reason, by="referee", also=silence)
        elif action.do is Do.GONE:
            await self._gone(audit, action.reason)
        elif action.do is Do.LAPSE:
            await self._end(audit, Outcome.LAPSED, action.reason)
        else:
            await self._not_opened(audit, action.reason)

    async def _compare(self, audit: Audit) -> None:
        """The prover's answer beside the witness's, who had not seen it."""
        witness = self._core.state.members.get(audit.witness)
        witness_class = witness.info.get("device_class", "") if witness is not None else ""
        found = await asyncio.to_thread(self._agreement, audit, witness_class)
        if found.ok:
            await self._end(audit, Outcome.PASSED, "the witness came to the same", by=audit.witness, statistics=found.statistics)
        else:
            self._core.emit("audit_escalated", id=audit.id, reason=f"the witness disagrees: {found.reason}")

    def _agreement(self, audit: Audit, witness_class: str) -> Agreement:
        wire = self._core.config.network.wire
        try:
            theirs = read_pass(read_tensors(self._files.path(audit, Part.OUTPUT)))
            ours = read_pass(read_tensors(self._files.path(audit, Part.WITNESS)))
            row = self._table.row_between(witness_class, audit.device_class, wire)
            back = self._table.row_between(witness_class, audit.device_class, gradient_wire(theirs.about, wire))
            return compare_passes(ours, theirs, self._seed(audit), row, back)
        except HocketError as error:
            return Agreement(False, error.line())

    async def _look_at_request(self, audit: Audit) -> None:
        """Which of two neighbours signed something false."""
        exchange = self._accuser.exchange(audit)
        path, run_id = self._files.path(audit, Part.REQUEST), self._core.state.run_id
        found = await asyncio.to_thread(read_exchange, path, audit, exchange, run_id)
        commits = self._accuser.accused_commits(audit)
        if found.guilt is Guilt.SENDER:
            await self._accuser.of_audit(audit, "EQUIVOCATION", audit.accused, found.reason, by="", statistics={}, signed=commits)
            await self._end(audit, Outcome.PASSED, found.reason)
        elif found.guilt is Guilt.RECEIVER:
            await self._accuser.of_audit(audit, "EQUIVOCATION", audit.member, found.reason, by="", statistics={}, others=commits)
            await self._end(audit, Outcome.FAILED, found.reason)
        elif found.guilt is Guilt.NOBODY:
            await self._end(audit, Outcome.PASSED, found.reason)
        else:
            await self._not_opened(audit, found.reason)

    async def _gone(self, audit: Audit, reason: str) -> None:
        """Nobody will know any more what its step came to; an update of this round that rests on it is left out."""
        state = self._core.state
        update = state.updates.get((audit.stage, audit.member)) if audit.round == state.round else None
        if update is not None and audit.link in self._book.resting_on(audit.round, audit.member, update.generation):
            self._core.emit("left_out", stage=audit.stage, member=audit.member, reason=reason)
        await self._end(audit, Outcome.GONE, reason)

    async def _not_opened(self, audit: Audit, reason: str) -> None:
        """Its update of this round, if it is still to be aggregated, is left out; the next time the member is quarantined."""
        state = self._core.state
        if audit.round == state.round and (audit.stage, audit.member) in state.updates:
            self._core.emit("left_out", stage=audit.stage, member=audit.member, reason=reason)
        standing = state.audit.standing(audit.member).after(Outcome.NOT_OPENED, audit.round, reason, audit.step)
        if must_go := standing.must_go:
            why = f"{must_go}; the last: {reason}"
            await self._accuser.of_audit(audit, "NOT_OPENED", audit.member, why, by="", statistics={})
        await self._end(audit, Outcome.NOT_OPENED, reason)

    # ---- the referee -------------------------------------------------------------------------------------------------

    async def _recompute(self, audit: Audit) -> None:
        ruling = await self._referee.rule(audit)
        if audit.id in self._core.state.audit.audits:  # it may have ended meanwhile
            if ruling is not None:
                await self._ruled(audit, ruling)
            else:
                self._tried[audit.id] += 1
                if self._tried[audit.id] >= RULINGS_TRIED:
                    await self._end(audit, Outcome.LAPSED, f"the referee failed {RULINGS_TRIED} times")
        self._referee.tidy(list(self._core.state.audit.audits.values()))

    async def _ruled(self, audit: Audit, ruling: Ruling) -> None:
        if audit.member in self._core.state.audit.quarantined:
            return  # meanwhile; the next look ends the audit
        if ruling.error:
            if ruling.blamed:
                await self._not_opened(audit, ruling.error)
            else:
                await self._end(audit, Outcome.LAPSED, ruling.error)
            return
        mine, theirs = ruling.findings[audit.member], ruling.findings.get(audit.witness)
        if mine.ok is None:
            await self._end(audit, Outcome.LAPSED, mine.reason)
            return
        if theirs is not None and theirs.ok is False:
            await self._judge(audit, audit.witness, theirs, "WITNESS", doubtful=not mine.ok)
        if not mine.ok:
            kind = "STEP" if audit.kind is Kind.STEP else "PASS"
            outcome = await self._judge(audit, audit.member, mine, kind, doubtful=theirs is not None and theirs.ok is False)
            await self._end(audit, outcome, mine.reason, by="referee", finding=mine, also=_witness_word(audit, theirs))
        elif audit.known and not audit.verified and Part.WITNESS not in audit.files:
            self._core.emit("audit_verified", id=audit.id)
        else:
            await self._end(
                audit, Outcome.PASSED, mine.reason, by="referee", finding=mine, also=_witness_word(audit, theirs)
            )

    async def _judge(self, audit: Audit, member: str, finding: Finding, kind: str, *, doubtful: bool) -> Outcome:
        """Quarantine a member whose work the referee cannot confirm, unless the tolerances may be to blame.

        Args:
            doubtful: prover and witness both differ from the referee: only the second time that is taken for their fault.
        """
        core = self._core
        known = core.state.members.get(member)
        device_class = known.info.get("device_class", "") if known is not None else ""
        sizes = Counter(one.info.get("device_class", "") for one in core.state.members.values())
        window = [*core.state.audit.window, (device_class, member, False)]
        operators = {one.member: operator_of(one.member, same_hand(one.operator)) for one in core.state.members.values()}
        alarm = class_alarm(window, sizes, operators).get(device_class)
        if alarm is not None:
            logger.error("nobody of the device class %s is quarantined: %s", device_class or "unknown", alarm)
            return Outcome.UNRESOLVED
        if doubtful and not core.state.audit.standing(member).suspected:
            return Outcome.UNRESOLVED
        await self._accuser.of_audit(audit, kind, member, finding.reason, by="referee", statistics=finding.statistics)
        return Outcome.FAILED

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def _end(
        self, audit: Audit, outcome: Outcome, reason: str, *, by: str = "", finding: Finding | None = None,
        statistics: dict[str, Any] | None = None, also: Sequence[tuple[str, Outcome, str]] = (),
    ) -> None:  # fmt: skip
        """Journal the end of an audit and drop its files.

        Args:
            also: what it says of others: (member, outcome, reason).
        """
        if audit.id not in self._core.state.audit.audits:
            return
        if audit.stage == 0:
            reason = f"{reason}; {self._batches.word(bytes.fromhex(audit.link))}"
        decided = by and audit.kind is not Kind.REQUEST and outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.UNRESOLVED)
        self._core.emit(
            "audit_ended", id=audit.id, outcome=outcome.value, reason=reason, by=by,
            statistics=statistics or (finding.statistics if finding is not None else {}),
            standings=[(audit.member, outcome.value, reason), *((name, word.value, why) for name, word, why in also)],
            window=[(audit.device_class, audit.member, outcome is Outcome.PASSED)] if decided else [],
        )  # fmt: skip
        level = logging.INFO if outcome in (Outcome.PASSED, Outcome.LAPSED, Outcome.GONE) else logging.WARNING
        logger.log(level, "audit of %s (%s, stage %d, round %d): %s: %s", audit.member[:12], audit.kind, audit.stage, audit.round,
                   outcome, reason)  # fmt: skip
        self._tried.pop(audit.id, None)
        self._files.forget(audit)
        await asyncio.to_thread(self._files.drop, audit)


def _able(member: Member) -> Able:
    assert member.role is Role.REPLICA
    return Able(member.member, member.operator, member.info.get("device_class", ""))


def _witness_word(audit: Audit, finding: Finding | None) -> list[tuple[str, Outcome, str]]:
    """What a ruling says of the witness: only a wrong answer counts."""
    if finding is None or finding.ok is not False:
        return []
    return [(audit.witness, Outcome.UNRESOLVED, f"as a witness: {finding.reason}")]
