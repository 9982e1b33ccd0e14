"""A coordinator without sockets, in virtual time: the real driver, journal, uploads and aggregation, and scripted members."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from small_run import small_run

from common.faults import NO_FAULTS
from coordinator.assembly import Assembly
from coordinator.assignment import Role
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.core import Core
from coordinator.driver import Driver
from coordinator.journal import Journal
from coordinator.rounds import Phase
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from coordinator.uploads import Uploads
from coordinator.versions import Versions
from coordinator.views import evaluator
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.manifest import VersionManifest
from protocol.tensor_files import file_parts, write_tensors
from swarm.blocks import BlockStore

STAGES = 2
NEEDED = [1 << 20, 3 << 20]  # bytes of memory of each stage
TOML = small_run(2, run_id="virtual") + """microbatches_per_inner_step = 2
replicas_wanted = 2
gather_s = 10
deadline_floor_s = 5
deadline_ceiling_s = 60
[membership]
silence_s = 4
standbys = 1
"""
# Virtual time should not wait for a real disk.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TICK_S = 0.5
STEP_TICKS = 2


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Behaviour:
    """When a member is silent (ticks), how many ticks a lease takes it, and what it does and says.

    Args:
        hands_nothing_in: no update comes of it. suspects: peer ids, in each report.
        keeps: it saves its inner progress after each microbatch, and goes on from there under a later generation.
        frames_per_s: by stage, what it says that it can do; empty: nothing.
    """

    silent: tuple[int, int]
    ticks_per_lease: int
    hands_nothing_in: bool
    suspects: tuple[str, ...] = ()
    keeps: bool = False
    frames_per_s: tuple[float, ...] = ()


@dataclass
class Scripted:
    """A member's memory."""

    name: str
    behaviour: Behaviour
    round: int = 0
    generation: int = 0
    stage: int = -1
    frames: int = 0
    microbatches: dict[int, int] = field(default_factory=dict)
    done: list[pb.LeaseDone] = field(default_factory=list)
    lease: pb.LeaseReply | None = None
    left: int = 0
    submitted: bool = False
    resumed: list[int] = field(default_factory=list)

    def later(self, round: int, generation: int, stage: int) -> Scripted:
        """The memory of the member's next round or generation."""
        made = Scripted(self.name, self.behaviour, round, generation, stage=stage)
        if self.behaviour.keeps and (self.round, self.stage) == (round, stage):
            made.microbatches, made.done = self.microbatches, self.done
            made.resumed = [*self.resumed, self.generation]
        return made


class VirtualRun:
    """A coordinator without sockets and its members."""

    def __init__(self, folder: Path, behaviours: list[Behaviour], seed: int) -> None:
        self.clock = Clock()
        self.folder = folder
        self.draw = random.Random(seed)
        self.ticks = 0      # that `until` has gone through
        self.key, self.store = MemberKey.generate(), BlockStore(folder / "blocks")
        self.versions = Versions(folder / "versions", self.store, self.key)
        self.members = [Scripted(f"m{index}", behaviour) for index, behaviour in enumerate(behaviours)]
        self.start()

    def start(self) -> None:
        """What a process of the coordinator does at its start; nothing but the files is carried over."""
        self.journal = Journal(self.folder / "journal.sqlite", NO_FAULTS)
        self.core = Core(RunConfig.parse(TOML), self.journal, self.folded(), NO_FAULTS, self.clock)
        if not self.core.state.run_id:
            self._found()
        self.core.manifest = self.versions.load(self.core.state.base_cid)
        self.core.emit("started", pid=1)
        self.driver = Driver(self.core, Assembly(self.core, self.versions, self.folder))
        secrets = AuditSecrets(self.key, "virtual")
        auditing = Auditing(self.core, self.versions, self.store, self.key, secrets, self.folder)
        auditing.resume()
        self.uploads = Uploads(self.core, self.folder, auditing)

    def folded(self) -> RunState:
        state = RunState()
        for event in self.journal.events():
            state.apply(event)
        return state

    def restart(self, down_s: float) -> None:
        """Killed, and started again a while later."""
        self.journal.close()
        self.clock.now += down_s
        before = self.core.state
        self.start()
        assert self.core.state.seq == before.seq + 1 and self.core.state.base_cid == before.base_cid

    def _found(self) -> None:
        """Version 0 of a model of two small stages."""
        cid = BlockStore(self.folder / "blocks").add_bytes(b"dataset")
        dataset = {"rows": 50, "frames": 5000, "heldout_rows": 3, "cid": cid, "codec": {}, "pinned": [cid]}
        self.core.emit(
            "created", run_id="virtual", run_toml=TOML, stages=STAGES, model_config={}, dataset=dataset, stage_bytes=NEEDED
        )  # fmt: skip
        tensors = {"w": np.ones((2, 3), np.float32)}
        stages = []
        for stage in range(STAGES):
            path = self.versions.weights_path(0, stage)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors)
            stages.append(self.versions.stage_file(0, stage, momentum=False))
        manifest = VersionManifest(run_id="virtual", version=0, round=0, model={}, stages=stages, dataset_cid=cid)
        self.core.emit("version", version=0, round=0, cid=self.versions.publish(manifest), frames=0, record=None)

    async def until(self, holds: Callable[[], bool], *, behave: bool, limit: int) -> None:
        """Go on, tick by tick, until something holds; a mistake after `limit` ticks of the run's beginning."""
        while not holds():
            self.ticks += 1
            await self.tick(self.ticks, behave=behave)
            assert self.ticks < limit, self.core.reason

    async def tick(self, number: int, *, behave: bool) -> None:
        self.clock.now += TICK_S
        for one in self.members:
            start, stop = one.behaviour.silent
            if behave or not start <= number < stop:
                await self.act(one, behave)
        await self.driver.step()

    async def act(self, one: Scripted, behave: bool) -> None:
        core, state = self.core, self.core.state
        if core.seen(one.name) is None:
            core.join(one.name, pb.JoinRequest(peer_id=f"peer-{one.name}"), ("aa", os.urandom(4).hex(), 1))
        member = state.members[one.name]
        if member.stage is None:
            return
        if (one.round, one.generation) != (state.round, member.generation):
            self.members[self.members.index(one)] = one = one.later(state.round, member.generation, member.stage)
        assert core.manifest is not None
        report = pb.MemberReport(
            round=state.round, stage=member.stage, generation=member.generation, ready_base_cid=state.base_cid, pid=1,
            weights_sha256=bytes.fromhex(core.manifest.stages[member.stage].sha256), frames_done=sum(one.microbatches.values()),
            leases_done=one.done, suspects=one.behaviour.suspects, resumed_generations=one.resumed,
            duplicates=1,
        )  # fmt: skip
        if member.stage == STAGES - 1 and one.microbatches:
            report.losses.add(ce_sum=float(report.frames_done), count=report.frames_done)
        if evaluator(state, core.config) == one.name:
            report.heldout.add(ce_sum=2.0, count=1)
        if one.behaviour.frames_per_s:
            report.throughput = one.behaviour.frames_per_s[member.stage]
        core.take_report(member, report)
        if member.role is Role.STANDBY:
            return
        if state.phase is Phase.OPEN and member.stage == 0:
            self.train(one, behave)
        if state.phase is Phase.CLOSING and not one.submitted and (behave or not one.behaviour.hands_nothing_in):
            one.submitted = (await self.submit(one, member.stage)).accepted

    def start_anew(self, name: str) -> None:
        """The member's process was killed and is started again."""
        self.core.join(name, pb.JoinRequest(peer_id=f"peer-{name}"), ("aa", os.urandom(4).hex(), 1))

    def train(self, one: Scripted, behave: bool) -> None:
        core, state = self.core, self.core.state
        if one.lease is None:
            reply = core.grant_lease(
                state.members[one.name], pb.LeaseRequest(round=one.round, generation=one.generation), ("aa", "bb", 1)
            )
            if isinstance(reply, pb.LeaseReply):
                one.lease, one.left = reply, STEP_TICKS if behave else one.behaviour.ticks_per_lease
            return
        one.left -= 1
        later = [
            [other for other in self.members if any(
                one.member == other.name and (other.round, other.generation) == (state.round, one.generation)
                for one in state.replicas(stage)
            )]
            for stage in range(1, STAGES)
        ]  # fmt: skip
        if one.left > 0 or not all(later):
            return
        for index in range(2):
            for taker in [one, *(self.draw.choice(there) for there in later)]:
                taker.microbatches[one.lease.first_microbatch_id + index] = 150
        one.done.append(pb.LeaseDone(lease_id=one.lease.lease_id, frames=300, microbatches=2))
        one.lease = None

    async def submit(self, one: Scripted, stage: int, *, leaving: bool = False) -> pb.UpdateReceipt:
        draw = np.random.default_rng(self.draw.randrange(1 << 30))
        data = b"".join(bytes(part) for part in file_parts({"w": draw.standard_normal((2, 3)).astype(np.float32)}))
        head = pb.UpdateHead(
            round=one.round, base_cid=self.core.state.base_cid, stage=stage, generation=one.generation, size_bytes=len(data),
            sha256=hashlib.sha256(data).digest(), frames=sum(one.microbatches.values()),
            microbatches=[pb.CountedMicrobatch(id=key, frames=value) for key, value in one.microbatches.items()],
            leaving=leaving,
        )  # fmt: skip

        async def chunks() -> AsyncIterator[pb.UpdateChunk]:
            yield pb.UpdateChunk(data=data)
            yield pb.UpdateChunk(end=pb.UpdateEnd(chunks=1, bytes=len(data)))

        member, nonce = self.core.state.members[one.name], ("aa", os.urandom(4).hex(), 1)
        return await self.uploads.receive(member, head, nonce, chunks(), pb.Signed())
