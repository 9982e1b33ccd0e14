"""A coordinator that comes back at another address, with its key and nothing else that its members know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from protocol.ticket import Ticket
from simulations.cluster import Cluster
from simulations.simulate import SimulationSettings, run_file
from simulations.status_client import StatusClient

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_members_find_a_coordinator_that_moved_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """From 127.0.0.1 to 127.0.0.2: neither its door nor its bootstrap peer is where the ticket says."""
    data = write_dataset(Workload("test", 4, 2, 16), tmp_path / "data")
    settings = SimulationSettings(
        stages=1, replicas=1, rounds=2, inner_steps=2, frames_per_inner_step=8 * 142, data=data,
        extra={"rounds": {"evaluate": False}},
    )  # fmt: skip
    run_toml, ticket_file = tmp_path / "run.toml", tmp_path / "coordinator" / "ticket.txt"

    async def work() -> None:
        run_toml.write_text(run_file(settings, data, "127.0.0.1"))
        async with Cluster(tmp_path) as cluster:
            ticket = await cluster.start_coordinator(run_toml)
            assert cluster.coordinator is not None
            await cluster.start_worker(ticket)
            await until(Ticket.decode(ticket), lambda status: status["phase"] == "OPEN")
            assert await cluster.coordinator.stop() == 0
            run_toml.write_text(run_file(settings, data, "127.0.0.2"))
            ticket_file.unlink()
            await cluster.restart_coordinator()
            while not ticket_file.exists():
                cluster.coordinator.require()
                await asyncio.sleep(0.05)
            moved = Ticket.decode(ticket_file.read_text().strip())
            before = Ticket.decode(ticket)
            assert not set(moved.coordinator_addresses) & set(before.coordinator_addresses)
            assert not set(moved.bootstrap_multiaddrs) & set(before.bootstrap_multiaddrs)
            await until(moved, lambda status: status["phase"] == "FINISHED")
            assert cluster.unexpected_ends() == []
        assert "the coordinator is found at 127.0.0.2:" in cluster.workers[0].log_path.read_text()

    asyncio.run(work())


async def until(ticket: Ticket, true: Callable[[dict[str, Any]], bool]) -> None:
    client = StatusClient(ticket)
    try:
        async with asyncio.timeout(150):
            while not true(await client.status()):
                await asyncio.sleep(0.1)
    finally:
        await client.close()
