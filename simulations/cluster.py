"""A run on one machine: the coordinator and the workers as processes of their own, each with its own state directory.

A worker gets its ticket, a state directory and limits, and nothing else: the environment is emptied down to what an
interpreter needs.
Only processes that the cluster itself started are ever signalled, each by its pid.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from common.errors import Code, HocketError
from protocol.ticket import WAITS_FOR_TICKET, Ticket
from simulations.actions import ENDING, Action, FaultRecord, seen_in
from simulations.child import Child
from simulations.links import Link, Links
from simulations.nursery import Nursery
from simulations.plan import Plan
from simulations.status_client import StatusClient
from simulations.usage import start_ticks

logger = logging.getLogger(__name__)

POLL_S = 0.1
START_GRACE_S = 90.0
PREPARE_S = 240.0


class Cluster:
    """Starts, watches, hurts and ends the processes of one run. Use as an async context manager: nothing outlives it.

    Args:
        out: folder; each process gets a folder of its own inside.
        plan: injected faults are handed to the processes at their start; `act` carries out the other steps.
        threads: CPU threads of a worker.
        idle: how many workers are started that wait for a ticket, so that one that joins has its imports behind it. Others are
            started when none is left and no round is open: on the machine that all share, a start takes seconds from the rest.
        links: a network for each worker; None: all share that of this process.
        recycle_every: rounds after which a worker starts its compute engine anew; 0: only after a fault.
        nursery: forks the workers, instead of each loading what it needs; not where each has a network.
    """

    def __init__(
        self,
        out: Path,
        plan: Plan | None = None,
        *,
        threads: int = 1,
        idle: int = 0,
        links: Links | None = None,
        recycle_every: int = 0,
        nursery: Nursery | None = None,
    ) -> None:
        self.out = out.resolve()
        self.plan = plan or Plan()
        self.threads = threads
        self.links = links
        self.recycle_every = recycle_every
        self.nursery = nursery
        self.coordinator: Child | None = None
        self.workers: list[Child] = []
        self._idle_wanted = idle
        self._idle: list[Child] = []
        self._coming = 0
        self._places: dict[str, Link] = {}
        self._named = 0
        self.faults: list[FaultRecord] = []
        self.coordinator_restarts = 0
        self._client: StatusClient | None = None

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start_coordinator(self, run_toml: Path) -> str:
        """Start the coordinator and wait for its ticket; returns the ticket's line."""
        state = self.coordinator_state
        arguments = ["coordinator", str(run_toml.resolve()), "--state-dir", str(state)]
        for line in self.plan.fault_lines("coordinator"):
            arguments += ["--fault", line]
        within = self.links.within_hub if self.links is not None else ()
        self.coordinator = Child("coordinator", arguments, state, self.out / "coordinator.log", within)
        await self.coordinator.start()
        return await self._ticket(self.coordinator)

    async def _ticket(self, coordinator: Child) -> str:
        path = coordinator.state_dir / "ticket.txt"
        deadline = time.monotonic() + START_GRACE_S
        while time.monotonic() < deadline:
            if path.exists() and (line := path.read_text(encoding="utf-8").strip()):
                return line
            coordinator.require()
            await asyncio.sleep(POLL_S)
        raise HocketError(
            Code.CHILD_FAILED, f"the coordinator gave no ticket in {START_GRACE_S:.0f} s, see {coordinator.log_path}"
        )

    async def start_worker(self, ticket: str) -> Child:
        """Have one more worker join, with the ticket and nothing else: one that waits for it, else a new one."""
        child = self._idle.pop(0) if self._idle else await self._start_waiting()
        self.workers.append(child)
        child.tell(ticket)
        return child

    async def fill_idle(self) -> None:
        """Start workers until as many wait for a ticket as are to."""
        await self._start_idle(self._idle_wanted)

    async def prepare(self, wanted: int, note: Callable[[str], None]) -> None:
        """Start so many workers, and wait until all have loaded what they need and wait for a ticket.

        Args:
            note: is told when they are still not there after a long time, and are no longer waited for.

        Raises:
            HocketError: CHILD_FAILED when one ends.
        """
        await self._start_idle(wanted)
        deadline = time.monotonic() + PREPARE_S
        while late := [child.name for child in self._idle if not child.has_logged(WAITS_FOR_TICKET)]:
            for child in self._idle:
                child.require()
            if time.monotonic() > deadline:
                note(f"{len(late)} of {wanted} workers are still being started after {PREPARE_S:.0f} s")
                return
            await asyncio.sleep(POLL_S)

    async def _start_idle(self, wanted: int) -> None:
        while len(self._idle) + self._coming < wanted:
            self._coming += 1
            try:
                self._idle.append(await self._start_waiting())
            finally:
                self._coming -= 1

    async def _start_waiting(self) -> Child:
        """Start a worker that waits for its ticket; the names follow the order in which they will join."""
        name = f"worker-{self._named}"
        self._named += 1
        state = self.out / name
        common, module = ["--state-dir", str(state), "--threads", str(self.threads)], "cli.main"
        attacks = self.plan.attackers_of(name)
        if attacks is None:
            arguments = ["worker", "--ticket-from", "-", *common, "--operator", name, "--recycle-every", str(self.recycle_every)]
        else:
            module = "simulations.attacking"
            arguments = [*common, "--operator", attacks.operator or name, "--attack", attacks.attack]
            arguments += ["--parameters", json.dumps(attacks.parameters), "--from-round", str(attacks.from_round)]
        within: tuple[str, ...] = ()
        place = self.links.reserve() if self.links is not None else None
        if self.links is not None and place is not None:
            arguments += ["--listen", f"/ip4/{place.address}/tcp/0"]
            within = self.links.within_new
            self._places[name] = place
        for line in self.plan.fault_lines(name):
            arguments += ["--fault", line]
        log = self.out / f"{name}.log"
        child = Child(name, arguments, state, log, within, told_later=True, module=module, nursery=self.nursery)
        await child.start()
        if self.links is not None and place is not None and isinstance(child.process, asyncio.subprocess.Process):
            try:
                await self.links.attach(place, child.process)
            except BaseException:
                await child.stop()  # nobody else knows of it yet
                raise
        return child

    async def restart_coordinator(self) -> None:
        """Start the coordinator again on its state directory, without the injected faults that ended it."""
        if self.coordinator is None:
            raise HocketError(Code.CHILD_FAILED, "no coordinator was started")
        arguments = self.coordinator.arguments
        if "--fault" in arguments:
            self.coordinator.arguments = arguments[: arguments.index("--fault")]
        await self.coordinator.start()
        self.coordinator_restarts += 1

    async def status(self, ticket: str, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """The coordinator's status over gRPC, by the ticket alone; COORDINATOR_UNREACHABLE while it is down."""
        if self._client is None:
            self._client = StatusClient(Ticket.decode(ticket))
        return await self._client.status(timeout_s=timeout_s)

    async def status_if_up(self, ticket: str) -> dict[str, Any] | None:
        """The coordinator's status; None, with a line in the log, while it is down."""
        try:
            return await self.status(ticket)
        except HocketError as error:
            if error.code is not Code.COORDINATOR_UNREACHABLE:
                raise
            logger.info("no status: %s", error.detail)
            return None

    async def act(self, action: Action, ticket: str) -> None:
        """Carry out a decided step of the plan."""
        if action.kind == "join":
            await self.start_worker(ticket)
            return
        child = next((worker for worker in self.workers if worker.process is not None and worker.pid == action.pid), None)
        if child is None or not child.running:
            logger.warning("no worker of this cluster has pid %d, %s is not carried out", action.pid, action.kind)
            return
        now = time.time()
        if action.kind == "kill":
            child.expected_end = True
            child.signal(signal.SIGKILL)
        elif action.kind == "freeze":
            child.signal(signal.SIGSTOP)
        elif action.kind == "thaw":
            child.signal(signal.SIGCONT)
        elif self.links is None:
            raise HocketError(Code.NETWORK_REFUSED, f"{child.name} has no network of its own")
        elif action.kind == "cut":
            await self.links.cut(self._places[child.name])
        else:
            await self.links.mend(self._places[child.name])
        logger.info("%s of %s (stage %d): %s", action.kind, child.name, action.stage, action.reason)
        if action.kind in ENDING.values():
            self.faults = [
                replace(record, until=now) if record.pid == action.pid and record.until is None else record
                for record in self.faults
            ]
            return
        self.faults.append(FaultRecord(
            action.kind, child.name, action.pid, action.stage, action.round, action.member, action.peer_id, now, role=action.role
        ))  # fmt: skip

    async def supervise(self, status: Mapping[str, Any]) -> None:
        """Notice processes that ended, and that no worker waits for a ticket any more.

        A coordinator that an injected fault killed is started again; else its end is an error.

        Args:
            status: the last status seen, which says what stage a worker that an injected fault killed was serving, and whether
                a round is open.
        """
        if self.coordinator is not None and not self.coordinator.running:
            if self.coordinator.killed_by_fault:
                await self.restart_coordinator()
            elif not self.coordinator.expected_end:
                self.coordinator.require()
        for worker in self.workers:
            if worker.killed_by_fault and not worker.expected_end:
                worker.expected_end = True
                self._record("kill", worker, status)
        if not self._idle and status.get("phase") not in (None, "OPEN"):
            await self.fill_idle()

    def _record(self, kind: str, child: Child, status: Mapping[str, Any]) -> None:
        one = next((one for one in seen_in(status) if one.pid == child.pid), None)
        if one is not None:
            where = (one.stage, int(status.get("round", 0)), one.member, one.peer_id)
            self.faults.append(FaultRecord(kind, child.name, child.pid, *where, time.time(), role=one.role))
            return
        logger.warning("%s was killed while it served no stage", child.name)

    def unexpected_ends(self) -> list[str]:
        """Honest workers that ended without having been told to; attackers may be shut out."""
        ended: list[str] = []
        for worker in self.workers:
            code = worker.process.returncode if worker.process is not None else None
            if code not in (None, 0) and not worker.expected_end and self.plan.attackers_of(worker.name) is None:
                ended.append(f"{worker.name} ended with {code}: {worker.last_lines()}")
        return ended

    def sample_usage(self) -> None:
        """Look at what every running process uses."""
        for child in self.children:
            if child.running:
                child.usage.sample(child.pid)

    @property
    def coordinator_state(self) -> Path:
        """The coordinator's state directory."""
        return self.out / "coordinator"

    @property
    def children(self) -> list[Child]:
        """Every process that was started, the coordinator first, those that wait last."""
        return [*([self.coordinator] if self.coordinator else []), *self.workers, *self._idle]

    async def stop_workers(self) -> None:
        """End all workers, all at once; those that wait for a ticket too, and no other is started."""
        self._idle_wanted = 0
        await asyncio.gather(*(worker.stop() for worker in [*self.workers, *self._idle]))

    async def stop(self) -> None:
        """End everything that was started, workers first, and clear what killed processes left behind."""
        if self._client is not None:
            await self._client.close()
            self._client = None
        await self.stop_workers()
        if self.coordinator is not None:
            await self.coordinator.stop()
        for child in self.children:
            await self._end_orphans(child)
            if child.temporary is not None:
                shutil.rmtree(child.temporary, ignore_errors=True)
                child.temporary = None

    @staticmethod
    async def _end_orphans(child: Child) -> None:
        """A killed process leaves its p2pd for some seconds: wait for it, then end it by the pid and start time seen earlier."""
        deadline = time.monotonic() + 8.0
        for pid, ticks in child.usage.seen.items():
            while start_ticks(pid) == ticks and time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
            if start_ticks(pid) == ticks:
                logger.warning("process %d, started by %s, outlived it: SIGKILL", pid, child.name)
                os.kill(pid, signal.SIGKILL)
