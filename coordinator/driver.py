"""Drives the run: gathers the facts, asks the deciders, carries out what they say, and sleeps until something may change."""

from __future__ import annotations

import asyncio
import logging
from statistics import median
from typing import Any

from coordinator.assembly import Assembly
from coordinator.assignment import assign
from coordinator.closing import closed
from coordinator.core import Core
from coordinator.deadlines import deadline
from coordinator.failures import judge
from coordinator.leases import Held, overdue
from coordinator.rebalancing import move_cost, rebalance
from coordinator.rounds import Decision, Facts, Phase, StageFacts, decide
from coordinator.views import wants_evaluation

logger = logging.getLogger(__name__)

# A round or a lease is closed by its own end; its deadline is for those that never come, so it may be generous.
OPEN_SLACK = 3.0
ASSIGNING = (Phase.GATHERING, Phase.PREPARING, Phase.OPEN)


class Driver:
    """The loop that moves a run on.

    Args:
        core: journal, state and reports.
        assembly: turns a closed round into the next version.
    """

    def __init__(self, core: Core, assembly: Assembly) -> None:
        self._core = core
        self._assembly = assembly
        self._due_at = core.clock()
        self._may_move = False
        self.finished = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. HocketError for a fault that only a person can mend (a full disk, a child that does not start)."""
        core = self._core
        while True:
            core.wake.clear()
            wait_s = await self.step()
            try:
                async with asyncio.timeout(wait_s):
                    await core.wake.wait()
            except TimeoutError:
                continue

    async def step(self) -> float:
        """Decide and act until nothing changes any more; how long to wait before looking again, in seconds."""
        core, tick_s = self._core, self._core.config.membership.silence_s / 4
        while True:
            now = core.clock()
            self._forgive_own_absence(now)
            look_again_s = self._tend(now)
            decision = decide(self.facts(now), now)
            if decision.reason != core.reason:
                core.reason = decision.reason
                logger.info("round %d, %s: %s", core.state.round, core.state.phase, decision.reason)
            if decision.enter is not None:
                self._enter(decision)
            elif core.state.phase is Phase.AGGREGATING:
                await self._assembly.run()
                self._due_at = core.clock() + tick_s
            else:
                if core.state.phase is Phase.FINISHED:
                    self.finished.set()
                wake_s = tick_s if decision.wake_at is None else decision.wake_at - now
                wait_s = max(min(tick_s, wake_s, look_again_s), 0.01)
                self._due_at = now + wait_s
                return wait_s

    # ---- what must be kept in order at any time ----------------------------------------------------------------------

    def _forgive_own_absence(self, now: float) -> None:
        """Time in which this process itself did not run (a suspended machine, a long sync) is nobody's silence."""
        late_s = now - self._due_at
        if late_s > 1.0:
            logger.warning("the coordinator was held up for %.1f s", late_s)
            self._core.excuse(late_s)
            self._due_at = now

    def _tend(self, now: float) -> float:
        """Give up who is lost, give out stages and take back leases; when to look again at the latest, in seconds."""
        core, state, silence_s = self._core, self._core.state, self._core.config.membership.silence_s
        look_again_s = silence_s
        for member in [one for one in state.members.values() if one.live]:
            verdict = judge(core.signs(member, now), silence_s)
            if verdict.lost:
                core.lose(member.member, verdict.reason)
            else:
                look_again_s = min(look_again_s, verdict.look_again_s)
        if state.phase in ASSIGNING:
            for given in assign(core.candidates(), core.wanted):
                core.assign(given.member, given.stage, given.reason, given.role)
            if self._may_move:
                self._may_move = False
                move = rebalance(core.candidates(), core.wanted, self._move_cost())
                if move is not None:
                    core.assign(move.member, move.stage, move.reason, move.role)
        if state.phase is Phase.OPEN:
            limit_s, _ = self._limit(state.lease_s, OPEN_SLACK)
            held = [
                Held(
                    lease.lease_id, lease.member, now - max(lease.granted_at, core.going_since),
                    sum(other.member == lease.member and other.lease_id > lease.lease_id and other.done_at is not None
                        for other in state.leases.values()),
                )
                for lease in state.outstanding
            ]  # fmt: skip
            for lease_id, reason in overdue(held, limit_s):
                logger.warning("lease %d goes back: %s", lease_id, reason)
                core.emit("lease_returned", lease_id=lease_id, reason=reason)
        return look_again_s

    def _move_cost(self) -> float:
        prepare_s, open_s = self._core.state.prepare_s, self._core.state.open_s
        return move_cost(median(prepare_s) if prepare_s else None, median(open_s) if open_s else None)

    def _limit(self, history: list[float], slack: float) -> tuple[float, str]:
        rounds = self._core.config.rounds
        return deadline(history, floor_s=rounds.deadline_floor_s, ceiling_s=rounds.deadline_ceiling_s, slack=slack)

    # ---- phases ------------------------------------------------------------------------------------------------------

    def facts(self, now: float) -> Facts:
        """The run as the phase decision sees it."""
        core, state, rounds = self._core, self._core.state, self._core.config.rounds
        stages = []
        for stage in range(state.stages):
            live = state.replicas(stage)
            ready = [one for one in live if state.is_ready(one)]
            # After a restart the sums of this round are told again; an update that is in does not replace them.
            told = {one.member for one in ready if (one.member, one.generation) in core.reports}
            trained = [one for one in ready if one.late_round != state.round]
            handed_in = state.updates.keys() | state.audit.excluded.keys()
            awaited = sum((stage, one.member) not in handed_in or one.member not in told for one in trained)
            updates = sum(at == stage for at, _ in state.updates)
            stages.append(StageFacts(len(live), len(ready), awaited, updates))
        shown = [one for one in state.audit.audits.values() if not one.missing]
        return Facts(
            phase=state.phase,
            since=max(state.phase_since, core.going_since),
            stages=tuple(stages),
            covered_since=state.covered_since,
            replicas_wanted=rounds.replicas_wanted,
            gather_s=rounds.gather_s,
            versions_left=rounds.count - state.version,
            base_evaluated=not wants_evaluation(state, core.config),
            planned_rows=state.planned_rows,
            target_rows=core.wanted_data[0],
            leases_outstanding=len(state.outstanding),
            frames_done=sum(lease.frames for lease in state.leases.values() if lease.done_at is not None),
            prepare_limit_s=self._limit(state.prepare_s, OPEN_SLACK)[0],
            open_limit_s=self._limit(state.open_s, OPEN_SLACK)[0],
            close_limit_s=self._limit(state.close_s, OPEN_SLACK)[0],
            evaluate_limit_s=rounds.deadline_ceiling_s,
            aggregated=state.aggregated,
            audits_open=len(shown),
            audits_behind=state.round - min((one.round for one in shown), default=state.round),
        )

    def _enter(self, decision: Decision) -> None:
        core, state, rounds = self._core, self._core.state, self._core.config.rounds
        assert decision.enter is not None
        more: dict[str, Any] = {}
        if decision.enter is Phase.PREPARING:
            core.reports.clear()
            more["round"] = state.round + 1
        elif decision.enter is Phase.OPEN:
            ready = sum(state.is_ready(one) for one in state.replicas(0))
            rows, frames = core.sizes.target(rounds.inner_steps, ready, rounds.frame_target)
            more = {
                "target_rows": rows,
                "target_frames": frames,
                "total_frames": rounds.total_frames or state.total_frames or rounds.count * frames,
            }
        elif decision.enter is Phase.AGGREGATING:
            more = closed(state, core.reports.values(), core.bytes_sent)
        core.emit("phase", phase=decision.enter.value, reason=decision.reason, **more)
        self._may_move = decision.enter is Phase.PREPARING
        logger.info("round %d enters %s: %s", state.round, state.phase, decision.reason)
