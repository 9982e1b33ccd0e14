"""Messages that are lost, doubled, late or out of order, clocks that jump, processes that start anew: an error or a retry each
time, and nothing that was acknowledged is lost. A run whose members behave at last comes to its end.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import forked_core
import pytest
from core_members import Crowd, Member
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scripted_run import MEMBERS, MEMORY, ROUNDS, outcome, write_run

from common.clock import SteadyClock
from common.faults import NO_FAULTS
from coordinator.rounds import Phase
from coordinator.start import fold
from protocol.generated import hocket_pb2 as pb
from protocol.identity import PeerKey

PEERS = [PeerKey.generate() for _ in range(MEMBERS)]
FATES = ("arrives", "arrives", "arrives", "is lost", "answer is lost", "twice", "late")
numbers = st.integers(0, MEMBERS - 1)
PASS_S = 0.25
MOST_PASSES = 1500


class Line:
    """The way to a coordinator in this process; `fates` says what becomes of the next calls, then all arrive."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.run_toml = write_run(folder)
        self.loop = asyncio.new_event_loop()
        self.now = 1_000_000.0
        self.wall_ahead_s = 0.0
        self.fates: list[str] = []
        self.sent: list[forked_core.Frame] = []
        self.delayed: list[forked_core.Frame] = []
        self.start()

    def start(self) -> None:
        clock = SteadyClock(wall=self.wall, monotonic=lambda: self.now)
        self.pieces = self.loop.run_until_complete(
            forked_core.put_together(self.state_dir, self.run_toml, clock, NO_FAULTS, self.wall)
        )

    def wall(self) -> float:
        """The coordinator's system clock; members have the right time."""
        return self.now + self.wall_ahead_s

    def restart(self) -> None:
        self.pieces.journal.close()
        self.start()

    def call(self, method: str, *parts: bytes) -> forked_core.Frame:
        frame = forked_core.Frame({"method": method}, list(parts))
        self.sent.append(frame)
        fate = self.fates.pop(0) if self.fates else "arrives"
        if fate == "late":
            self.delayed.append(frame)
        if fate in ("is lost", "late"):
            raise forked_core.Gone
        reply = self.deliver(frame)
        if fate == "twice":
            self.deliver(frame)
        if fate == "answer is lost":
            raise forked_core.Gone
        return reply

    def deliver(self, frame: forked_core.Frame) -> forked_core.Frame:
        head, parts = self.loop.run_until_complete(forked_core.answer(self.pieces.door, frame, NO_FAULTS))
        self.loop.run_until_complete(self.pieces.driver.step())
        return forked_core.Frame(head, parts)

    def close(self) -> None:
        self.pieces.journal.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class AnyOrder(RuleBasedStateMachine):
    """Five members, two stages; whoever is left at the end behaves."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.line = Line(self.folder)
        link: Any = self.line
        self.crowd = Crowd([Member(number + 1, peer) for number, peer in enumerate(PEERS)], link)

    @rule(data=st.data(), fates=st.lists(st.sampled_from(FATES), max_size=6))
    def act(self, data: st.DataObject, fates: list[str]) -> None:
        """Some looks of members at the run, in any order."""
        self.line.fates = fates
        for number in data.draw(st.lists(numbers, min_size=1, max_size=8)):
            self.line.now += PASS_S
            self.look(self.one(number))
        self.line.fates = []

    def one(self, number: int) -> Member:
        return self.crowd.members[number % len(self.crowd.members)]

    def look(self, member: Member) -> None:
        try:
            member.act()
        except forked_core.Gone:
            pass  # asked again at the next look
        except forked_core.Refusal as refusal:
            # A clock that is wrong, or a member that was forgotten; nothing else is refused to members that behave.
            assert refusal.status == "NOT_FOUND" or self.line.wall_ahead_s, refusal

    @rule(number=st.integers(0, 1 << 16))
    def replay(self, number: int) -> None:
        """Any earlier message once more: it is refused as received before, unless it never arrived."""
        if not self.line.sent:
            return
        frame = self.line.sent[number % len(self.line.sent)]
        before, kept = self.line.pieces.core.state.seq, frame in self.line.delayed
        head = self.line.deliver(frame).head
        if kept:
            self.line.delayed.remove(frame)
        assert head["status"] in ("OK", "UNAUTHENTICATED", "NOT_FOUND", "ABORTED", "PERMISSION_DENIED")
        assert self.line.pieces.core.state.seq >= before

    @rule()
    def late(self) -> None:
        """The oldest of the messages under way arrives at last."""
        if self.line.delayed:
            self.line.deliver(self.line.delayed.pop(0))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.line.now += seconds
        self.line.loop.run_until_complete(self.line.pieces.driver.step())

    @rule()
    def restart(self) -> None:
        """The coordinator is killed and started again."""
        self.line.restart()

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        """A member's process starts anew."""
        self.one(number).enter(self.crowd.link, self.crowd)

    @rule(number=numbers)
    def die(self, number: int) -> None:
        """A member is gone for good; two are left at least, one a stage."""
        if len(self.crowd.members) > 2:
            self.crowd.members.remove(self.one(number))

    @rule(number=numbers, twice=st.booleans())
    def leave(self, number: int, twice: bool) -> None:
        member = self.one(number)
        if member.joined and not self.line.wall_ahead_s:
            self.line.fates = ["twice"] if twice else []
            try:
                member.ask("Leave", "leave", pb.LeaveRequest(reason="drawn"), pb.LeaveReply)
            except forked_core.Refusal as refusal:
                assert refusal.status == "NOT_FOUND"
            member.joined = False

    @rule(ahead_s=st.sampled_from([0.0, 0.0, 3600.0, -3600.0, 30.0]))
    def set_clock(self, ahead_s: float) -> None:
        """The coordinator's system clock is set, wrongly or rightly."""
        self.line.wall_ahead_s = ahead_s

    @invariant()
    def the_journal_is_the_state(self) -> None:
        pieces = self.line.pieces
        assert fold(pieces.journal) == pieces.core.state

    def teardown(self) -> None:
        line, members = self.line, self.crowd.members
        line.wall_ahead_s = 0.0
        for _ in range(MOST_PASSES):
            line.now += PASS_S
            for one in members:
                self.look(one)
            if line.pieces.core.state.phase is Phase.FINISHED:
                break
        state, reason = line.pieces.core.state, line.pieces.core.reason
        line.close()
        found = outcome(line.state_dir, self.crowd)
        shutil.rmtree(self.folder)
        assert state.phase is Phase.FINISHED, reason
        assert state.version == ROUNDS and found["lost_updates"] == []
        for record in state.rounds:
            assert record["duplicate_microbatches"] == 0
            assert all(stage["accepted"] + len(stage["refused"]) <= MEMBERS for stage in record["stages"])
            assert any(stage["accepted"] for stage in record["stages"])
        assert sum(record["frames"] for record in state.rounds) == state.frames_counted


AnyOrder.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestAnyOrder = pytest.mark.timeout(240)(AnyOrder.TestCase)


@pytest.mark.parametrize("phase", [pb.OPEN, pb.CLOSING])
def test_a_coordinator_that_was_stopped_for_long_waits_for_those_whom_it_could_not_hear(tmp_path: Path, phase: int) -> None:
    line = Line(tmp_path)
    link: Any = line
    crowd = Crowd([Member(number + 1, peer) for number, peer in enumerate(PEERS)], link)
    held_up = False
    for _ in range(MOST_PASSES):
        for one in crowd.members:
            line.now += PASS_S / 4
            one.act()
            if not held_up and one.view.phase == phase:
                # A minute and more in which this process gets no processor: nobody's silence, and no deadline runs.
                line.now, held_up = line.now + 90.0, True
        if line.pieces.core.state.phase is Phase.FINISHED:
            break
    rounds, members = line.pieces.core.state.rounds, line.pieces.core.state.members.values()
    line.close()
    assert held_up and all(one.live and one.generation == 1 for one in members)
    assert [[stage["accepted"] for stage in one["stages"]] for one in rounds] == [[2, 2]] * ROUNDS
    assert [one["frames"] for one in rounds] == [1600] * ROUNDS
