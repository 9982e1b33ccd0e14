"""Standbys, promotions and fencing, in virtual time: the real driver, journal and uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from virtual_run import Behaviour, Scripted, VirtualRun

from common.errors import Code, HocketError
from coordinator.assignment import Role
from coordinator.core import Refused
from coordinator.journal import Event
from coordinator.rounds import Phase
from coordinator.run import Member
from coordinator.status import status_json
from coordinator.views import roster
from protocol.generated import hocket_pb2 as pb

CALM = Behaviour(silent=(0, 0), ticks_per_lease=2, hands_nothing_in=False)


class Watched(VirtualRun):
    """A virtual run that is driven by what is seen of it."""

    def __init__(self, folder: Path, members: int) -> None:
        super().__init__(folder, [CALM] * members, seed=1)
        self.ticks = 0

    async def until(self, holds: Callable[[], bool], *, without: str = "", limit: int = 200) -> None:
        """Tick until `holds`; the member `without` does nothing meanwhile."""
        for _ in range(limit):
            if holds():
                return
            self.ticks += 1
            kept = self.members
            self.members = [one for one in kept if one.name != without]
            await self.tick(self.ticks, behave=False)
            self.members = [*self.members, *(one for one in kept if one.name == without)]
        raise AssertionError(self.core.reason)

    async def pass_time(self, seconds: float) -> None:
        """Tick for so long, everybody at work."""
        ends = self.clock.now + seconds
        await self.until(lambda: self.clock.now >= ends)

    @property
    def opened(self) -> bool:
        """Open, every replica at work and every standby ready."""
        state = self.core.state
        everyone = [one for stage in range(2) for one in state.replicas(stage) + state.standbys(stage)]
        return state.phase is Phase.OPEN and all(state.is_ready(one) for one in everyone)

    def scripted(self, name: str) -> Scripted:
        return next(one for one in self.members if one.name == name)

    def spare(self) -> Member:
        (spare,) = [one for stage in range(2) for one in self.core.state.standbys(stage)]
        return spare

    def events(self, since: int) -> list[Event]:
        return [event for event in self.journal.events() if event.seq > since]


def test_a_killed_replica_is_replaced_in_the_look_in_which_it_is_given_up_and_what_it_sends_later_is_refused(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 5)
        core, state = virtual.core, virtual.core.state
        await virtual.until(lambda: virtual.opened)
        spare = virtual.spare()
        assert spare.stage is not None and state.is_ready(spare)
        killed = state.replicas(spare.stage)[0]
        before = virtual.scripted(killed.member)
        number, generation = state.seq, spare.generation
        core.connection_broke(killed.member)
        virtual.clock.now += 0.9
        await virtual.driver.step()
        assert killed.live
        virtual.clock.now += 0.2
        # Meanwhile the others were heard of.
        for one in state.members.values():
            if one is not killed:
                core.seen(one.member)
        await virtual.driver.step()
        lost, promoted = virtual.events(number)[:2]
        assert (lost.kind, lost.data["member"]) == ("lost", killed.member) and "connection broke" in lost.data["reason"]
        assert (promoted.kind, promoted.data["member"]) == ("assigned", spare.member)
        assert promoted.time == lost.time
        assert (spare.role, spare.generation) == (Role.REPLICA, generation + 1)
        listed = {entry.member_id: entry for entry in roster(state).entries}
        assert listed[spare.member].role == pb.REPLICA and killed.member not in listed

        # It was not dead: what it does under its old generation is refused, and it becomes the standby.
        core.seen(killed.member)
        core.take_report(killed, pb.MemberReport(round=state.round, stage=spare.stage, generation=before.generation))
        assert (killed.member, before.generation) not in core.reports
        stale = pb.LeaseRequest(round=state.round, generation=before.generation)
        assert isinstance(core.grant_lease(killed, stale, ("aa", "01", 1)), Refused)
        await virtual.until(lambda: state.phase is Phase.CLOSING and killed.role is Role.STANDBY, without=killed.member)
        receipt = await virtual.submit(before, spare.stage)
        assert not receipt.accepted and "current assignment" in receipt.reason
        # Nor is one taken that it makes up as a standby, under its present generation.
        made_up = replace(before, generation=killed.generation)
        assert not (await virtual.submit(made_up, spare.stage)).accepted
        await virtual.until(lambda: state.phase is Phase.FINISHED)
        assert killed.member not in {member for one in state.rounds[0]["stages"] for member in one["accepted_members"]}
        assert all(one["duplicates"] == 0 for record in state.rounds for one in record["microbatches"])
        assert virtual.folded() == state
        virtual.journal.close()

    asyncio.run(run())


def test_a_standby_trains_nothing_is_not_waited_for_and_is_shown(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 5)
        core, state = virtual.core, virtual.core.state
        await virtual.until(lambda: virtual.opened)
        spare = virtual.spare()
        assert sum(facts.live for facts in virtual.driver.facts(virtual.clock.now).stages) == 4
        assert isinstance(
            core.grant_lease(spare, pb.LeaseRequest(round=state.round, generation=spare.generation), ("aa", "02", 1)), Refused
        )
        shown = status_json(core)["stages"][spare.stage]["standbys"]
        assert [(one["member"], one["ready"], one["generation"]) for one in shown] == [(spare.member, True, spare.generation)]
        entry = next(one for one in roster(state).entries if one.member_id == spare.member)
        assert entry.role == pb.STANDBY and entry.stage == spare.stage
        # A standby that falls silent keeps nobody waiting.
        await virtual.until(lambda: state.phase is Phase.FINISHED, without=spare.member, limit=60)
        assert {one.member for stage in range(2) for one in state.replicas(stage)} == {
            one.name for one in virtual.members if one.name != spare.member
        }
        virtual.journal.close()

    asyncio.run(run())


def test_a_liar_evicts_nobody_that_beats_and_helps_to_find_who_is_frozen(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 5)
        state = virtual.core.state
        await virtual.until(lambda: virtual.opened)
        frozen = state.replicas(1)[0]
        callers = [one.member for one in state.replicas(0)]
        for one in virtual.members:
            if one.name in callers:
                one.behaviour = replace(CALM, suspects=tuple(other.peer_id for other in state.replicas(1)))
        round_then = state.round
        await virtual.until(lambda: state.round > round_then and virtual.opened)
        assert not any(event.kind == "lost" for event in virtual.events(0))
        began = virtual.clock.now
        await virtual.until(lambda: not frozen.live, without=frozen.member)
        # Two callers say so: half a second and more without a word is enough, where silence alone is believed after four.
        assert virtual.clock.now - began <= 1.0 + 0.5
        assert "2 callers" in frozen.reason
        assert all(one.live for one in state.members.values() if one is not frozen)
        virtual.journal.close()

    asyncio.run(run())


def test_a_member_that_beats_but_that_no_caller_reaches_is_replaced_where_a_standby_waits(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 5)
        state = virtual.core.state
        for one in virtual.members:
            one.behaviour = replace(CALM, ticks_per_lease=10**6)
        await virtual.until(lambda: virtual.opened)
        # Of stage 1 one is lost, replaced, and back: now it stands by for the stage.
        spare, unreached = state.replicas(1)
        await virtual.until(lambda: not spare.live, without=spare.member)
        await virtual.until(lambda: virtual.opened and spare.role is Role.STANDBY)
        assert spare.stage == 1

        def suspect(callers: list[Member]) -> None:
            for one in virtual.members:
                if one.name in [caller.member for caller in callers]:
                    one.behaviour = replace(one.behaviour, suspects=(unreached.peer_id,))

        number = state.seq
        suspect(state.replicas(0)[:1])
        await virtual.pass_time(12.0)
        suspect(state.replicas(0))
        await virtual.pass_time(7.0)
        assert all(one.live for one in state.members.values()) and unreached.role is Role.REPLICA
        await virtual.pass_time(2.0)
        lost, promoted = [event for event in virtual.events(number) if event.kind in ("lost", "assigned")][:2]
        assert (lost.kind, lost.data["member"]) == ("lost", unreached.member) and "no caller reaches it" in lost.data["reason"]
        assert (promoted.data["member"], promoted.data["stage"], promoted.data["role"]) == (spare.member, 1, "replica")
        # It is there, so it stands by; where it is to be reached again, it may be promoted in its turn.
        assert unreached.live and unreached.role is Role.STANDBY
        virtual.journal.close()

    asyncio.run(run())


def test_a_member_gets_a_stage_that_fits_its_memory_or_is_refused_with_the_size_that_would_do(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 0)
        core, state = virtual.core, virtual.core.state
        with pytest.raises(HocketError) as caught:
            core.join("tiny", pb.JoinRequest(peer_id="p", memory_limit_bytes=(1 << 20) - 1), ("aa", "03", 1))
        assert caught.value.code is Code.JOIN_REFUSED and "1 MiB" in caught.value.remedy
        assert "tiny" not in state.members
        for name, limit_bytes in (("large", 4 << 20), ("small", 2 << 20)):
            core.join(name, pb.JoinRequest(peer_id=name, memory_limit_bytes=limit_bytes), ("aa", name, 1))
            await virtual.driver.step()
        # The large one came first and got the small stage; it made room.
        assert {one.member: one.stage for one in state.members.values()} == {"large": 1, "small": 0}
        virtual.journal.close()

    asyncio.run(run())


def test_a_replica_moves_to_the_slowest_stage_when_a_round_begins_and_stays_there(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 7)
        core, state = virtual.core, virtual.core.state
        for one in virtual.members:
            one.behaviour = replace(CALM, frames_per_s=(100.0, 30.0))
        await virtual.until(lambda: virtual.opened)
        assert [len(state.replicas(stage)) for stage in range(2)] == [3, 3]
        await virtual.until(lambda: state.phase is Phase.FINISHED)
        (moved,) = [event for event in virtual.events(0) if event.kind == "assigned" and "moved" in event.data["reason"]]
        assert moved.data["stage"] == 1 and "33% faster" in moved.data["reason"]
        before = max((event for event in virtual.events(0) if event.seq < moved.seq), key=lambda event: event.seq)
        assert (before.kind, before.data["phase"], before.data["round"]) == ("phase", "PREPARING", 2)
        assert [len(state.replicas(stage)) for stage in range(2)] == [2, 4] and core.reason
        assert all(record["frames"] for record in state.rounds)
        virtual.journal.close()

    asyncio.run(run())


def test_an_open_round_with_a_stage_that_nobody_can_take_waits_says_so_and_goes_on_when_somebody_comes(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = Watched(tmp_path, 2)
        core, state = virtual.core, virtual.core.state
        await virtual.until(lambda: virtual.opened)
        (lone,) = state.replicas(1)
        await virtual.until(lambda: not lone.live, without=lone.member)
        await virtual.until(lambda: "stage 1 has no replica" in core.reason, without=lone.member)
        assert state.phase is Phase.OPEN and state.replicas(0), "the only replica of stage 0 stays where it is"
        await virtual.until(lambda: "stays open" in core.reason, without=lone.member)
        assert state.phase is Phase.OPEN and state.round == 1
        await virtual.until(lambda: state.phase is Phase.FINISHED)
        assert state.version == 2 and [record["frames"] for record in state.rounds] == [600, 600]
        virtual.journal.close()

    asyncio.run(run())
