"""A coordinator's door in a process of its own: `python -m simulations.hostile.door_process FOLDER`.

The real core, journal, uploads and audits behind a real gRPC server; only the rate limits are out of the way, so that every call
reaches the checks behind them. Two members have a place, and nobody answers for them, so no round ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np

from common.clock import SteadyClock
from common.faults import NO_FAULTS
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.cheap_refusals import CheapRefusals
from coordinator.core import Core
from coordinator.door import Door
from coordinator.entrance import Entrance
from coordinator.journal import Journal
from coordinator.rate_limits import Buckets, Limits, Rate
from coordinator.rounds import Phase
from coordinator.run_config import RunConfig
from coordinator.server_options import SERVER_OPTIONS, concurrent_calls
from coordinator.start import fold
from coordinator.uploads import Uploads
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey, PeerKey
from protocol.manifest import VersionManifest
from protocol.tensor_files import write_tensors
from protocol.ticket import Ticket
from simulations.hostile.helper import input_closed, say
from simulations.hostile.tally import Tally, faults_in_logs
from swarm.blocks import BlockStore

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


def insider_keys() -> list[MemberKey]:
    """Of the two members, whose keys the storm has too."""
    return [MemberKey.from_seed(bytes([number + 1]) * 32) for number in range(2)]


def without_limits() -> Limits:
    """Limits that nobody reaches."""
    return Limits(*(Buckets(NO_LIMIT) for _ in range(7)))


class _Scene:
    """A coordinator in its first round, with a member in each of its two stages."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.sqlite", NO_FAULTS)
        self.key = MemberKey.from_seed(b"c" * 32)
        self.insiders = insider_keys()
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
        config = self.core.config
        self.server = grpc.aio.server(
            options=SERVER_OPTIONS, interceptors=[CheapRefusals()],
            maximum_concurrent_rpcs=concurrent_calls(config.membership.max_members),
        )  # fmt: skip
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

    def facts(self) -> dict[str, Any]:
        """What a member knows of the run."""
        state = self.core.state
        size = sum(path.size_bytes for path in (self.core.manifest.stages if self.core.manifest else []))
        return {"round": state.round, "base_cid": state.base_cid, "stage_bytes": size // 2}

    def faults(self) -> list[str]:
        """What of the state is not what the journal says."""
        told, folded = self.core.state, fold(self.journal)
        found = [
            f"the state's {name} are not those of the journal"
            for name in ("members", "updates", "leases", "versions", "round", "phase")
            if getattr(told, name) != getattr(folded, name)
        ]
        return found + ([f"{len(told.versions)} versions"] if len(told.versions) != 1 else [])


async def _serve(folder: Path) -> None:
    """Serve until the standard input closes, then say what was not as it must be."""
    tally = Tally("the server")
    scene = _Scene(folder)
    scene.fill()
    with faults_in_logs(tally):
        ticket = await scene.start()
        say({"ticket": ticket.encode(), **scene.facts()})
        await input_closed()
        await scene.server.stop(1.0)
    for fault in scene.faults():
        tally.fault(fault)
    scene.journal.close()
    say({"faults": tally.faults})


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
