"""Replicas that commit, open and bear witness as the door wants it, without training anything."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from core_members import RUN_ID
from door_in_process import Context, House, join_request
from forked_core import KEY, SHAPES

from protocol.commitments import NO_MOMENTS, ChainStart, link_of, tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, PeerKey
from protocol.messages import open_signed
from protocol.openings import About, MicrobatchAbout, opening_tensors
from protocol.tensor_files import file_parts

PEERS = [PeerKey.generate() for _ in range(8)]
LR = 0.01
FRAMES = 100


def arrays(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass
class Replica:
    """One member and what it has done in the round."""

    house: House
    number: int
    operator: str = ""
    commits: list[pb.StepCommit] = field(default_factory=list)
    moved: dict[str, np.ndarray] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    leased: dict[int, pb.LeasedRows] = field(default_factory=dict)
    handed_in: pb.Signed | None = None

    def __post_init__(self) -> None:
        self.key = MemberKey.from_seed(bytes([self.number]) * 32)
        self.view = pb.RunView()

    @property
    def id(self) -> str:
        return self.key.member_id

    @property
    def entry(self) -> pb.RosterEntry:
        return next(one for one in self.view.roster.entries if one.member_id == self.id)

    @property
    def stage(self) -> int:
        return self.entry.stage

    async def join(self) -> None:
        request = join_request(self.key, PEERS[self.number - 1], operator=self.operator, device_class="cpu-x86_64-float32")
        self.view = (await self.house.ask(self.key, "join", request)).view

    async def watch(self) -> None:
        report = pb.MemberReport(round=self.view.round, pid=self.number)
        if any(one.member_id == self.id for one in self.view.roster.entries):
            manifest = self.house.pieces.core.manifest
            assert manifest is not None
            report.stage, report.generation, report.ready_base_cid = self.stage, self.entry.generation, self.view.base_cid
            report.weights_sha256 = bytes.fromhex(manifest.stages[self.stage].sha256)
            if self.view.evaluate:
                report.heldout.add(ce_sum=5.0, count=1)
        self.view = await self.house.ask(self.key, "watch", pb.WatchRequest(report=report))
        self.given |= {one.audit_id: one.input_cid for one in self.view.witness}

    # ---- commits -----------------------------------------------------------------------------------------------------

    @property
    def zeros(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(shape, np.float32) for name, shape in SHAPES[self.stage].items()}

    def next_commit(self, records: list[pb.MicrobatchRecord], moved: dict[str, np.ndarray] | None = None) -> pb.StepCommit:
        """The commit that goes on with the ones before.

        Args:
            moved: what the update would be after it; None: a little.
        """
        step = len(self.commits)
        if moved is None:
            moved = {name: np.full_like(zero, step * LR / 2) for name, zero in self.zeros.items()}
        commit = pb.StepCommit(
            round=self.view.round, generation=self.entry.generation, stage=self.stage, step=step,
            previous=self.commits[-1].link if step else b"", update_digest=tensors_digest(moved),
            moments_digest=hashlib.sha256(b"moments").digest() if step else NO_MOMENTS, records=records,
            frames=sum(one.frames for one in records), lr=LR if step else 0.0,
        )  # fmt: skip
        self.moved = moved
        self.link(commit)
        return commit

    def link(self, commit: pb.StepCommit) -> None:
        start = ChainStart(RUN_ID, commit.round, commit.stage, self.id, commit.generation, self.view.base_cid)
        commit.link = link_of(commit, start)

    async def commit(self, commit: pb.StepCommit) -> pb.CommitReply:
        signed = self.house.signed(
            self.key, "commit", commit, round=commit.round, base_cid=self.view.base_cid, stage=commit.stage
        )  # fmt: skip
        reply = await self.house.door.Commit(signed, Context())
        self.commits = [*self.commits[: commit.step], commit]
        return self.opened("commit", reply, pb.CommitReply)

    def opened(self, method: str, reply: pb.Signed, kind: Any) -> Any:
        _, data = open_signed(
            reply, method=method, run_id=RUN_ID, receiver=self.id, now_ms=int(self.house.clock.now * 1000), nonces=None
        )
        return kind.FromString(data)

    async def lease(self) -> list[int]:
        """The microbatches of a lease."""
        request = pb.LeaseRequest(round=self.view.round, generation=self.entry.generation)
        lease = await self.house.ask(self.key, "lease", request)
        identifiers = [lease.first_microbatch_id, lease.first_microbatch_id + 1]
        rows = pb.LeasedRows(
            epoch=lease.epoch, start=lease.start, stop=lease.stop, first_microbatch_id=lease.first_microbatch_id, microbatches=2
        )
        self.leased |= dict.fromkeys(identifiers, rows)
        return identifiers

    # ---- passes ------------------------------------------------------------------------------------------------------

    def passed(self, identifier: int) -> dict[str, dict[str, np.ndarray]]:
        """What went in and out for a microbatch, by group."""
        own = 1000 * self.stage + identifier
        return {
            "input": {"hidden": arrays(own, 1, 9, 8)}, "gradient_in": {"grad": arrays(own + 1, 1, 9, 8)},
            "output": {"hidden": arrays(own + 2, 1, 9, 8)}, "gradient_out": {"grad": arrays(own + 3, 1, 9, 8)},
        }  # fmt: skip

    def record(self, identifier: int, **changes: Any) -> pb.MicrobatchRecord:
        digests = {name: tensors_digest(group) for name, group in self.passed(identifier).items()}
        fields: dict[str, Any] = {"id": identifier, "frames": FRAMES, "sender": "", **digests}
        if identifier in self.leased:
            fields["leased"] = self.leased[identifier]
        fields |= changes
        return pb.MicrobatchRecord(**fields)

    def about(self, identifier: int, step: int) -> About:
        return About(
            run_id=RUN_ID, round=self.view.round, base_cid=self.view.base_cid, member_id=self.id, stage=self.stage, stages=2,
            generation=self.entry.generation, step=step, seed=3,
            microbatches=(MicrobatchAbout(id=identifier, frames=FRAMES, inner_step_frames=FRAMES, wire="fp32"),),
        )  # fmt: skip

    async def open(
        self, kind: Any, identifier: int, *, step: int = 1, tensors: dict[str, np.ndarray] | None = None, audit_id: str = "",
        groups: dict[str, Any] | None = None,
    ) -> pb.UpdateReceipt:  # fmt: skip
        """Send an opening of a pass."""
        names = ("input", "gradient_in") if kind == pb.PASS_INPUT else ("output", "gradient_out")
        if tensors is None:
            shown = groups or {name: self.passed(identifier)[name] for name in names}
            tensors = opening_tensors(self.about(identifier, step), shown)
        data = b"".join(bytes(part) for part in file_parts(tensors))
        head = pb.OpeningHead(
            kind=kind, round=self.view.round, stage=self.stage, generation=self.entry.generation, step=step,
            microbatch_id=identifier, size_bytes=len(data), sha256=hashlib.sha256(data).digest(), audit_id=audit_id,
            input_cid=self.given.get(audit_id, ""),
        )  # fmt: skip
        signed = self.house.signed(self.key, "submit_opening", head, round=head.round, stage=head.stage)
        reply = await self.house.door.SubmitOpening(stream(signed, data), Context())
        return self.opened("submit_opening", reply, pb.UpdateReceipt)

    async def submit(self, tensors: dict[str, np.ndarray], **changes: Any) -> pb.UpdateReceipt:
        """Send an update that ends the chain."""
        data = b"".join(bytes(part) for part in file_parts(tensors))
        last = self.commits[-1]
        fields: dict[str, Any] = {
            "round": self.view.round, "base_cid": self.view.base_cid, "stage": self.stage, "generation": self.entry.generation,
            "size_bytes": len(data), "sha256": hashlib.sha256(data).digest(), "frames": FRAMES, "inner_steps": last.step,
            "microbatches": [pb.CountedMicrobatch(id=0, frames=FRAMES)], "chain_link": last.link, "chain_step": last.step,
            **changes,
        }  # fmt: skip
        head = pb.UpdateHead(**fields)
        signed = self.house.signed(
            self.key, "submit_update", head, round=head.round, base_cid=head.base_cid, stage=head.stage
        )  # fmt: skip
        self.handed_in = signed
        reply = await self.house.door.SubmitUpdate(stream(signed, data), Context())
        return self.opened("submit_update", reply, pb.UpdateReceipt)


def going_on(replica: Replica, part: int, before: list[pb.StepCommit], **fields: Any) -> pb.StepCommit:
    """The next commit of a further chain of a replica: of step 0 it names the link that it goes on from.

    Args:
        before: of this chain; where that is empty, `previous` in `fields` says from which link it goes on.
    """
    step = len(before)
    commit = pb.StepCommit(
        round=replica.view.round, generation=replica.entry.generation, stage=replica.stage, step=step, part=part,
        previous=before[-1].link if before else b"", lr=LR if step else 0.0,
        moments_digest=hashlib.sha256(b"moments").digest() if before or fields.get("previous") else NO_MOMENTS,
    )  # fmt: skip
    records = fields.pop("records", [])
    commit.records.extend(records)
    commit.frames = sum(one.frames for one in records)
    for name, value in fields.items():
        setattr(commit, name, value)
    start = ChainStart(
        RUN_ID, commit.round, commit.stage, replica.id, commit.generation, replica.view.base_cid,
        b"" if step else commit.previous, part,
    )  # fmt: skip
    commit.link = link_of(commit, start)
    return commit


async def send(replica: Replica, commit: pb.StepCommit) -> pb.CommitReply:
    """Commit, without taking it for a part of the replica's first chain."""
    kept = list(replica.commits)
    reply = await replica.commit(commit)
    replica.commits = kept
    return reply


async def stream(head: pb.Signed, data: bytes) -> AsyncIterator[pb.UpdateChunk]:
    """A head and one file in one piece."""
    yield pb.UpdateChunk(head=head)
    yield pb.UpdateChunk(data=data)
    yield pb.UpdateChunk(end=pb.UpdateEnd(chunks=1, bytes=len(data)))


async def opened_round(house: House, operators: tuple[str, ...] = ("a", "b", "c", "d")) -> list[Replica]:
    """Members of a round that is open, two of each stage, by stage."""
    replicas = [Replica(house, number + 1, operator) for number, operator in enumerate(operators)]
    for one in replicas:
        await one.join()
    for _ in range(20):
        for one in replicas:
            house.clock.now += 0.05
            await one.watch()
            await house.pieces.driver.step()
        if all(one.view.phase == pb.OPEN for one in replicas):
            break
    assert all(one.view.phase == pb.OPEN for one in replicas), replicas[0].view
    return sorted(replicas, key=lambda one: (one.stage, one.number))


def coordinator_key() -> bytes:
    return KEY.public
