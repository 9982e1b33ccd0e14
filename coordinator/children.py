"""Child processes of the coordinator: what needs torch or hivemind runs in them, so that the core needs neither."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from common.errors import Code, HocketError, error_of_line
from common.files import disk_error
from common.restarts import Restarts

logger = logging.getLogger(__name__)

RESTARTS = 5
RESTART_WINDOW_S = 600.0
READY_S = 120.0
STOP_S = 10.0
FIRST_PAUSE_S = 0.5
UNREAD_BYTES = 1 << 16


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours in a process of its own."""
    return [sys.executable, "-m", module, *arguments]


async def run_once(command: Sequence[str], log: Path, *, limit_s: float = 1800.0, output: Path | None = None) -> None:
    """Run a child to its end; its standard input closes when this process ends.

    Args:
        log: takes what it writes to its standard error, and to its standard output if that has no file of its own, `output`.

    Raises:
        HocketError: the one with which the child ended, or CHILD_FAILED with the log's last line.
    """
    try:
        with log.open("ab") as stream, (output or log).open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=said, stderr=stream
            )  # fmt: skip
    except OSError as error:
        raise disk_error(error, log) from error
    try:
        async with asyncio.timeout(limit_s):
            status = await process.wait()
    except TimeoutError as error:
        raise HocketError(Code.CHILD_FAILED, f"{command[2]} did not end within {limit_s:.0f} s; log: {log}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["(empty)"]
        own = error_of_line(lines[-1])
        if own is not None:
            raise own
        raise HocketError(Code.CHILD_FAILED, f"{command[2]} ended with status {status}; log: {log}; last line: {lines[-1]}")


@dataclass
class Child:
    """A long-lived child that prints one JSON line when it is up, and ends when its standard input closes.

    Args:
        name: for logs and errors.
        command: makes the command line; it is asked again before each start.
        log: file for the child's standard error.
        on_ready: gets the JSON line of each start.
        on_word: gets each JSON object that the child prints later, and its process id.
    """

    name: str
    command: Callable[[], Sequence[str]]
    log: Path
    on_ready: Callable[[dict[str, Any]], None]
    on_word: Callable[[int, dict[str, Any]], None] = lambda pid, word: None
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _restarts: Restarts = field(default_factory=lambda: Restarts(RESTARTS, RESTART_WINDOW_S, FIRST_PAUSE_S), init=False)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the child and wait until it is up; CHILD_FAILED when it does not come up."""
        try:
            with self.log.open("ab") as stream:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stream
                )  # fmt: skip
        except OSError as error:
            raise disk_error(error, self.log) from error
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = await self._process.stdout.readline()
            ready = json.loads(line)
        except (TimeoutError, ValueError) as error:
            await self.stop()
            raise HocketError(Code.CHILD_FAILED, f"{self.name} did not come up; log: {self.log}") from error
        if not isinstance(ready, dict):
            await self.stop()
            raise HocketError(Code.CHILD_FAILED, f"{self.name} said something else than that it is up; log: {self.log}")
        logger.info("%s is up, pid %d", self.name, self._process.pid)
        self.on_ready(ready)

    def tell(self, word: dict[str, Any]) -> bool:
        """Write one JSON line to the child's standard input; False if it is not up, or does not read what it is told."""
        stdin = self._process.stdin if self._process is not None else None
        if stdin is None or stdin.is_closing() or stdin.transport.get_write_buffer_size() > UNREAD_BYTES:
            return False
        stdin.write((json.dumps(word) + "\n").encode())
        return True

    async def supervise(self) -> None:
        """Keep the child up: start it whenever it is not, at most RESTARTS times in RESTART_WINDOW_S; then CHILD_FAILED."""
        while True:
            if self._process is None:
                try:
                    await self.start()
                except HocketError as error:
                    await self._pause(error.line())
                    continue
            process = self._process
            assert process is not None and process.stdout is not None
            await self._listen(process.pid, process.stdout)
            status = await process.wait()
            self._process = None
            await self._pause(f"{self.name} ended with status {status}")

    async def _listen(self, pid: int, stdout: asyncio.StreamReader) -> None:
        """Read what the child prints until it ends."""
        while (word := await _next_word(stdout)) is not None:
            self.on_word(pid, word)

    # ---- for a child that nobody supervises --------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether a child that was started, and was not stopped, has ended."""
        return self._process is not None and self._process.returncode is not None

    async def hear(self) -> dict[str, Any] | None:
        """The next JSON object that the child prints; None when it has ended, or was not started."""
        stdout = self._process.stdout if self._process is not None else None
        return None if stdout is None else await _next_word(stdout)

    async def kill(self) -> None:
        """End the child at once."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _pause(self, what: str) -> None:
        """Wait longer after each end of late; CHILD_FAILED after too many."""
        pause_s = self._restarts.after_end(monotonic())
        decision = self._restarts.words(pause_s)
        if pause_s is None:
            raise HocketError(Code.CHILD_FAILED, f"{what}; {decision}; log: {self.log}")
        logger.warning("%s; %s", what, decision)
        await asyncio.sleep(pause_s)

    async def stop(self) -> int | None:
        """Close the child's standard input and wait for its end; kill it when it takes longer than STOP_S.

        Returns:
            Its status; None: there was no child.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            logger.warning("%s did not end by itself; killed", self.name)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return process.returncode


async def _next_word(stdout: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next JSON object; None at the end. What is none is dropped, so that a child never blocks on a full pipe."""
    while True:
        try:
            line = await stdout.readline()
            word = json.loads(line) if line else None
        except ValueError:  # a line beyond the reader's limit, or not JSON
            continue
        if not line:
            return None
        if isinstance(word, dict):
            return word
