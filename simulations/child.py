"""One process of a cluster: started in an environment of its own, signalled by its pid alone, and ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Code, HocketError, error_of_line
from simulations.nursery import Fork, Nursery
from simulations.usage import Usage

logger = logging.getLogger(__name__)

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE")
TERM_GRACE_S = 15.0


def bare_environment(temporary: Path) -> dict[str, str]:
    """What a process of the cluster sees of the environment: no way to learn about the others from it."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Child:
    """One process of the cluster.

    Args:
        name: coordinator, worker-0, ...
        arguments: of `module`.
        state_dir: its own folder.
        log_path: where its standard output and error go.
        within: a command that starts it inside a network of its own; empty: in ours.
        told_later: it is started without its ticket, which `tell` gives it.
        module: that is run; `hocket` by default.
        nursery: forks the process instead of its being started anew; not for one `within` a network.
    """

    name: str
    arguments: list[str]
    state_dir: Path
    log_path: Path
    within: Sequence[str] = ()
    told_later: bool = False
    module: str = "cli.main"
    nursery: Nursery | None = None
    process: asyncio.subprocess.Process | Fork | None = None
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
        environment = bare_environment(self.temporary)
        with self.log_path.open("ab") as log:
            if self.nursery is not None and not self.within:
                self.process = await self.nursery.fork(
                    self.module, self.arguments, environment=environment, folder=self.state_dir, log=log.fileno(),
                    told=self.told_later,
                )  # fmt: skip
            else:
                self.process = await asyncio.create_subprocess_exec(
                    *self.within,
                    sys.executable,
                    "-m",
                    self.module,
                    *self.arguments,
                    stdin=asyncio.subprocess.PIPE if self.told_later else asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.state_dir,
                    env=environment,
                )
        self.started_at = time.time()
        self.expected_end = False
        logger.info("%s started, pid %d", self.name, self.pid)

    def tell(self, ticket: str) -> None:
        """Give a process that waits for it its ticket, once."""
        if self.process is None or self.process.stdin is None:
            raise HocketError(Code.CHILD_FAILED, f"{self.name} does not wait for a ticket")
        # Too little to fill a pipe; one that has ended meanwhile is noticed as every other is.
        self.process.stdin.write((ticket + "\n").encode())
        self.process.stdin.close()

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

    def require(self) -> None:
        """CHILD_FAILED, or the error with which it ended itself, when the process does not run."""
        if self.running:
            return
        code = self.process.returncode if self.process is not None else None
        own = error_of_line(self.last_lines(1))
        if own is not None:  # what a person must mend, told as if it had been found here
            raise own
        raise HocketError(Code.CHILD_FAILED, f"{self.name} ended with {code}, see {self.log_path}: {self.last_lines()}")

    def has_logged(self, words: str) -> bool:
        """Whether words stand in its log."""
        return self.log_path.exists() and words in self.log_path.read_text(encoding="utf-8", errors="replace")

    def last_lines(self, count: int = 3) -> str:
        """The end of the log, for an error in one line."""
        if not self.log_path.exists():
            return "no log"
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-count:]) or "empty log"
