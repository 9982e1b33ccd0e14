"""Real disks that run full in the middle of a run: each process ends with one line and goes on once there is room."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.errors import Code, HocketError
from common.files import atomic_write
from common.log import read_events
from protocol.ticket import Ticket
from simulations.child import Child
from simulations.cluster import Cluster
from simulations.following import follow
from simulations.progress import Quiet
from simulations.report import acked_updates_lost
from simulations.simulate import SimulationSettings, read_manifests, run_file, worker_logs

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

DISK_BYTES = 48 * 2**20
LIMIT_S = 180.0


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A run's folder in which the coordinator and the second worker have small file systems of their own."""
    mounted: list[Path] = []
    try:
        for name in ("coordinator", "worker-1"):
            folder = tmp_path / name
            folder.mkdir()
            size = f"size={DISK_BYTES}"
            made = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, text=True)
            if made.returncode != 0:
                pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
            mounted.append(folder)
        yield tmp_path
    finally:
        for folder in mounted:
            subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free; returns the file that takes the room."""
    filler = folder / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as stream:
        while True:
            # One page at a time to the last one: a large write that does not fit may end early.
            stream.write(bytes(4096))
    return filler


async def until_open(cluster: Cluster, ticket: str, number: int) -> None:
    """Wait for a round to be open with some of its frames done."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                status = await cluster.status(ticket)
            except HocketError as error:
                assert error.code is Code.COORDINATOR_UNREACHABLE
                status = {}
            if status.get("phase") == "OPEN" and status["round"] >= number and status["frames_done"] > 0:
                return
            await asyncio.sleep(0.05)


async def ended_with_one_line(child: Child) -> None:
    """The process ends by itself, exit code 7, and its last line says why."""
    assert child.process is not None
    async with asyncio.timeout(LIMIT_S):
        assert await child.process.wait() == 7, child.last_lines()
    lines = child.log_path.read_text(encoding="utf-8").splitlines()
    assert lines[-1].startswith("H402 ") and "Remedy: " in lines[-1], child.last_lines()
    assert not any(line.startswith("Traceback") for line in lines), child.log_path.read_text(encoding="utf-8")[-3000:]


async def hocket(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return await process.wait(), out.decode(), err.decode()


async def look_from_outside(ticket: str) -> None:
    """`hocket status` of the finished run, by the ticket alone; a ticket with another fingerprint is turned away."""
    code, out, _ = await hocket("status", ticket, "--json")
    status = json.loads(out)
    assert code == 0 and status["run_id"] == "simulation-0" and status["phase"] == "FINISHED"
    assert [entry["version"] for entry in status["rounds"]] == [1, 2, 3] and status["coordinator_restarts"] == 1
    code, out, _ = await hocket("status", ticket)
    assert code == 0 and "FINISHED" in out and "simulation-0" in out
    other = dataclasses.replace(Ticket.decode(ticket), tls_sha256=b"\x01" * 32)
    code, out, err = await hocket("status", other.encode())
    assert code == 4 and not out and err.startswith("H302 ") and err.count("\n") == 1


def test_a_worker_and_the_coordinator_go_on_after_room_was_made(out: Path) -> None:
    work = Workload("test", 4, 2, 24)
    settings = SimulationSettings(
        stages=2, replicas=1, rounds=3, inner_steps=10, frames_per_inner_step=work.frames_per_step, data=out / "data",
        time_limit_s=LIMIT_S, extra={"rounds": {"evaluate": False}, "membership": {"silence_s": 6.0}},
    )  # fmt: skip

    async def run() -> None:
        write_dataset(work, out / "data")
        atomic_write(out / "run.toml", run_file(settings, out / "data").encode())
        async with Cluster(out) as cluster:
            ticket = await cluster.start_coordinator(out / "run.toml")
            for _ in range(2):
                await cluster.start_worker(ticket)
            coordinator, worker = cluster.coordinator, cluster.workers[1]
            assert coordinator is not None

            await until_open(cluster, ticket, 1)
            filler = fill(worker.state_dir)
            await ended_with_one_line(worker)
            filler.unlink()
            await worker.start()
            worker.tell(ticket)

            await until_open(cluster, ticket, 2)
            filler = fill(coordinator.state_dir)
            await ended_with_one_line(coordinator)
            filler.unlink()
            await cluster.restart_coordinator()

            status, _ = await follow(cluster, ticket, settings, Quiet())
            await look_from_outside(ticket)
            assert [entry["version"] for entry in status["rounds"]] == [1, 2, 3]
            manifests = read_manifests(coordinator.state_dir, status["rounds"], Ticket.decode(ticket).coordinator_key)
            logs = worker_logs(cluster.workers)
            assert acked_updates_lost(logs, manifests) == []
            # The worker whose disk was full may have no update in round 1; in the other rounds nothing is missing.
            accepted = [[stage["accepted"] for stage in entry["stages"]] for entry in status["rounds"]]
            assert accepted[1:] == [[1, 1], [1, 1]]
            assert sum(event["event"] == "update_acked" for log in logs.values() for event in log) == sum(map(sum, accepted))
            assert [event["event"] for event in read_events(out / "worker-1" / "events.jsonl")].count("started") == 2

    asyncio.run(run())
