"""Deterministic fault injection: a process can be told to die, to freeze, or to stop, when it reaches a named point.

Code calls `faults.reach("node.submit.half", round=3)` at a point of interest. Without a plan that is one dictionary
look-up. A plan is a list of lines `point[:key=value,...]:action`, given to a process by its command line; each line acts once.

Points are listed where they are reached; `docs/faults.md` names them all.
"""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass

from common.errors import Code, HocketError

logger = logging.getLogger(__name__)

ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
FAIL = "fail"


@dataclass(frozen=True)
class Fault:
    """One line of a plan: at `point`, when every key of `where` has the given value, `action` happens to this process."""

    point: str
    where: tuple[tuple[str, str], ...]
    action: str

    @classmethod
    def parse(cls, line: str) -> Fault:
        """Read `point:action` or `point:key=value,key=value:action`; FAULT_PLAN_INVALID otherwise."""
        parts = line.strip().split(":")
        if len(parts) not in (2, 3) or parts[-1] not in (*ACTIONS, FAIL) or not parts[0]:
            raise HocketError(Code.FAULT_PLAN_INVALID, f"{line!r} is not point[:key=value,...]:kill|stop|term|fail")
        where: list[tuple[str, str]] = []
        for pair in parts[1].split(",") if len(parts) == 3 else []:
            key, sign, value = pair.partition("=")
            if not (key and sign and value):
                raise HocketError(Code.FAULT_PLAN_INVALID, f"{pair!r} in {line!r} is not key=value")
            where.append((key, value))
        return cls(parts[0], tuple(where), parts[-1])


class Faults:
    """The plan of one process."""

    def __init__(self, plan: list[Fault] | None = None) -> None:
        self._waiting: dict[str, list[Fault]] = {}
        for fault in plan or []:
            self._waiting.setdefault(fault.point, []).append(fault)

    def reach(self, point: str, **facts: object) -> None:
        """Act on the first fault that waits for `point` and whose conditions `facts` meet; RuntimeError where that is to fail."""
        waiting = self._waiting.get(point)
        if not waiting:
            return
        for fault in waiting:
            if all(str(facts.get(key)) == value for key, value in fault.where):
                waiting.remove(fault)
                logger.warning("fault injected at %s: %s", point, fault.action)
                if fault.action == FAIL:
                    raise RuntimeError(f"a fault was injected at {point}")
                os.kill(os.getpid(), ACTIONS[fault.action])
                return


NO_FAULTS = Faults()
