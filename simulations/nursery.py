"""Workers of one machine that are forks of one process which has loaded what they need: see `simulations.nest`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError

logger = logging.getLogger(__name__)

END_GRACE_S = 5.0
UNKNOWN_CODE = 255      # of a process whose end nobody has told
LOOK_S = 0.2


class Told:
    """The standard input of a fork: written once, and closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def write(self, data: bytes) -> None:
        """At most what a pipe holds. Nothing happens where the other end is closed, as with a process of asyncio's."""
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, data)
            except BrokenPipeError:
                logger.debug("a process has closed its standard input")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Fork:
    """One process, as far as `simulations.child` needs it: like `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, stdin: Told | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self, code: int) -> None:
        """It has ended with `code`, or by the signal `-code`."""
        self.returncode = code
        if self.stdin is not None:
            self.stdin.close()
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class Nursery:
    """Start it, have it `fork`, `close` it when all forks have ended.

    Args:
        log: where the nest's errors go. environment: of the nest; that of the forks is their own.
    """

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log, self._environment = log, dict(environment)
        self._ask: socket.socket | None = None
        self._forks: dict[int, Fork] = {}
        self._births: deque[tuple[asyncio.Future[Fork], Told | None]] = deque()
        self._ready = asyncio.Event()
        self._lost = False

    async def start(self) -> None:
        """Start the nest; it loads what workers need while this process goes on."""
        self._ask, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("ab") as log:
            self._nest = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "simulations.nest", str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env=self._environment, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._hearing = asyncio.create_task(self._hear())

    async def fork(
        self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: int, told: bool
    ) -> Fork:
        """A new process that runs `module`.

        Args:
            folder: its working directory. log: descriptor of its standard output and error. told: it is told something on its
                standard input; without, that is empty.

        Raises:
            HocketError: CHILD_FAILED when the nest has ended.
        """
        await self._ready.wait()
        if self._lost or self._ask is None:
            raise self._ended()
        theirs, ours = os.pipe() if told else (os.open(os.devnull, os.O_RDONLY), -1)
        birth = {"module": module, "arguments": [*arguments], "environment": dict(environment), "folder": str(folder)}
        try:
            socket.send_fds(self._ask, [json.dumps(birth).encode()], [log, theirs])
        except OSError as error:
            raise self._ended() from error
        finally:
            os.close(theirs)
        born: asyncio.Future[Fork] = asyncio.get_running_loop().create_future()
        self._births.append((born, Told(ours) if told else None))
        return await born

    def _ended(self) -> HocketError:
        return HocketError(Code.CHILD_FAILED, f"the process that starts workers has ended, see {self._log}")

    async def _hear(self) -> None:
        """Take what the nest tells, in its order, until it ends."""
        assert self._nest.stdout is not None
        while line := await self._nest.stdout.readline():
            self._take(json.loads(line))
        self._lost = True
        self._ready.set()
        for born, _ in self._births:
            if not born.done():
                born.set_exception(self._ended())
        self._births.clear()
        # Their parent is gone, so nobody will be told how the others end: it is seen that they do.
        while self._forks:
            for pid in [pid for pid in self._forks if not Path(f"/proc/{pid}").exists()]:
                self._forks.pop(pid).end(UNKNOWN_CODE)
            await asyncio.sleep(LOOK_S)

    def _take(self, word: Mapping[str, Any]) -> None:
        if "ready" in word:
            self._ready.set()
        elif "born" in word:
            born, stdin = self._births.popleft()
            fork = self._forks[word["born"]] = Fork(word["born"], stdin)
            if not born.done():         # else whoever wanted it has been cancelled, and `close` ends it
                born.set_result(fork)
        elif word["ended"] in self._forks:
            self._forks.pop(word["ended"]).end(word["code"])

    async def close(self) -> None:
        """End the nest, and what it has forked and nobody has ended."""
        if self._ask is None:
            return
        for fork in list(self._forks.values()):
            os.kill(fork.pid, signal.SIGKILL)
            await fork.wait()
        self._ask.close()
        self._ask = None
        try:
            async with asyncio.timeout(END_GRACE_S):
                await self._nest.wait()
        except TimeoutError:
            self._nest.kill()
            await self._nest.wait()
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
