"""A run on one machine: the coordinator and the workers as processes of their own, each with its own state directory.

A worker gets its ticket, a state directory and limits, and nothing else: the environment is emptied down to what an
interpreter needs.
Only processes that the cluster itself started are ever signalled, each by its pid.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from common.errors import Code, HocketError, error_of_line
from protocol.ticket import Ticket
from simulations.plan import Action, Plan
from simulations.status_client import StatusClient
from simulations.usage import Usage, start_ticks

logger = logging.getLogger(__name__)

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE")
POLL_S = 0.1
TERM_GRACE_S = 15.0
START_GRACE_S = 90.0


def bare_environment(temporary: Path) -> dict[str, str]:
    """What a process of the cluster sees of the environment: no way to learn about the others from it."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Child:
    """One process of the cluster.

    Args:
        name: coordinator, worker-0, ...
        arguments: of `hocket`.
        state_dir: its own folder.
        log_path: where its standard output and error go.
    """

    name: str
    arguments: list[str]
    state_dir: Path
    log_path: Path
    process: asyncio.subprocess.Process | None = None
    usage: Usage = field(default_factory=Usage)
    expected_end: bool = False
    started_at: float = 0.0
    temporary: Path | None = None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise HocketError(Code.CHILD_FAILED, f"{self.name} has not been started")
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def killed_by_fault(self) -> bool:
        """Whether the process ended by SIGKILL and had been given faults to inject."""
        return self.process is not None and self.process.returncode == -signal.SIGKILL and "--fault" in self.arguments

    async def start(self) -> None:
        """Start the process; its output is appended to its log."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        if self.temporary is None:
            # Sockets may be made here and their paths are short by law, so it is not inside the state directory.
            self.temporary = Path(tempfile.mkdtemp(prefix="hocket-"))
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "cli.main",
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.state_dir,
                env=bare_environment(self.temporary),
            )
        self.started_at = time.time()
        self.expected_end = False
        logger.info("%s started, pid %d", self.name, self.pid)

    def signal(self, number: int) -> None:
        """Send a signal to this process alone; nothing happens when it has ended, also if that is not known here yet."""
        if self.running:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                logger.debug("%s, pid %d, has ended by itself", self.name, self.pid)

    async def stop(self, grace_s: float = TERM_GRACE_S) -> int:
        """SIGTERM, then SIGKILL when it has not gone after `grace_s`; returns the exit code."""
        self.expected_end = True
        if self.process is None:
            return 0
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.process.wait()
        except TimeoutError:
            logger.warning("%s did not end within %.0f s of SIGTERM: SIGKILL", self.name, grace_s)
        self.signal(signal.SIGKILL)
        return await self.process.wait()

    def last_lines(self, count: int = 3) -> str:
        """The end of the log, for an error in one line."""
        if not self.log_path.exists():
            return "no log"
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-count:]) or "empty log"


@dataclass(frozen=True)
class FaultRecord:
    """A fault that the cluster inflicted.

    Args:
        kind: kill or freeze.
        at: seconds since the epoch.
        until: when a frozen process went on; None for a kill.
    """

    kind: str
    process: str
    pid: int
    stage: int
    round: int
    member: str
    peer_id: str
    at: float
    until: float | None = None


class Cluster:
    """Starts, watches, hurts and ends the processes of one run. Use as an async context manager: nothing outlives it.

    Args:
        out: folder; each process gets a folder of its own inside.
        plan: injected faults are handed to the processes at their start; `act` carries out the other steps.
        threads: CPU threads of a worker.
    """

    def __init__(self, out: Path, plan: Plan | None = None, *, threads: int = 1) -> None:
        self.out = out.resolve()
        self.plan = plan or Plan()
        self.threads = threads
        self.coordinator: Child | None = None
        self.workers: list[Child] = []
        self.faults: list[FaultRecord] = []
        self.coordinator_restarts = 0
        self._client: StatusClient | None = None

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start_coordinator(self, run_toml: Path) -> str:
        """Start the coordinator and wait for its ticket; returns the ticket's line."""
        state = self.out / "coordinator"
        arguments = ["coordinator", str(run_toml.resolve()), "--state-dir", str(state)]
        for line in self.plan.fault_lines("coordinator"):
            arguments += ["--fault", line]
        self.coordinator = Child("coordinator", arguments, state, self.out / "coordinator.log")
        await self.coordinator.start()
        return await self._ticket(self.coordinator)

    async def _ticket(self, coordinator: Child) -> str:
        path = coordinator.state_dir / "ticket.txt"
        deadline = time.monotonic() + START_GRACE_S
        while time.monotonic() < deadline:
            if path.exists() and (line := path.read_text(encoding="utf-8").strip()):
                return line
            self._require(coordinator)
            await asyncio.sleep(POLL_S)
        raise HocketError(
            Code.CHILD_FAILED, f"the coordinator gave no ticket in {START_GRACE_S:.0f} s, see {coordinator.log_path}"
        )

    async def start_worker(self, ticket: str) -> Child:
        """Start one more worker with the ticket and nothing else."""
        number = len(self.workers)
        name = f"worker-{number}"
        state = self.out / name
        arguments = ["worker", ticket, "--state-dir", str(state), "--threads", str(self.threads), "--operator", name]
        for line in self.plan.fault_lines(name):
            arguments += ["--fault", line]
        child = Child(name, arguments, state, self.out / f"{name}.log")
        self.workers.append(child)
        await child.start()
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
        else:
            child.signal(signal.SIGCONT)
            self.faults = [
                FaultRecord(**{**record.__dict__, "until": now}) if record.pid == action.pid and record.until is None else record
                for record in self.faults
            ]
            return
        logger.info("%s of %s (stage %d): %s", action.kind, child.name, action.stage, action.reason)
        self.faults.append(
            FaultRecord(action.kind, child.name, action.pid, action.stage, action.round, action.member, action.peer_id, now)
        )

    async def supervise(self, status: Mapping[str, Any]) -> None:
        """Notice processes that ended. A coordinator that an injected fault killed is started again; else its end is an error.

        Args:
            status: the last status seen, which says what stage a worker that an injected fault killed was serving.
        """
        if self.coordinator is not None and not self.coordinator.running:
            if self.coordinator.killed_by_fault:
                await self.restart_coordinator()
            elif not self.coordinator.expected_end:
                self._require(self.coordinator)
        for worker in self.workers:
            if worker.killed_by_fault and not worker.expected_end:
                worker.expected_end = True
                self._record("kill", worker, status)

    def _record(self, kind: str, child: Child, status: Mapping[str, Any]) -> None:
        for stage in status.get("stages", ()):
            for entry in stage["replicas"]:
                if int(entry.get("pid") or 0) == child.pid:
                    where = (int(stage["stage"]), int(status.get("round", 0)), str(entry["member"]), str(entry["peer_id"]))
                    self.faults.append(FaultRecord(kind, child.name, child.pid, *where, time.time()))
                    return
        logger.warning("%s was killed while it served no stage", child.name)

    def unexpected_ends(self) -> list[str]:
        """Workers that ended without having been told to."""
        ended: list[str] = []
        for worker in self.workers:
            code = worker.process.returncode if worker.process is not None else None
            if code is not None and code != 0 and not worker.expected_end:
                ended.append(f"{worker.name} ended with {code}: {worker.last_lines()}")
        return ended

    def sample_usage(self) -> None:
        """Look at what every running process uses."""
        for child in [*([self.coordinator] if self.coordinator else []), *self.workers]:
            if child.running:
                child.usage.sample(child.pid)

    @staticmethod
    def _require(child: Child) -> None:
        if not child.running:
            code = child.process.returncode if child.process is not None else None
            own = error_of_line(child.last_lines(1))
            if own is not None:  # what a person must mend, told as if it had been found here
                raise own
            raise HocketError(Code.CHILD_FAILED, f"{child.name} ended with {code}, see {child.log_path}: {child.last_lines()}")

    async def stop_workers(self) -> None:
        """End all workers, all at once."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))

    async def stop(self) -> None:
        """End everything that was started, workers first, and clear what killed processes left behind."""
        if self._client is not None:
            await self._client.close()
            self._client = None
        children = [*self.workers, *([self.coordinator] if self.coordinator else [])]
        await self.stop_workers()
        if self.coordinator is not None:
            await self.coordinator.stop()
        for child in children:
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
