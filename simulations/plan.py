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

[[cut]]                   # take a worker's network away, give it back after `for_s` seconds
round = 3
stage = 2
for_s = 10

[[join]]                  # start another worker
round = 3

[churn]                   # random but seeded faults in every round: see simulations/churn.py

[simulation]              # of the cluster, where the command line does not say otherwise: stages, replicas, standbys, rounds, ...

[run_file.membership]     # what the run file is to say besides
silence_s = 4.0

[[attacker]]              # these workers attack, see simulations/attacks/catalogue.py; they join one after the other, so that
workers = [0, 1]          # worker-i comes to the stage i modulo the stages, where all stages have equally many others
attack = "sign_flip"
from_round = 2
parameters = { scale = 10.0 }

[[fault]]                 # an injected fault of common.faults in one process; a coordinator that it kills is started again
process = "coordinator"   # or worker-0, worker-1, ...
line = "coordinator.aggregate:round=2:kill"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from common.errors import Code, HocketError
from common.faults import Fault
from simulations.actions import Action, FaultKind, seen_in
from simulations.attacks.catalogue import attack_named
from simulations.churn import Churn, ChurnProgress

SHIPPED = Path(__file__).parent / "plans"


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


class Cut(_Step):
    """Take the network of one replica of a stage away and give it back after `for_s` seconds; its process goes on."""

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


class AttackingWorkers(BaseModel):
    """Workers that attack. `operator`: that all of them name; empty: each its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: tuple[int, ...] = Field(min_length=1)
    attack: str
    from_round: int = Field(default=1, ge=1)
    parameters: dict[str, Any] = Field(default_factory=dict)
    operator: str = ""

    @model_validator(mode="after")
    def _there_is_such_an_attack(self) -> AttackingWorkers:
        attack_named(self.attack, self.parameters)
        return self


class ClusterTable(BaseModel):
    """The `[simulation]` table: what the plan was made for. What it leaves out is as the command line has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stages: int | None = Field(default=None, ge=1)
    replicas: int | None = Field(default=None, ge=1)
    standbys: int | None = Field(default=None, ge=0)
    rounds: int | None = Field(default=None, ge=1)
    inner_steps: int | None = Field(default=None, ge=1)
    preset: str | None = None
    seed: int | None = None
    wire: str | None = None
    frames_per_inner_step: int | None = Field(default=None, ge=1)
    microbatches_per_inner_step: int | None = Field(default=None, ge=1)
    inner_lr: float | None = Field(default=None, gt=0.0)
    warm_up_steps: int | None = Field(default=None, ge=0)
    idle: int | None = Field(default=None, ge=0)
    clips: int | None = Field(default=None, ge=2)
    time_limit_s: float | None = Field(default=None, ge=10.0)


class Plan(BaseModel):
    """A whole fault plan; an empty one does nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kill: tuple[Kill, ...] = ()
    freeze: tuple[Freeze, ...] = ()
    cut: tuple[Cut, ...] = ()
    join: tuple[Join, ...] = ()
    fault: tuple[InjectedFault, ...] = ()
    attacker: tuple[AttackingWorkers, ...] = ()
    churn: Churn | None = None
    simulation: ClusterTable = ClusterTable()
    run_file: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def cuts(self) -> bool:
        """Whether the network of a worker is to be cut, for which each needs one of its own."""
        return bool(self.cut) or (self.churn is not None and "cut" in self.churn.kinds)

    def without_faults(self) -> Plan:
        """The same cluster, to which nothing is done: what a run with faults is compared with."""
        return Plan(simulation=self.simulation, run_file=self.run_file)

    def attackers_of(self, worker: str) -> AttackingWorkers | None:
        """What a worker of that name, `worker-0`, attacks with; None: it is honest."""
        return next((one for one in self.attacker if worker in {f"worker-{number}" for number in one.workers}), None)

    def fault_lines(self, process: str) -> list[str]:
        """The injected faults of one process."""
        return [fault.line for fault in self.fault if fault.process == process]


def load_plan(path: Path | None) -> Plan:
    """Read a plan; without a path, the empty one. A bare name that is no file here is looked for among the shipped plans.

    Raises:
        HocketError: FAULT_PLAN_INVALID with the place and what does not fit there.
    """
    if path is None:
        return Plan()
    if path.name == str(path) and not path.exists() and (SHIPPED / path.name).is_file():
        path = SHIPPED / path.name
    try:
        return Plan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HocketError(Code.FAULT_PLAN_INVALID, f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise HocketError(Code.FAULT_PLAN_INVALID, f"{path}: {place}: {first['msg']}") from error


class PlanProgress:
    """Decides which steps of a plan are due; every step acts once. Pure: the status and the time come in."""

    def __init__(self, plan: Plan) -> None:
        self._waiting: list[Kill | Freeze | Cut | Join] = [*plan.kill, *plan.freeze, *plan.cut, *plan.join]
        self._endings: list[tuple[float, Action]] = []
        self._churn = ChurnProgress(plan.churn) if plan.churn is not None else None

    @property
    def done(self) -> bool:
        return not self._waiting and not self._endings and (self._churn is None or self._churn.done)

    @property
    def missed(self) -> list[str]:
        """Steps that have not been due so far, for the report of a run that is over."""
        waiting = [f"{type(step).__name__.lower()} {step.model_dump()}" for step in self._waiting]
        return waiting + (self._churn.missed if self._churn is not None else [])

    def due(self, status: Mapping[str, Any], now: float) -> list[Action]:
        """The actions for a status of the run at `now` (seconds, any clock that does not jump).

        A step is due once its round is open and has the step's share of its frames. A step whose round went by between two
        looks is due in the next open round. A step whose replica is not there yet waits.
        """
        actions = [action for at, action in self._endings if at <= now]
        self._endings = [(at, action) for at, action in self._endings if at > now]
        if self._churn is not None:
            actions += self._churn.due(status, now)
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
            if isinstance(step, Freeze | Cut):
                self._endings.append((now + step.for_s, action.ended(f"{step.for_s} s are over")))
        return actions

    @staticmethod
    def _action(step: Kill | Freeze | Cut | Join, status: Mapping[str, Any], current: int, share: float) -> Action | None:
        why = f"round {current} has {share:.0%} of its frames"
        if isinstance(step, Join):
            return Action("join", current, why)
        serving = [one for one in seen_in(status) if one.stage == step.stage and one.role == "replica"]
        alive = sorted(serving, key=lambda one: one.member)
        if step.replica >= len(alive):
            return None
        kinds: dict[type[_Step], FaultKind] = {Kill: "kill", Freeze: "freeze", Cut: "cut"}
        return Action.against(alive[step.replica], kinds[type(step)], current, why)
