"""A module of ours in a process of its own: it says one JSON line when it is up, and one when its standard input has closed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from common.errors import Code, HocketError
from simulations.hostile.tally import Tally

UP_WITHIN_S = 120.0
DONE_WITHIN_S = 60.0


def say(word: dict[str, Any]) -> None:
    """From such a process: one line to whoever started it."""
    print(json.dumps(word), flush=True)


class Helper:
    """One such process; `start` it as a context and `end` it for what it has seen.

    Args:
        module, arguments: `python -m MODULE ARGUMENTS`. log: takes its standard error.
    """

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._module, self._log = module, log
        self._process: asyncio.subprocess.Process | None = None
        self.ready: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        with self._log.open("ab") as log:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=log)
        try:
            self.ready = await self._line(UP_WITHIN_S)
        except BaseException:
            await self._kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kill()

    async def end(self) -> dict[str, Any]:
        """Have it stop; its last word. CHILD_FAILED where that does not come."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        word = await self._line(DONE_WITHIN_S)
        async with asyncio.timeout(DONE_WITHIN_S):
            await self._process.wait()
        return word

    async def _line(self, within_s: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                word: dict[str, Any] = json.loads(await self._process.stdout.readline())
        except (TimeoutError, ValueError) as error:
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise HocketError(Code.CHILD_FAILED, f"{self._module} says nothing within {within_s:.0f} s: {last}") from error
        return word

    async def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def asking(ticket: str, pause_s: float, log: Path) -> Helper:
    """One who asks for the status again and again, `pause_s` apart; for a coordinator that is up."""
    return Helper("simulations.hostile.asker", ticket, str(pause_s), log=log)


def note_answers(tally: Tally, word: Mapping[str, Any]) -> None:
    """Note how long the status took, from the last word of one who asked."""
    tally.health(word["slowest_s"])
    for line in word["faults"]:
        tally.fault(f"the status: {line}")


async def input_closed() -> None:
    """From such a process: wait until whoever started it has it stop, or is gone."""
    await asyncio.to_thread(sys.stdin.buffer.read)
