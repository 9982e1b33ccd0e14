"""Over any interleaving of grants, losses, late reports, restarts and rounds, no sample is lost and repeats are counted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from small_run import small_run

from common.faults import NO_FAULTS
from coordinator.closing import closed
from coordinator.core import Core
from coordinator.journal import Journal
from coordinator.leases import MOST_RETRIES
from coordinator.rounds import Phase
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from coordinator.start import fold
from protocol.generated import hocket_pb2 as pb

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TOML = small_run(3) + "microbatches_per_inner_step = 2\n"
ROWS = 20  # six leases of three rows, and one of two
HOLDERS = ("a", "b", "c")
LATER = "z"
Position = tuple[int, int]
holders = st.sampled_from(HOLDERS)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Holder:
    """What a replica of stage 0 knows; gone when it dies."""

    known_lease_id: int = 0
    held: list[pb.LeaseReply] = field(default_factory=list)
    trained: list[pb.LeaseReply] = field(default_factory=list)
    failed: list[pb.LeaseReply] = field(default_factory=list)  # finished, but their second microbatch found nobody


def positions(lease: pb.LeaseReply) -> list[Position]:
    return [(lease.epoch, row) for row in range(lease.start, lease.stop)]


class Leases(RuleBasedStateMachine):
    """Three replicas of stage 0, and one of stage 1 that works on whatever reaches it and never dies.

    `published` counts how often each position is in a version by stage 0, `later` how often by stage 1; `failed` how often it was
    due again after a part of its lease had failed, and `given_up` are those that are not due again.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.clock = Time()
        self.journal = Journal(self.folder / "journal.sqlite", NO_FAULTS)
        self.core = Core(RunConfig.parse(TOML), self.journal, RunState(), NO_FAULTS, self.clock)
        dataset = {"rows": ROWS, "frames": 100 * ROWS, "heldout_rows": 3, "cid": "d", "codec": {}, "pinned": []}
        self.core.emit("created", run_id="r", run_toml=TOML, stages=2, model_config={}, dataset=dataset)
        self.core.emit("version", version=0, round=0, cid="v0", frames=0, record=None)
        self.core.emit("started", pid=1)
        self.memory: dict[str, Holder] = {}
        self.reached: list[pb.LeaseReply] = []
        self.reached_ids: list[int] = []
        self.published: Counter[Position] = Counter()
        self.later: Counter[Position] = Counter()
        self.failed: Counter[Position] = Counter()
        self.given_up: set[Position] = set()
        self.repeated = 0
        for member in (*HOLDERS, LATER):
            self.come(member)
        self.open()

    # ---- what members and the driver do ------------------------------------------------------------------------------

    def come(self, member: str) -> None:
        self.core.join(member, pb.JoinRequest(peer_id=f"peer-{member}"), ("aa", os.urandom(4).hex(), 1))
        self.core.assign(member, 1 if member == LATER else 0, "drawn")
        self.core.emit("ready", member=member, base_cid=self.core.state.base_cid)
        self.memory[member] = Holder()

    def open(self) -> None:
        """Into the next round; replicas load its base."""
        state = self.core.state
        self.core.emit("phase", phase=Phase.PREPARING.value, reason="drawn", round=state.round + 1)
        for member in self.memory:
            self.core.emit("ready", member=member, base_cid=state.base_cid)
            self.memory[member] = Holder(self.memory[member].known_lease_id)
        self.reached, self.reached_ids = [], []
        rows, frames = self.core.sizes.target(2, 3)
        self.core.emit("phase", phase=Phase.OPEN.value, reason="drawn", target_rows=rows, target_frames=frames, total_frames=9)

    @rule(member=holders, heard=st.booleans())
    def ask(self, member: str, heard: bool) -> None:
        """A replica asks for a lease; the answer is lost, perhaps."""
        if member not in self.memory:
            return
        one, known = self.memory[member], self.core.state.members[member]
        request = pb.LeaseRequest(
            round=self.core.state.round, generation=known.generation, known_lease_id=one.known_lease_id
        )  # fmt: skip
        before, next_lease_id = list(self.core.state.returned), self.core.state.next_lease_id
        reply = self.core.grant_lease(known, request, ("aa", "bb", 1))
        if not isinstance(reply, pb.LeaseReply):
            return
        if reply.lease_id == next_lease_id and before:
            assert (reply.epoch, reply.start) == (min(before).epoch, min(before).start), "what came back goes first"
        if heard:
            one.known_lease_id = reply.lease_id
            one.held.append(reply)

    @rule(member=holders, half=st.booleans(), fails=st.booleans())
    def train(self, member: str, half: bool, fails: bool = False) -> None:
        """A replica works on a lease, and stage 1 with it; half: only the first microbatch for now; fails: only that at all."""
        if member not in self.memory:
            return
        if not self.memory[member].held:
            self.ask(member, heard=True)
        if not self.memory[member].held:
            return
        one = self.memory[member]
        lease = one.held[0]
        if lease not in self.reached:
            self.reached.append(lease)
        fails = fails and lease.first_microbatch_id + 1 not in self.reached_ids
        ids = range(lease.first_microbatch_id, lease.first_microbatch_id + (1 if half or fails else 2))
        self.reached_ids += [id for id in ids if id not in self.reached_ids]
        if fails:
            one.failed.append(one.held.pop(0))
        elif not half:
            one.trained.append(one.held.pop(0))

    @rule(member=holders)
    def tell(self, member: str) -> None:
        """A replica reports all that it has finished, as it does again and again."""
        if member not in self.memory:
            return
        known = self.core.state.members[member]
        report = pb.MemberReport(round=self.core.state.round, stage=0, generation=known.generation, pid=1)
        one = self.memory[member]
        for lease in [*one.trained, *one.failed]:
            whole = lease in one.trained
            frames = (100 if whole else 50) * (lease.stop - lease.start)
            report.leases_done.add(lease_id=lease.lease_id, frames=frames, microbatches=2 if whole else 1)
        self.core.take_report(known, report)

    @rule(number=st.integers(0, 5))
    def late(self, number: int) -> None:
        """A lease takes too long."""
        outstanding = self.core.state.outstanding
        if outstanding:
            self.core.emit("lease_returned", lease_id=outstanding[number % len(outstanding)].lease_id, reason="drawn")

    @rule(member=holders)
    def die(self, member: str) -> None:
        if member in self.memory:
            self.core.lose(member, "drawn")
            del self.memory[member]

    @rule(member=holders)
    def come_back(self, member: str) -> None:
        if member not in self.memory:
            self.come(member)

    @rule()
    def restart(self) -> None:
        """The coordinator dies; what members reported is asked for again, the rest is in the journal."""
        before = self.core.state
        self.journal.close()
        self.journal = Journal(self.folder / "journal.sqlite", NO_FAULTS)
        self.core = Core(RunConfig.parse(TOML), self.journal, fold(self.journal), NO_FAULTS, self.clock)
        assert self.core.state == before
        self.core.emit("started", pid=1)

    @rule(later=st.booleans(), silent=st.sets(holders))
    def close(self, later: bool, silent: set[str]) -> None:
        """The round closes; some hand nothing in."""
        core, state = self.core, self.core.state
        for member in HOLDERS:
            self.tell(member)
        core.emit("phase", phase=Phase.CLOSING.value, reason="drawn")
        updates = {member: one for member, one in self.memory.items()
                   if member not in silent and (one.trained or one.failed)}  # fmt: skip
        ids = {member: [id for lease in one.trained for id in (lease.first_microbatch_id, lease.first_microbatch_id + 1)]
               + [lease.first_microbatch_id for lease in one.failed] for member, one in updates.items()}  # fmt: skip
        if later and self.reached_ids:
            ids[LATER] = self.reached_ids
        for member, counted in ids.items():
            core.emit(
                "update", member=member, stage=int(member == LATER), generation=state.members[member].generation,
                round=state.round, sha256="00", size_bytes=1, frames=1, inner_steps=1,
                microbatches=[(one, 1) for one in counted], duplicates=0, dropped=0, path="p", nonce=None,
            )  # fmt: skip
        if not ids:
            core.emit("phase", phase=Phase.GATHERING.value, reason="no update")
        else:
            result = closed(state, core.reports.values(), core.bytes_sent)
            self.repeated += result["counts"]["repeated_rows"]
            assert result["counts"]["repeated_rows"] <= sum(one.range.rows for one in state.leases.values())
            for lease_id, _ in result["due_again"]:
                fate = state.fate(state.leases[lease_id])
                span = state.leases[lease_id].range
                self.failed.update((span.epoch, row) for row in range(span.start, span.stop) if not fate.whole)
            core.emit("phase", phase=Phase.AGGREGATING.value, reason="drawn", **result)
            due = dict(result["due_again"])
            for one in updates.values():
                self.published.update(position for lease in one.trained for position in positions(lease))
                for lease in one.failed:
                    if lease.lease_id not in due and not state.leases[lease.lease_id].returned:
                        self.given_up.update(positions(lease))
            assert all(self.failed[position] >= MOST_RETRIES for position in self.given_up)
            if LATER in ids:
                self.later.update(position for one in self.reached for position in positions(one))
            version = state.version + 1
            core.emit("version", version=version, round=state.round, cid=f"v{version}", frames=0, record=None)
            core.reports.clear()
        self.open()

    # ---- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every position that was handed out is in a version, is held by somebody in this round, or waits to be handed out."""
        state = self.core.state
        somewhere = set(self.published) | self.given_up
        for span in [*state.returned, *(one.range for one in state.leases.values() if not one.returned)]:
            somewhere |= {(span.epoch, row) for row in range(span.start, span.stop)}
        for epoch in range(state.cursor.epoch + 1):
            end = ROWS if epoch < state.cursor.epoch else state.cursor.position
            assert {(epoch, row) for row in range(end)} <= somewhere

    @invariant()
    def repeats_are_counted(self) -> None:
        repeats = max((sum(times - 1 for times in counts.values()) for counts in (self.published, self.later)), default=0)
        assert repeats <= self.repeated

    def teardown(self) -> None:
        """With replicas that behave, every position of all epochs but the last is in a version soon."""
        self.close(later=True, silent=set())
        until = self.core.state.cursor.epoch + 1
        for member in HOLDERS:
            self.come_back(member)
        for _ in range(40):
            for _ in range(4):
                for member in HOLDERS:
                    self.ask(member, heard=True)
                    self.train(member, half=False)
                    self.tell(member)
            self.close(later=True, silent=set())
            self.nothing_is_lost()
            self.repeats_are_counted()
            if self.core.state.cursor.epoch > until:
                break
        done = {position for position in {*self.published, *self.given_up} if position[0] < until}
        self.journal.close()
        shutil.rmtree(self.folder)
        assert done == {(epoch, row) for epoch in range(until) for row in range(ROWS)}


Leases.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestLeases = Leases.TestCase
