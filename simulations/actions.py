"""What is done to the processes of a cluster: as it was decided, and as it was carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

FaultKind = Literal["kill", "freeze", "cut"]
"""SIGKILL; SIGSTOP until SIGCONT; the link to everybody else is down until it is mended, while the process goes on."""

ENDING: Mapping[str, Literal["thaw", "mend"]] = {"freeze": "thaw", "cut": "mend"}
"""What ends a fault that has an end."""


@dataclass(frozen=True)
class Seen:
    """A live member, as the coordinator's status shows it.

    Args:
        role: replica or standby. stage: that it serves or is kept ready for.
        ready: it has loaded the round's base.
    """

    pid: int
    stage: int
    role: Literal["replica", "standby"]
    ready: bool
    member: str
    peer_id: str
    operator: str


def seen_in(status: Mapping[str, Any]) -> list[Seen]:
    """The live members of a status whose process is known, in the order of their operators' names."""
    found: list[Seen] = []
    for stage in status.get("stages", ()):
        roles: tuple[tuple[Literal["replica", "standby"], str], ...] = (("replica", "replicas"), ("standby", "standbys"))
        for role, key in roles:
            for entry in stage.get(key, ()):
                if not entry.get("alive", True) or not int(entry.get("pid") or 0):
                    continue
                found.append(Seen(
                    pid=int(entry["pid"]), stage=int(stage["stage"]), role=role, ready=bool(entry.get("ready", False)),
                    member=str(entry["member"]), peer_id=str(entry["peer_id"]), operator=str(entry.get("operator", "")),
                ))  # fmt: skip
    return sorted(found, key=lambda one: (len(one.operator), one.operator, one.member))


@dataclass(frozen=True)
class Action:
    """What has to be done now.

    Args:
        kind: a fault, or what ends one, names a process by `pid`; join starts a worker.
        round: of the run when the action was decided, which may be later than planned.
        reason: one line for the log.
    """

    kind: Literal["kill", "freeze", "cut", "thaw", "mend", "join"]
    round: int
    reason: str
    pid: int = 0
    stage: int = 0
    member: str = ""
    peer_id: str = ""
    role: Literal["replica", "standby"] = "replica"

    @classmethod
    def against(cls, target: Seen, kind: FaultKind, round_number: int, reason: str) -> Action:
        """A fault of one member."""
        return cls(kind, round_number, reason, target.pid, target.stage, target.member, target.peer_id, target.role)

    def ended(self, reason: str) -> Action:
        """What ends this fault; KeyError for one without an end."""
        return replace(self, kind=ENDING[self.kind], reason=reason)


@dataclass(frozen=True)
class FaultRecord:
    """A fault that the cluster inflicted.

    Args:
        kind: kill, freeze or cut.
        at: seconds since the epoch.
        until: when a frozen process went on or a cut link was mended; None: not, or it was a kill.
        role: what the process was in the run.
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
    role: str = "replica"
