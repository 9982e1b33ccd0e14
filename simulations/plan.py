"""Fault plans: what is done to which process of a cluster, and when. The file is TOML; the decider is pure.

[[kill]]                  # SIGKILL a worker
round = 2
stage = 1
replica = 0               # index among the stage's replicas, ordered by member id
after_share = 0.5         # of the round's frames

[[freeze]]                # SIGSTOP a worker, SIGCONT it after `for_s` seconds
round = 3
stage = 0
for_s = 10

[[join]]                  # start another worker
round = 3

[[fault]]                 # an injected fault of common.faults in one process; a coordinator that it kills is started again
process = "coordinator"   # or worker-0, worker-1, ...
line = "coordinator.aggregate:round=2:kill"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from common.errors import Code, HocketError
from common.faults import Fault


class _Step(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    round: int = Field(ge=1)
    after_share: float = Field(default=0.5, ge=0.0, le=1.0)


class Kill(_Step):
    """End one replica of a stage with SIGKILL."""

    stage: int = Field(ge=0)
    replica: int = Field(default=0, ge=0)


class Freeze(_Step):
    """Stop one replica of a stage with SIGSTOP and let it go on after `for_s` seconds."""

    stage: int = Field(ge=0)
    replica: int = Field(default=0, ge=0)
    for_s: float = Field(gt=0.0)


class Join(_Step):
    """Start one more worker."""

    after_share: float = Field(default=0.0, ge=0.0, le=1.0)


class InjectedFault(BaseModel):
    """A line of common.faults, given to one process when it starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    process: str = Field(pattern=r"^(coordinator|worker-\d+)$")
    line: str

    @field_validator("line")
    @classmethod
    def _parses(cls, line: str) -> str:
        try:
            Fault.parse(line)
        except HocketError as error:
            raise ValueError(error.detail) from error
        return line


class Plan(BaseModel):
    """A whole fault plan; an empty one does nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kill: tuple[Kill, ...] = ()
    freeze: tuple[Freeze, ...] = ()
    join: tuple[Join, ...] = ()
    fault: tuple[InjectedFault, ...] = ()

    def fault_lines(self, process: str) -> list[str]:
        """The injected faults of one process."""
        return [fault.line for fault in self.fault if fault.process == process]


def load_plan(path: Path | None) -> Plan:
    """Read a plan; without a path, the empty one.

    Raises:
        HocketError: FAULT_PLAN_INVALID with the place and what does not fit there.
    """
    if path is None:
        return Plan()
    try:
        return Plan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HocketError(Code.FAULT_PLAN_INVALID, f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise HocketError(Code.FAULT_PLAN_INVALID, f"{path}: {place}: {first['msg']}") from error


@dataclass(frozen=True)
class Action:
    """What has to be done now.

    Args:
        kind: kill and freeze name a process by `pid`; join starts a worker; thaw ends a freeze.
        round: of the run when the action was decided, which may be later than planned.
        reason: one line for the log.
    """

    kind: Literal["kill", "freeze", "thaw", "join"]
    round: int
    reason: str
    pid: int = 0
    stage: int = 0
    member: str = ""
    peer_id: str = ""


class PlanProgress:
    """Decides which steps of a plan are due; every step acts once. Pure: the status and the time come in."""

    def __init__(self, plan: Plan) -> None:
        self._waiting: list[Kill | Freeze | Join] = [*plan.kill, *plan.freeze, *plan.join]
        self._thaws: list[tuple[float, Action]] = []

    @property
    def done(self) -> bool:
        return not self._waiting and not self._thaws

    @property
    def missed(self) -> list[str]:
        """Steps that have not been due so far, for the report of a run that is over."""
        return [f"{type(step).__name__.lower()} {step.model_dump()}" for step in self._waiting]

    def due(self, status: Mapping[str, Any], now: float) -> list[Action]:
        """The actions for a status of the run at `now` (seconds, any clock that does not jump).

        A step is due once its round is open and has the step's share of its frames. A step whose round went by between two
        looks is due in the next open round. A step whose replica is not there yet waits.
        """
        actions = [action for at, action in self._thaws if at <= now]
        self._thaws = [(at, action) for at, action in self._thaws if at > now]
        if status.get("phase") != "OPEN":
            return actions
        current = int(status.get("round", 0))
        share = int(status.get("frames_done", 0)) / max(int(status.get("target_frames", 0)), 1)
        for step in list(self._waiting):
            if current < step.round or (current == step.round and share < step.after_share):
                continue
            action = self._action(step, status, current, share)
            if action is None:
                continue
            self._waiting.remove(step)
            actions.append(action)
            if isinstance(step, Freeze):
                thaw = Action(
                    "thaw", current, f"{step.for_s} s are over", action.pid, action.stage, action.member, action.peer_id
                )
                self._thaws.append((now + step.for_s, thaw))
        return actions

    @staticmethod
    def _action(step: Kill | Freeze | Join, status: Mapping[str, Any], current: int, share: float) -> Action | None:
        why = f"round {current} has {share:.0%} of its frames"
        if isinstance(step, Join):
            return Action("join", current, why)
        for stage in status.get("stages", ()):
            if int(stage["stage"]) != step.stage:
                continue
            alive = sorted((entry for entry in stage["replicas"] if entry.get("alive", True)), key=lambda entry: entry["member"])
            if step.replica >= len(alive) or not int(alive[step.replica].get("pid") or 0):
                return None
            target = alive[step.replica]
            kind: Literal["kill", "freeze"] = "kill" if isinstance(step, Kill) else "freeze"
            return Action(kind, current, why, int(target["pid"]), step.stage, target["member"], target["peer_id"])
        return None
