"""A coordinator's door under fire from inside: two of its members, each with a place, send nothing but malformed calls.

The real core, journal, uploads and audits behind a real gRPC server, in this process; only the rate limits are out of the way, so
that every call reaches the checks behind them. Nobody answers for the members, so no round ends: what is looked at is that every
call is answered or refused by a number, and that the state is still what the journal says.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from google.protobuf.message import Message

from common.clock import SteadyClock
from common.faults import NO_FAULTS
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.core import Core
from coordinator.door import Door
from coordinator.entrance import Entrance
from coordinator.journal import Journal
from coordinator.rate_limits import Buckets, Limits, Rate
from coordinator.rounds import Phase
from coordinator.run_config import RunConfig
from coordinator.server_options import SERVER_OPTIONS
from coordinator.start import fold
from coordinator.unreadable import UnreadableIsEmpty
from coordinator.uploads import Uploads
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey, PeerKey
from protocol.manifest import VersionManifest
from protocol.tensor_files import write_tensors
from protocol.ticket import Ticket
from simulations.hostile.call_storm import CallStorm, in_turn
from simulations.hostile.tally import Tally, faults_in_logs
from simulations.usage import pss_bytes
from swarm.blocks import BlockStore

AT_ONCE = 16
ASK_EVERY_S = 0.1
GROWTH_LIMIT_BYTES = 128 << 20
NO_LIMIT = Rate(1e12, 1e12)
RUN_FILE = """
[run]
id = "fuzzed"
seed = 3
[model]
preset = "test"
stages = 2
[data]
manifest = "dataset"
[rounds]
count = 2
frames_per_inner_step = 400
microbatches_per_inner_step = 2
inner_steps = 2
inner_lr = 0.01
[membership]
silence_s = 60
"""


def without_limits() -> Limits:
    """Limits that nobody reaches."""
    return Limits(*(Buckets(NO_LIMIT) for _ in range(7)))


class _Scene:
    """A coordinator in its first round, with a member in each of its two stages."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.sqlite", NO_FAULTS)
        self.key = MemberKey.from_seed(b"c" * 32)
        self.insiders = [MemberKey.from_seed(bytes([number + 1]) * 32) for number in range(2)]
        store = BlockStore(folder / "blocks")
        versions = Versions(folder / "versions", store, self.key)
        clock = SteadyClock(self.journal.last_time())
        self.core = core = Core(RunConfig.parse(RUN_FILE), self.journal, fold(self.journal), NO_FAULTS, clock)
        cid = store.add_bytes(b"dataset")
        core.emit(
            "created", run_id="fuzzed", run_toml=RUN_FILE, stages=2, model_config={}, stage_bytes=[1 << 20, 1 << 20],
            dataset={"rows": 50, "frames": 5000, "heldout_rows": 3, "cid": cid, "codec": {}, "pinned": [cid]},
        )  # fmt: skip
        stages = []
        for stage in range(2):
            path = versions.weights_path(0, stage)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, {"w": np.ones((2, 3), np.float32)})
            stages.append(versions.stage_file(0, stage, momentum=False))
        manifest = VersionManifest(run_id="fuzzed", version=0, round=0, model={}, stages=stages, dataset_cid=cid)
        core.emit("version", version=0, round=0, cid=versions.publish(manifest), frames=0, record=None)
        core.manifest = versions.load(core.state.base_cid)
        core.emit("started", pid=os.getpid())
        auditing = Auditing(core, versions, store, self.key, AuditSecrets(self.key, "fuzzed"), folder)
        auditing.resume()
        self.server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[UnreadableIsEmpty()])
        entrance = Entrance(core, self.key, limits=without_limits())
        rpc.add_CoordinatorServicer_to_server(
            Door(core, Uploads(core, folder, auditing), entrance, list, auditing), self.server
        )

    def fill(self) -> None:
        """Give each insider a stage, and open the round."""
        for number, key in enumerate(self.insiders):
            peer = PeerKey.generate()
            self.core.join(key.member_id, pb.JoinRequest(peer_id=peer.peer_id), ("aa", f"{number:02x}", 1))
            self.core.assign(key.member_id, number, "it is the only one")
        reason = "its members are fuzzed"
        self.core.emit("phase", phase=Phase.PREPARING.value, reason=reason, round=1)
        for key in self.insiders:
            self.core.emit("ready", member=key.member_id, base_cid=self.core.state.base_cid)
        self.core.emit(
            "phase", phase=Phase.OPEN.value, reason=reason, target_rows=1000, target_frames=100_000, total_frames=200_000
        )

    async def start(self) -> Ticket:
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return Ticket("fuzzed", (f"127.0.0.1:{port}",), self.key.public, b"", ())

    def messages(self) -> Mapping[str, tuple[str, Message]]:
        """What the member of stage 1 would send if it were honest."""
        state = self.core.state
        where: dict[str, Any] = {"round": state.round, "generation": 1, "stage": 1}
        size = sum(path.size_bytes for path in (self.core.manifest.stages if self.core.manifest else []))
        update = pb.UpdateHead(**where, base_cid=state.base_cid, size_bytes=size // 2, sha256=bytes(32), frames=3, leaving=True)
        return {
            "SubmitUpdate": ("submit_update", update),
            "SubmitOpening": ("submit_opening", pb.OpeningHead(**where, kind=pb.STEP, step=1, size_bytes=100, sha256=bytes(32))),
            "Commit": ("commit", pb.StepCommit(**where, link=bytes(32), update_digest=bytes(32), moments_digest=bytes(32))),
            "Lease": ("lease", pb.LeaseRequest(round=state.round, generation=1)),
            "Watch": ("watch", pb.WatchRequest(known_revision=1, report=pb.MemberReport(
                **where, ready_base_cid=state.base_cid, weights_sha256=bytes(32), frames_done=10, suspects=["x"],
                losses=[pb.CodebookLoss(ce_sum=1.0, count=1)], oddities=[pb.Oddity(member_id="x")],
                heldout=[pb.CodebookLoss(ce_sum=1.0, count=1)], leases_done=[pb.LeaseDone(lease_id=0, frames=1, microbatches=1)],
            ))),
        }  # fmt: skip


async def _ask(stub: rpc.CoordinatorStub, tally: Tally) -> None:
    """Ask for the status again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        start = loop.time()
        await stub.Status(pb.StatusRequest())
        tally.health(loop.time() - start)
        await asyncio.sleep(ASK_EVERY_S)


async def fuzz_door(messages: int, seed: int, folder: Path, show: Callable[[int], None] = lambda done: None) -> Tally:
    """Throw malformed calls of members at a coordinator's door.

    Args:
        folder: for the coordinator's state. show: is told how many have been sent.
    """
    tally = Tally("coordinator's door", limit_bytes=GROWTH_LIMIT_BYTES)
    began, before = time.monotonic(), pss_bytes(os.getpid()) or 0
    scene = _Scene(folder)
    scene.fill()
    ticket = await scene.start()
    storm = CallStorm(ticket, tally, seed, scene.insiders, {**scene.messages()})
    await storm.open()
    async with grpc.aio.insecure_channel(ticket.coordinator_addresses[0]) as channel:
        asking = asyncio.create_task(_ask(rpc.CoordinatorStub(channel), tally))
        try:
            with faults_in_logs(tally):
                async with storm.half_open():
                    await in_turn(messages, AT_ONCE, storm.one)
            show(messages)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            await storm.close()
            await scene.server.stop(1.0)
    if not asking.cancelled() and (error := asking.exception()) is not None:
        tally.fault(f"the status: {error!r}")
    told, folded = scene.core.state, fold(scene.journal)
    for name in ("members", "updates", "leases", "versions", "round", "phase"):
        if getattr(told, name) != getattr(folded, name):
            tally.fault(f"the state's {name} are not those of the journal")
    if len(told.versions) != 1:
        tally.fault(f"{len(told.versions)} versions")
    scene.journal.close()
    tally.seconds = time.monotonic() - began
    tally.grown_bytes = {"this process": max(0, (pss_bytes(os.getpid()) or 0) - before)}
    return tally
