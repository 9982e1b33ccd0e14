"""A run survives the loss of any one of its processes: one run in which each kind of them is killed, one after the other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.files import atomic_write
from common.log import read_events
from protocol.ticket import Ticket
from simulations.cluster import Cluster
from simulations.following import follow
from simulations.progress import Quiet
from simulations.report import acked_updates_lost
from simulations.simulate import SimulationSettings, read_manifests, run_file, start_workers, worker_logs
from simulations.usage import descendants

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

ROUNDS = 6
LIMIT_S = 200.0


def child_of(pid: int, word: str) -> int:
    """The process below `pid` in whose command line a word stands as the end of an argument."""
    for below in descendants(pid):
        if any(part.endswith(word) for part in Path(f"/proc/{below}/cmdline").read_text().split("\0")):
            return below
    raise AssertionError(f"process {pid} has no {word}")


def test_a_run_survives_the_loss_of_any_one_of_its_processes(tmp_path: Path) -> None:
    work = Workload("test", 4, 2, 16)
    settings = SimulationSettings(
        stages=2, replicas=2, rounds=ROUNDS, inner_steps=4, frames_per_inner_step=work.frames_per_step, time_limit_s=LIMIT_S,
        data=tmp_path / "data", extra={"rounds": {"evaluate": False}, "membership": {"silence_s": 4.0}},
    )  # fmt: skip

    async def run() -> dict[str, Any]:
        write_dataset(work, tmp_path / "data")
        atomic_write(tmp_path / "run.toml", run_file(settings, tmp_path / "data").encode())
        async with Cluster(tmp_path) as cluster:
            ticket = await cluster.start_coordinator(tmp_path / "run.toml")
            await start_workers(cluster, ticket, settings)
            coordinator, workers = cluster.coordinator, cluster.workers
            assert coordinator is not None

            async def a_libp2p_daemon() -> None:
                os.kill(child_of(workers[0].pid, "p2pd"), signal.SIGKILL)

            async def the_coordinator() -> None:
                coordinator.expected_end = True
                coordinator.signal(signal.SIGKILL)
                assert coordinator.process is not None
                await coordinator.process.wait()
                await cluster.restart_coordinator()

            async def the_bootstrap_peer() -> None:
                os.kill(child_of(coordinator.pid, "swarm.peer"), signal.SIGKILL)

            async def a_worker() -> None:
                workers[3].expected_end = True
                workers[3].signal(signal.SIGKILL)

            losses: list[Callable[[], Awaitable[None]]] = [a_libp2p_daemon, the_coordinator, the_bootstrap_peer, a_worker]
            for number, lose in enumerate(losses, 1):
                await until_trained(cluster, ticket, number)
                await lose()
            status, _ = await follow(cluster, ticket, settings, Quiet())
            assert cluster.unexpected_ends() == []
            manifests = read_manifests(coordinator.state_dir, status["rounds"], Ticket.decode(ticket).coordinator_key)
            assert acked_updates_lost(worker_logs(workers), manifests) == []
            return status

    status = asyncio.run(run())
    assert [entry["round"] for entry in status["rounds"]] == [*range(1, ROUNDS + 1)]
    accepted = [sum(stage["accepted"] for stage in entry["stages"]) for entry in status["rounds"]]
    assert all(stage["accepted"] >= 1 for entry in status["rounds"] for stage in entry["stages"])
    logs = [read_events(tmp_path / f"worker-{number}" / "events.jsonl") for number in range(4)]
    assert sum(event["event"] == "update_acked" for log in logs for event in log) >= sum(accepted) >= 4 * 3 + 3
    # Those that are left went on as what they were: no process but the killed one was started anew, and all end alike.
    assert [[event["event"] for event in log].count("started") for log in logs] == [1, 1, 1, 1]
    ready = [[event for event in log if event["event"] == "ready"][-1] for log in logs[:3]]
    assert {one["base"] for one in ready} == {status["rounds"][-1]["base_cid"]}


async def until_trained(cluster: Cluster, ticket: str, number: int) -> None:
    """Until a part of a round that is open, this one or a later one, has been trained."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await cluster.status_if_up(ticket)
            if found is not None and found["phase"] == "OPEN" and found["round"] >= number and found["frames_done"]:
                return
            await asyncio.sleep(0.05)
