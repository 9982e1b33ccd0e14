"""The status of a run with more rounds than one message holds, asked of the coordinator's own door."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
from small_run import small_run

from common.faults import NO_FAULTS
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.core import Core
from coordinator.door import Door
from coordinator.entrance import Entrance
from coordinator.journal import Journal
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from coordinator.status import MAX_ROUNDS
from coordinator.uploads import Uploads
from coordinator.versions import Versions
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey
from protocol.ticket import Ticket
from simulations.status_client import StatusClient, fetch_status
from swarm.blocks import BlockStore

COUNT = 2 * MAX_ROUNDS + 100


def core_of(folder: Path) -> Core:
    """A run whose rounds are over without anybody having trained in them; each takes as much room as one of many members."""
    toml = small_run(COUNT)
    core = Core(RunConfig.parse(toml), Journal(folder / "journal.sqlite", NO_FAULTS), RunState(), NO_FAULTS, lambda: 1000.0)
    dataset = {"rows": 6, "frames": 600, "heldout_rows": 6, "cid": "d", "codec": {}, "pinned": []}
    core.emit("created", run_id="r", run_toml=toml, stages=2, model_config={}, dataset=dataset)
    for number in range(1, COUNT + 1):
        finish(core, number)
    return core


def finish(core: Core, number: int) -> None:
    record = {
        "round": number, "cid": f"base-{number + 1}", "frames": 1, "loss": 1.0, "base_cid": f"base-{number}",
        "heldout_loss": None,
        "duplicate_microbatches": 0, "dropped_microbatches": 0, "stages": ["x" * 4000] * 8,
    }  # fmt: skip
    core.emit("version", version=number, round=number, cid=f"base-{number + 1}", frames=1, record=record)


def test_all_rounds_come_though_one_message_does_not_hold_them(tmp_path: Path) -> None:
    async def run() -> None:
        key, core = MemberKey.generate(), core_of(tmp_path)
        server = grpc.aio.server()
        store, secrets = BlockStore(tmp_path / "blocks"), AuditSecrets(key, "r")
        auditing = Auditing(core, Versions(tmp_path / "versions", store, key), store, key, secrets, tmp_path)
        door = Door(core, Uploads(core, tmp_path, auditing), Entrance(core, key), lambda: [], auditing)
        rpc.add_CoordinatorServicer_to_server(door, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ticket = Ticket("r", (f"127.0.0.1:{port}",), key.public, b"", ())
        client = StatusClient(ticket)

        async def rounds() -> list[dict[str, Any]]:
            return list((await client.status())["rounds"])

        try:
            assert [entry["round"] for entry in await rounds()] == list(range(1, COUNT + 1))
            finish(core, COUNT + 1)
            core.emit("heldout", base_cid=f"base-{COUNT + 1}", loss=4.0)
            known = await rounds()
            assert known == list(core.state.rounds) and len(known) == COUNT + 1
            assert known[COUNT - 1]["heldout_loss"] == 4.0
            assert (await fetch_status(ticket))["rounds"] == list(core.state.rounds)
        finally:
            await client.close()
            await server.stop(0)

    asyncio.run(run())
