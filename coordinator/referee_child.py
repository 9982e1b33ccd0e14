"""The referee's child and what becomes of it: one process for many jobs, as `referee_life.decide` says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from common.errors import HocketError
from common.restarts import Restarts
from coordinator.children import FIRST_PAUSE_S, RESTART_WINDOW_S, RESTARTS, Child
from coordinator.referee_life import Action, Facts, Limits, Turn, decide

logger = logging.getLogger(__name__)


class RefereeChild:
    """One child at a time, and one job at a time.

    Args:
        command: of `tts.referee_child`. log: takes the child's standard error. limits: of its time.
        clock: any steady one, in seconds.
    """

    def __init__(
        self, command: Callable[[], Sequence[str]], log: Path, limits: Limits, clock: Callable[[], float] = monotonic
    ) -> None:
        self._child = Child("the referee", command, log, lambda word: None)
        self._limits = limits
        self._clock = clock
        self._restarts = Restarts(RESTARTS, RESTART_WINDOW_S, FIRST_PAUSE_S)
        self._start_after = 0.0
        self._busy_since: float | None = None
        self._free_since = 0.0
        self._begun = False
        self._cut = ""

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none."""
        return self._child.pid

    @property
    def at_work(self) -> bool:
        """Whether it has begun with the job that it was given last."""
        return self._begun

    async def tend(self, *, wanted: bool) -> Action:
        """Do what is to be done about the child; what it was. Turn.ASK is for the caller to follow, by `do`.

        Args:
            wanted: there is a job for it.
        """
        if self._busy_since is None and self._child.ended:
            self._note_end(f"with status {await self._child.stop()} between two jobs")
        facts = Facts(self._child.pid is not None, wanted, self._busy_since, self._free_since, self._start_after)
        action = decide(facts, self._clock(), self._limits)
        if action.turn is Turn.END:
            logger.info("the referee ends: %s", action.reason)
            await self._child.stop()
        elif action.turn is Turn.CUT:
            self._cut = action.reason
            await self._child.kill()  # whoever waits in `do` hears of its end
        return action

    async def do(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Have a job done, by a child that is started where there is none.

        Returns:
            What the child says of it, or `{"id", "error", "fault": "run"}` where that ended in the middle of it; None where it
            did not come to the job, which can be tried once more.
        """
        name = job["id"]
        self._busy_since, self._begun, self._cut = self._clock(), False, ""
        try:
            if self._child.pid is None:
                try:
                    await self._child.start()
                except HocketError as error:
                    self._note_end(f"at its start: {error.line()}")
                    return None
                self._busy_since = self._clock()
            self._child.tell(job)
            while (word := await self._child.hear()) is not None:
                if word.get("id") == name:
                    return word
                self._begun = self._begun or word.get("begun") == name
            status = await self._child.stop()
            why = self._cut or f"it ended with status {status}"
            self._note_end(f"{'in' if self._begun else 'before it began'} job {name}: {why}")
        finally:
            self._busy_since, self._free_since = None, self._clock()
        if not self._begun:
            return None
        return {"id": name, "error": f"the work could not be redone by the referee: {why}", "fault": "run"}

    async def close(self) -> None:
        """End the child, whatever it does."""
        await self._child.stop()

    def _note_end(self, how: str) -> None:
        """One has ended that should not have: the next one waits a little, longer after each, and long after too many."""
        now = self._clock()
        pause_s = self._restarts.after_end(now)
        words = self._restarts.words(pause_s)
        if pause_s is None:
            pause_s, words = RESTART_WINDOW_S, f"{words}; no other one is started for {RESTART_WINDOW_S:.0f} s"
        self._start_after = now + pause_s
        logger.error("the referee ended %s; %s", how, words)
