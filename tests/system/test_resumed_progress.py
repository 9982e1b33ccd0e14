"""Workers that are killed right after a saved inner step, and started again on the same state directory, go on from there."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from event_logs import refused_moments

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.files import atomic_write
from common.log import read_events
from protocol.ticket import Ticket
from simulations.cluster import Cluster
from simulations.following import follow
from simulations.plan import InjectedFault, Plan
from simulations.progress import Quiet
from simulations.report import acked_updates_lost
from simulations.simulate import SimulationSettings, read_manifests, run_file, worker_logs

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

LIMIT_S = 180.0
INNER_STEPS = 12


def test_workers_killed_after_a_saved_step_go_on_in_the_same_round(tmp_path: Path) -> None:
    work = Workload("test", 4, 2, 16)
    settings = SimulationSettings(
        stages=2, replicas=1, rounds=2, inner_steps=INNER_STEPS, frames_per_inner_step=work.frames_per_step,
        data=tmp_path / "data", time_limit_s=LIMIT_S, extra={"rounds": {"evaluate": False}, "membership": {"silence_s": 15.0}},
    )  # fmt: skip
    at_first_save = "writer.replace.after:path=replica.safetensors:kill"
    plan = Plan(fault=tuple(InjectedFault(process=f"worker-{number}", line=at_first_save) for number in range(2)))

    async def again(cluster: Cluster, ticket: str, number: int) -> None:
        """Wait for the worker to be killed, and start it without the fault."""
        worker = cluster.workers[number]
        assert worker.process is not None
        async with asyncio.timeout(LIMIT_S):
            await worker.process.wait()
        assert worker.killed_by_fault, worker.last_lines()
        worker.arguments = worker.arguments[: worker.arguments.index("--fault")]
        await worker.start()
        worker.tell(ticket)

    async def run() -> None:
        write_dataset(work, tmp_path / "data")
        atomic_write(tmp_path / "run.toml", run_file(settings, tmp_path / "data").encode())
        async with Cluster(tmp_path, plan) as cluster:
            ticket = await cluster.start_coordinator(tmp_path / "run.toml")
            for _ in range(2):
                await cluster.start_worker(ticket)
            await asyncio.gather(*(again(cluster, ticket, number) for number in range(2)))
            status, _ = await follow(cluster, ticket, settings, Quiet())
            assert cluster.coordinator is not None
            manifests = read_manifests(cluster.coordinator.state_dir, status["rounds"], Ticket.decode(ticket).coordinator_key)
            assert acked_updates_lost(worker_logs(cluster.workers), manifests) == []

        first, second = status["rounds"]
        assert refused_moments(tmp_path) == []
        assert [stage["accepted"] for entry in (first, second) for stage in entry["stages"]] == [1, 1, 1, 1]
        assert first["duplicate_microbatches"] == second["duplicate_microbatches"] == 0
        assert 0 < first["frames"] <= first["target_frames"] * 1.1
        for number in range(2):
            # Whoever was told to stop has written what waited, and left nothing half-written.
            (saved,) = (tmp_path / f"worker-{number}" / "progress").iterdir()
            data = saved.read_bytes()
            assert hashlib.sha256(data[:-32]).digest() == data[-32:]
            events = read_events(tmp_path / f"worker-{number}" / "events.jsonl")
            names = [event["event"] for event in events]
            assert names.count("started") == 2 and names.count("resumed") == 1
            (resumed,) = (event for event in events if event["event"] == "resumed")
            assert resumed["round"] == 1 and resumed["inner_steps"] >= 1 and resumed["frames"] > 0
            # The update of the round holds what was trained before the kill and after it, each microbatch once.
            (acked,) = (event for event in events if event["event"] == "update_acked" and event["round"] == 1)
            since = sum(event["frames"] for event in events[names.index("resumed") :] if _step_of(event, 1))
            dropped = sum(event["frames"] for event in events if event["event"] == "inner_step_discarded" and event["round"] == 1)
            assert acked["frames"] == resumed["frames"] + since and dropped == 0
            for entry in manifests[1]["accepted"]:
                if entry["sha256"] == acked["sha256"]:
                    assert entry["frames"] == acked["frames"]

    asyncio.run(run())


def _step_of(event: dict[str, object], number: int) -> bool:
    return event["event"] == "inner_step" and event["round"] == number
