"""A coordinator in a process of its own, and scripted members that speak to it through its real door."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from scripted_run import write_dataset

from coordinator.door import MAX_MESSAGE_BYTES
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc
from protocol.identity import MemberKey, PeerKey, member_id
from protocol.manifest import VersionManifest, read_manifest
from protocol.messages import make_signed, new_nonce, open_signed
from protocol.tensor_files import file_parts
from protocol.ticket import Ticket
from swarm.blocks import BlockStore

SCRIPT = """
import sys
from pathlib import Path
from common.faults import Fault, Faults
from common.log import set_up_logging
from coordinator.server import run_coordinator
set_up_logging()
run_coordinator(Path(sys.argv[1]), Path(sys.argv[2]), faults=Faults([Fault.parse(line) for line in sys.argv[4:]]),
                exit_when_finished=sys.argv[3] == "exit")
"""

RUN = """
[run]
id = "scripted"
seed = 3
[model]
preset = "test"
stages = 2
[data]
manifest = "dataset"
[rounds]
count = {count}
frames_per_inner_step = 400
microbatches_per_inner_step = 2
inner_steps = 2
inner_lr = 0.01
outer_lr = 0.7
outer_momentum = 0.9
replicas_wanted = {replicas}
gather_s = 30
deadline_floor_s = {floor}
deadline_ceiling_s = {ceiling}
evaluate = {evaluate}
[aggregation]
rule = "trimmed_mean"
tolerate = 1
[audit]
rate = 0
[membership]
silence_s = {silence}
[previews]
every = {previews}
[network]
tls = {tls}
"""


class Process:
    """One start of the coordinator."""

    def __init__(self, folder: Path, *faults: str, exits: bool = False) -> None:
        self.state_dir = folder / "state"
        self.log = folder / "coordinator.log"
        with self.log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(folder / "run.toml"), str(self.state_dir), "exit" if exits else "stay",
                 *faults],
                stdout=subprocess.PIPE, stderr=stream, text=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def ticket(self) -> Ticket:
        """Wait until it is up."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"no ticket; {self.log.read_text()}"
        return Ticket.decode(json.loads(line)["ticket"])

    def wait(self, limit_s: float = 60) -> int:
        return self._process.wait(limit_s)

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.running():
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def open_stub(ticket: Ticket) -> tuple[grpc.aio.Channel, Any]:
    """A channel to the coordinator that the ticket names, its certificate pinned."""
    address = ticket.coordinator_addresses[0]
    options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.min_reconnect_backoff_ms", 100),
               ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]  # fmt: skip
    if not ticket.tls_sha256:
        channel = grpc.aio.insecure_channel(address, options=options)
    else:
        host, _, port = address.rpartition(":")
        pem = await asyncio.to_thread(ssl.get_server_certificate, (host.strip("[]"), int(port)))
        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest() == ticket.tls_sha256
        channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(pem.encode()), options=options)
    return channel, hocket_pb2_grpc.CoordinatorStub(channel)


class Member:
    """A member that keeps the door's contract, and trains nothing: its update is drawn from (member, round)."""

    def __init__(self, ticket: Ticket, store: BlockStore, world: World) -> None:
        self.key = MemberKey.generate()
        self.peer = world.peer_keys.pop()
        self.ticket = ticket
        self.store = store
        self.world = world
        self.view = pb.RunView()
        self.manifest: VersionManifest | None = None
        self.receipts: list[pb.UpdateReceipt] = []
        self.views: list[pb.RunView] = []
        self.stub: Any = None
        self.alive = True
        self.wrong_weights = 0
        self.held_back = False
        self.fresh(0)

    def fresh(self, round: int) -> None:
        """Counters of a round."""
        self.round = round
        self.microbatches: dict[int, int] = {}
        self.done: list[pb.LeaseDone] = []
        self.nonces: list[bytes] = []
        self.submitted = False

    @property
    def id(self) -> str:
        return self.key.member_id

    @property
    def entry(self) -> pb.RosterEntry | None:
        return next((one for one in self.view.roster.entries if one.member_id == self.id), None)

    def sign(self, method: str, payload: Any, **more: Any) -> pb.Signed:
        self.nonces.append(more.setdefault("nonce", new_nonce()))
        return make_signed(
            self.key, method=method, payload=payload, run_id=self.ticket.run_id, now_ms=int(time.time() * 1000),
            receiver=more.pop("receiver", member_id(self.ticket.coordinator_key)), **more,
        )  # fmt: skip

    def open(self, method: str, signed: pb.Signed, kind: Any) -> Any:
        header, payload = open_signed(
            signed, method=method, run_id=self.ticket.run_id, receiver=self.id, now_ms=int(time.time() * 1000), nonces=None
        )
        assert header.public_key == self.ticket.coordinator_key
        assert header.nonce in self.nonces, "every answer carries the nonce of a request of ours"
        return kind.FromString(payload)

    async def connect(self) -> None:
        self.channel, self.stub = await open_stub(self.ticket)

    async def join(self) -> pb.JoinReply:
        request = pb.JoinRequest(
            peer_id=self.peer.peer_id, peer_public_key=self.peer.public_key_bytes,
            peer_signature=self.peer.prove(self.key.public), operator=self.key.member_id[:8],
        )  # fmt: skip
        reply = self.open("join", await self.stub.Join(self.sign("join", request)), pb.JoinReply)
        self.view = reply.view
        return reply

    def report(self) -> pb.MemberReport:
        entry = self.entry
        report = pb.MemberReport(round=self.view.round, pid=os.getpid(), bytes_sent_activations=7)
        if entry is None:
            return report
        report.stage, report.generation = entry.stage, entry.generation
        if self.manifest is not None and self.loaded == self.view.base_cid and not self.held_back:
            report.ready_base_cid = self.loaded
            digest = bytes.fromhex(self.manifest.stages[entry.stage].sha256)
            report.weights_sha256 = digest if self.wrong_weights == 0 else bytes(32)
        if self.round == self.view.round:
            report.frames_done = sum(self.microbatches.values())
            report.leases_done.extend(self.done)
            if entry.stage == self.view.stages - 1 and report.frames_done:
                for book in range(4):
                    report.losses.add(ce_sum=report.frames_done * (5 - book - 0.1 * self.view.round), count=report.frames_done)
        if self.view.evaluate and report.ready_base_cid:
            for _ in range(4):
                report.heldout.add(ce_sum=10.0 * self.loss_of_base, count=10)
        return report

    @property
    def loss_of_base(self) -> float:
        assert self.manifest is not None
        return 4.0 - 0.25 * self.manifest.version

    async def watch(self, wait_s: float = 0.2) -> pb.RunView:
        request = pb.WatchRequest(known_revision=self.view.revision, wait_s=wait_s, report=self.report())
        view = self.open("watch", await self.stub.Watch(self.sign("watch", request)), pb.RunView)
        self.view = view
        self.views.append(view)
        return view

    async def act(self) -> None:
        """One look at the view, and what follows from it."""
        if self.view.round != self.round:
            self.fresh(self.view.round)
        if self.entry is None:
            return
        if self.manifest is None or self.loaded != self.view.base_cid:
            data = self.store.read_file(self.view.base_cid)
            self.manifest = read_manifest(VersionManifest, data, signer=self.ticket.coordinator_key)
            self.loaded = self.view.base_cid
        if self.view.phase == pb.OPEN and self.entry.stage == 0 and not self.held_back:
            await self.train()
        if self.view.phase == pb.CLOSING and not self.submitted and not self.held_back:
            receipt = await self.submit(self.update())
            self.submitted = receipt.accepted
            self.receipts.append(receipt)

    async def train(self) -> None:
        assert self.entry is not None
        request = pb.LeaseRequest(round=self.view.round, generation=self.entry.generation)
        lease = self.open("lease", await self.stub.Lease(self.sign("lease", request)), pb.LeaseReply)
        if not lease.granted:
            return
        self.world.leases.append(lease)
        frames = (lease.stop - lease.start) * 100 // 2
        for index in range(2):
            self.world.count(self.view, lease.first_microbatch_id + index, frames, self)
        self.done.append(pb.LeaseDone(lease_id=lease.lease_id, frames=2 * frames, microbatches=2))

    def update(self) -> dict[str, np.ndarray]:
        assert self.manifest is not None and self.entry is not None
        return draw_update(self.id, self.view.round, self.manifest, self.entry.stage)

    async def submit(self, tensors: dict[str, np.ndarray], *, cut: int | None = None, **changes: Any) -> pb.UpdateReceipt:
        """Stream an update; `cut`: stop after that many chunks, without an end."""
        assert self.entry is not None
        data = b"".join(bytes(part) for part in file_parts(tensors))
        fields: dict[str, Any] = {
            "round": self.view.round, "base_cid": self.view.base_cid, "stage": self.entry.stage,
            "generation": self.entry.generation,
            "size_bytes": len(data), "sha256": hashlib.sha256(data).digest(), "frames": sum(self.microbatches.values()),
            "inner_steps": 2,
        }  # fmt: skip
        fields.update(changes)
        head = pb.UpdateHead(**fields)
        for one, frames in sorted(self.microbatches.items()):
            head.microbatches.add(id=one, frames=frames)
        signed = self.sign("submit_update", head, round=head.round, base_cid=head.base_cid, stage=head.stage)
        chunks = [data[start : start + 65536] for start in range(0, len(data), 65536)]

        async def stream() -> AsyncIterator[pb.UpdateChunk]:
            yield pb.UpdateChunk(head=signed)
            for chunk in chunks[:cut]:
                yield pb.UpdateChunk(data=chunk)
            if cut is None:
                yield pb.UpdateChunk(end=pb.UpdateEnd(chunks=len(chunks), bytes=len(data)))

        return self.open("submit_update", await self.stub.SubmitUpdate(stream()), pb.UpdateReceipt)

    async def live(self, until: Callable[[pb.RunView], bool]) -> None:
        """Keep going, over restarts of the coordinator, until `until` holds for the view."""
        while self.alive:
            try:
                await self.watch()
                await self.act()
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    await self.join()
                    continue
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise
                await asyncio.sleep(0.1)
            if until(self.view):
                return


def draw_update(member: str, round: int, manifest: VersionManifest, stage: int) -> dict[str, np.ndarray]:
    """The update that a scripted member hands in."""
    seed = int.from_bytes(hashlib.sha256(f"{member}/{round}/{stage}".encode()).digest()[:8], "big")
    draw = np.random.default_rng(seed)
    return {one.name: (draw.standard_normal(one.shape) * 0.01).astype(np.float32) for one in manifest.stages[stage].tensors}


class World:
    """All scripted members of a test, and which microbatches went where."""

    def __init__(self, peer_keys: list[PeerKey]) -> None:
        self.peer_keys = peer_keys
        self.members: list[Member] = []
        self.leases: list[pb.LeaseReply] = []

    def count(self, view: pb.RunView, microbatch: int, frames: int, first: Member) -> None:
        """A microbatch goes through `first` and one member of each later stage, in turn."""
        first.microbatches[microbatch] = frames
        for stage in range(1, view.stages):
            there = [one for one in self.members if one.alive and one.entry is not None and one.entry.stage == stage]
            if there:
                there[microbatch % len(there)].microbatches[microbatch] = frames


@pytest.fixture(scope="session")
def peer_keys() -> list[PeerKey]:
    return [PeerKey.generate() for _ in range(6)]


@pytest.fixture
def scripted(tmp_path: Path, peer_keys: list[PeerKey]) -> Iterator[SimpleNamespace]:
    """Everything a test needs to run a coordinator with scripted members; ends what it started."""
    started: list[Process] = []

    def prepare(**changes: Any) -> None:
        values = {
            "count": 2, "replicas": 2, "floor": 2, "ceiling": 30, "evaluate": "true", "silence": 3, "tls": "true", "previews": 0
        }  # fmt: skip
        values |= changes
        write_dataset(tmp_path / "dataset")
        (tmp_path / "run.toml").write_text(RUN.format(**values))

    def start(*faults: str, exits: bool = False) -> Process:
        process = Process(tmp_path, *faults, exits=exits)
        started.append(process)
        return process

    async def gather(ticket: Ticket, number: int) -> World:
        world = World(list(peer_keys))
        store = BlockStore(tmp_path / "state" / "blocks")
        for _ in range(number):
            member = Member(ticket, store, world)
            await member.connect()
            await member.join()
            world.members.append(member)
        return world

    async def go_on(world: World, until: Callable[[pb.RunView], bool], limit_s: float = 100) -> None:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*(one.live(until) for one in world.members))

    yield SimpleNamespace(
        folder=tmp_path, state_dir=tmp_path / "state", prepare=prepare, start=start, gather=gather, go_on=go_on,
        draw_update=draw_update, open_stub=open_stub, store=lambda: BlockStore(tmp_path / "state" / "blocks"),
    )  # fmt: skip
    for process in started:
        process.close()
