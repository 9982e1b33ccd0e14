"""A worker trains on what only a gateway of IPFS still has: pushed by the run's coordinator, and then lost from its own disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ipfs_server import Ipfs, served

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from protocol.content import file_cid
from simulations.cluster import Cluster
from simulations.following import follow
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_file
from swarm.blocks import BlockStore

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LIMIT_S = 240.0


def test_shards_that_no_peer_has_come_from_the_runs_gateway(tmp_path: Path) -> None:
    pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
    work = Workload("test", 4, 2, 16)
    data = write_dataset(work, tmp_path / "data")
    shards = [file_cid(path) for path in sorted((data / "shards").iterdir())]
    store = BlockStore(tmp_path / "coordinator" / "blocks")

    async def run(ipfs: Ipfs) -> dict[str, Any]:
        settings = SimulationSettings(
            stages=1, replicas=1, rounds=1, inner_steps=2, frames_per_inner_step=work.frames_per_step, data=data,
            time_limit_s=LIMIT_S, extra={"rounds": {"evaluate": False}, "ipfs": {"rpc": ipfs.url, "gateways": [ipfs.url]}},
        )  # fmt: skip
        (tmp_path / "run.toml").write_text(run_file(settings, data))
        async with Cluster(tmp_path) as cluster:
            ticket = await cluster.start_coordinator(tmp_path / "run.toml")
            async with asyncio.timeout(LIMIT_S):
                while not set(shards) <= ipfs.pins:
                    await asyncio.sleep(0.1)
            for shard in shards:
                store.remove_file(shard)
            await cluster.start_worker(ticket)
            status, _ = await follow(cluster, ticket, settings, Quiet())
            assert cluster.unexpected_ends() == []
            return status

    with served(Ipfs()) as ipfs:
        status = asyncio.run(run(ipfs))
    (entry,) = status["rounds"]
    assert entry["frames"] > 0 and entry["stages"][0]["accepted"] == 1
    assert any(f"/ipfs/{shard}" in one for one in ipfs.asked for shard in shards)
    held = BlockStore(tmp_path / "worker-0" / "blocks")
    assert any(held.has(shard) and not store.has(shard) for shard in shards)
