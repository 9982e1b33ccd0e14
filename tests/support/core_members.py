"""Scripted members that talk to a forked coordinator, and go on with it over any number of its deaths."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import forked_core as child
import numpy as np
from google.protobuf.message import Message

from protocol.commitments import NO_MOMENTS, ChainStart, link_of, tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, PeerKey
from protocol.manifest import VersionManifest, read_manifest
from protocol.messages import make_signed, open_signed
from protocol.tensor_files import file_parts
from swarm.blocks import BlockStore

RUN_ID = "crashes"
PASS_S = 0.25
MOST_PASSES = 2000
CHUNK_BYTES = 100
Reply = TypeVar("Reply", bound=Message)


class Stuck(Exception):
    """The run does not come to its end, or the coordinator failed instead of being killed."""


@dataclass
class Link:
    """The way to the coordinator: starts one, and another whenever it was killed.

    Args:
        folder: for the state directory, and the log of the children's errors.
        kills: the point at which each start is killed, in order; later starts are not.
        failure: instead of being killed there, the start meets this error of its disk.
    """

    folder: Path
    run_toml: Path
    kills: Iterator[int]
    names: Path | None = None
    failure: int | None = None
    now: float = 1_000_000.0
    starts: int = 0
    _pid: int = 0
    _pipe: Any = None

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    def up(self) -> None:
        """Start coordinators until one is up."""
        while self._pipe is None:
            self.starts += 1
            self._pid, self._pipe = child.start(
                self.state_dir, self.run_toml, self.now, at=next(self.kills, 0), failure=self.failure, names=self.names
            )
            try:
                child.receive(self._pipe)
            except child.Gone:
                self._buried()

    def call(self, method: str, *parts: bytes) -> child.Frame:
        """One call; `Gone` when the coordinator died before it answered."""
        if self._pipe is None:
            self.up()
        try:
            child.send(self._pipe, {"method": method, "now": self.now}, parts)
            return child.receive(self._pipe)
        except child.Gone:
            self._buried()
            raise

    def stop(self) -> None:
        """End the coordinator, if it still runs."""
        if self._pipe is None:
            return
        try:
            child.send(self._pipe, {"method": "stop"})
        except child.Gone:
            self._buried()
            return
        self._pipe.close()
        self._pipe = None
        _, status = os.waitpid(self._pid, 0)
        # It may have died of its fault on the way to the end of its last step.
        if os.waitstatus_to_exitcode(status) not in (0, self._death):
            raise Stuck(f"it ended with {os.waitstatus_to_exitcode(status)}")

    @property
    def _death(self) -> int:
        return -signal.SIGKILL if self.failure is None else child.ENDED

    def _buried(self) -> None:
        self._pipe.close()
        self._pipe = None
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != self._death:
            raise Stuck(f"start {self.starts} ended with {code} instead of {self._death}")


@dataclass
class Round:
    """What a member keeps of one round under one assignment."""

    number: int = 0
    generation: int = 0
    microbatches: dict[int, int] = field(default_factory=dict)
    leased: dict[int, pb.LeasedRows] = field(default_factory=dict)
    done: list[pb.LeaseDone] = field(default_factory=list)
    submitted: bool = False


class Member:
    """A member that keeps the door's contract; its update is drawn from (member, round, stage)."""

    def __init__(self, number: int, peer: PeerKey) -> None:
        self.key = MemberKey.from_seed(bytes([number]) * 32)
        self.peer = peer

    def enter(self, link: Link, crowd: Crowd) -> None:
        """Begin a run, as a process that knows nothing yet."""
        self.link, self.crowd = link, crowd
        self.view = pb.RunView()
        self.joined = False
        self.round = Round()
        self.manifest: VersionManifest | None = None
        self.loaded = ""
        self.known_lease_id = 0

    # ---- calls -------------------------------------------------------------------------------------------------------

    def signed(self, method: str, payload: Message, **more: Any) -> pb.Signed:
        return make_signed(
            self.key, method=method, payload=payload, run_id=RUN_ID, receiver=child.KEY.member_id,
            now_ms=int(self.link.now * 1000), **more,
        )  # fmt: skip

    def opened(self, method: str, frame: child.Frame, kind: type[Reply]) -> Reply:
        if frame.head["status"] == "NOT_FOUND":
            self.joined = False
        if frame.head["status"] != "OK":
            raise child.Refusal(frame.head["status"], frame.head["detail"])
        _, payload = open_signed(
            pb.Signed.FromString(frame.parts[0]), method=method, run_id=RUN_ID, receiver=self.key.member_id,
            now_ms=int(self.link.now * 1000), nonces=None,
        )  # fmt: skip
        return kind.FromString(payload)

    def ask(self, call: str, method: str, payload: Message, kind: type[Reply]) -> Reply:
        return self.opened(method, self.link.call(call, self.signed(method, payload).SerializeToString()), kind)

    # ---- one look at the run ------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Watch, and do what follows from it; `Gone` when the coordinator died meanwhile."""
        if not self.joined:
            request = pb.JoinRequest(
                peer_id=self.peer.peer_id, peer_public_key=self.peer.public_key_bytes,
                peer_signature=self.peer.prove(self.key.public), operator=self.key.member_id[:8],
            )  # fmt: skip
            self.view = self.ask("Join", "join", request, pb.JoinReply).view
            self.joined = True
        watch = pb.WatchRequest(known_revision=self.view.revision, wait_s=0, report=self.report())
        self.view = self.ask("Watch", "watch", watch, pb.RunView)
        entry = self.entry
        if entry is None:
            return
        if (self.round.number, self.round.generation) != (self.view.round, entry.generation):
            self.round = Round(self.view.round, entry.generation)
        if self.loaded != self.view.base_cid:
            data = BlockStore(self.link.state_dir / "blocks").read_file(self.view.base_cid)
            self.manifest, self.loaded = read_manifest(VersionManifest, data, signer=child.KEY.public), self.view.base_cid
        if entry.role == pb.STANDBY:
            return  # it holds the base, and waits
        if self.view.phase == pb.OPEN and entry.stage == 0:
            self.train(entry)
        if self.view.phase == pb.CLOSING and not self.round.submitted:
            self.submit(entry)

    def acts(self) -> bool:
        """Act; False when the coordinator died meanwhile, or says that its disk failed."""
        try:
            self.act()
        except child.Gone:
            return False
        except child.Refusal as refusal:
            if self.link.failure is None or refusal.status not in ("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"):
                raise
            return False
        return True

    @property
    def entry(self) -> pb.RosterEntry | None:
        return next((one for one in self.view.roster.entries if one.member_id == self.key.member_id), None)

    def report(self) -> pb.MemberReport:
        entry = self.entry
        report = pb.MemberReport(round=self.view.round, pid=1)
        if entry is None:
            return report
        report.stage, report.generation = entry.stage, entry.generation
        if self.manifest is not None and self.loaded == self.view.base_cid:
            report.ready_base_cid = self.loaded
            report.weights_sha256 = bytes.fromhex(self.manifest.stages[entry.stage].sha256)
        if (self.round.number, self.round.generation) == (self.view.round, entry.generation):
            report.frames_done = sum(self.round.microbatches.values())
            report.leases_done.extend(self.round.done)
            if entry.stage == self.view.stages - 1 and report.frames_done:
                report.losses.add(ce_sum=report.frames_done * 4.0, count=report.frames_done)
        if self.view.evaluate and self.manifest is not None:
            report.heldout.add(ce_sum=5.0 - 0.25 * self.manifest.version, count=1)
        return report

    def train(self, entry: pb.RosterEntry) -> None:
        if not self.crowd.complete(self):
            return  # a microbatch would find nobody at a later stage
        request = pb.LeaseRequest(
            round=self.view.round, generation=entry.generation, known_lease_id=self.known_lease_id
        )  # fmt: skip
        lease = self.ask("Lease", "lease", request, pb.LeaseReply)
        if not lease.granted:
            return
        self.known_lease_id = lease.lease_id
        frames = (lease.stop - lease.start) * 50
        rows = pb.LeasedRows(
            epoch=lease.epoch, start=lease.start, stop=lease.stop, first_microbatch_id=lease.first_microbatch_id, microbatches=2
        )
        for identifier in (lease.first_microbatch_id, lease.first_microbatch_id + 1):
            self.round.leased[identifier] = rows
            self.crowd.pass_on(self, identifier, frames)
        self.round.done.append(pb.LeaseDone(lease_id=lease.lease_id, frames=2 * frames, microbatches=2))

    def submit(self, entry: pb.RosterEntry) -> None:
        assert self.manifest is not None
        tensors = draw_update(self.key.member_id, self.view.round, self.manifest, entry.stage)
        data = b"".join(bytes(part) for part in file_parts(tensors))
        link = self.commit(entry, tensors)
        head = pb.UpdateHead(
            round=self.view.round, base_cid=self.view.base_cid, stage=entry.stage, generation=entry.generation,
            size_bytes=len(data), sha256=hashlib.sha256(data).digest(), frames=sum(self.round.microbatches.values()),
            inner_steps=2, chain_link=link, chain_step=1,
            microbatches=[pb.CountedMicrobatch(id=one, frames=frames) for one, frames in self.round.microbatches.items()],
        )  # fmt: skip
        signed = self.signed("submit_update", head, round=head.round, base_cid=head.base_cid, stage=head.stage)
        pieces = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
        parts = [pb.UpdateChunk(head=signed), *(pb.UpdateChunk(data=piece) for piece in pieces)]
        parts.append(pb.UpdateChunk(end=pb.UpdateEnd(chunks=len(pieces), bytes=len(data))))
        receipt = self.opened(
            "submit_update", self.link.call("SubmitUpdate", *(part.SerializeToString() for part in parts)), pb.UpdateReceipt
        )
        self.round.submitted = receipt.accepted
        if receipt.accepted:
            self.crowd.acknowledged.add((receipt.round, receipt.stage, self.key.member_id, receipt.sha256.hex()))


    def commit(self, entry: pb.RosterEntry, tensors: dict[str, np.ndarray]) -> bytes:
        """Commit to one inner step that leads to an update; the last link."""
        start = ChainStart(RUN_ID, self.view.round, entry.stage, self.key.member_id, entry.generation, self.view.base_cid)
        zeros = tensors_digest({name: np.zeros_like(value) for name, value in tensors.items()})
        link = b""
        for step, digest in enumerate((zeros, tensors_digest(tensors))):
            made = pb.StepCommit(
                round=self.view.round, generation=entry.generation, stage=entry.stage, step=step, previous=link,
                update_digest=digest, moments_digest=hashlib.sha256(b"moments").digest() if step else NO_MOMENTS,
            )  # fmt: skip
            if step:
                made.lr, made.frames = 0.01, sum(self.round.microbatches.values())
                for identifier, frames in sorted(self.round.microbatches.items()):
                    made.records.add(id=identifier, frames=frames, leased=self.round.leased.get(identifier))
            link = made.link = link_of(made, start)
            signed = self.signed("commit", made, round=made.round, base_cid=self.view.base_cid, stage=made.stage)
            self.opened("commit", self.link.call("Commit", signed.SerializeToString()), pb.CommitReply)
        return link


def draw_update(member: str, round: int, manifest: VersionManifest, stage: int) -> dict[str, np.ndarray]:
    """The update that a member hands in."""
    seed = int.from_bytes(hashlib.sha256(f"{member}/{round}/{stage}".encode()).digest()[:8], "big")
    draw = np.random.default_rng(seed)
    return {one.name: (draw.standard_normal(one.shape) * 0.001).astype(np.float32) for one in manifest.stages[stage].tensors}


class Crowd:
    """All members of a run, and what they know that the coordinator must not lose."""

    def __init__(self, members: list[Member], link: Link) -> None:
        self.members = members
        self.acknowledged: set[tuple[int, int, str, str]] = set()
        self.link = link
        for one in members:
            one.enter(link, self)

    def serving(self, first: Member, stage: int) -> list[Member]:
        """Who serves a stage in the round that `first` is in."""
        return [one for one in self.members
                if one.entry is not None and one.entry.stage == stage and one.entry.role == pb.REPLICA
                and (one.round.number, one.round.generation) == (first.view.round, one.entry.generation)]  # fmt: skip

    def complete(self, first: Member) -> bool:
        """Whether every later stage is served."""
        return all(self.serving(first, stage) for stage in range(1, first.view.stages))

    def pass_on(self, first: Member, identifier: int, frames: int) -> None:
        """A microbatch goes through `first` and one member of each later stage, in turn."""
        first.round.microbatches[identifier] = frames
        for stage in range(1, first.view.stages):
            there = self.serving(first, stage)
            there[identifier % len(there)].round.microbatches[identifier] = frames

    def play(self) -> None:
        """Until the run is finished for everybody."""
        for _ in range(MOST_PASSES):
            self.link.now += PASS_S
            for one in self.members:
                # What was not answered is asked again at once, so that a crash does not change whose turn it is.
                while not one.acts():
                    continue
            if all(one.view.phase == pb.FINISHED for one in self.members):
                self.link.stop()
                return
        self.link.stop()
        raise Stuck(f"not finished after {MOST_PASSES} looks: {self.members[0].view.reason}")
