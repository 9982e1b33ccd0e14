"""What the state of a run holds: members, leases, updates. Changed by `run.RunState.apply` only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.assignment import Role
from coordinator.leases import Range


@dataclass
class Member:
    """Someone who joined. `stage` is None while unassigned; a member that is not `live` is lost or has left.

    A standby, by its `role`, keeps the base of its stage ready and serves nothing. A `barred` one has to start a new process
    before it is given work again. `late_round` is a round for which it was ready only when that was closing already. `address`
    is the IP address that it last joined from; empty: not known.
    """

    member: str
    peer_id: str
    operator: str = ""
    live: bool = True
    barred: bool = False
    stage: int | None = None
    last_stage: int | None = None
    role: Role = Role.REPLICA
    generation: int = 0
    ready_base: str = ""
    late_round: int = 0
    mismatches: int = 0
    reason: str = ""
    address: str = ""
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Lease:
    """A range that one member, in one generation, trains in this round; `issued` microbatch ids belong to it."""

    lease_id: int
    member: str
    generation: int
    range: Range
    first_microbatch_id: int
    granted_at: float
    issued: int = 0
    done_at: float | None = None
    returned: str = ""
    frames: int = 0
    microbatches: int = 0

    @property
    def outstanding(self) -> bool:
        return self.done_at is None and not self.returned


@dataclass
class Update:
    """An acknowledged update: its bytes are on disk under `path`, relative to the state directory."""

    member: str
    stage: int
    generation: int
    sha256: str
    size_bytes: int
    frames: int
    inner_steps: int
    microbatches: list[tuple[int, int]]
    duplicates: int
    dropped: int
    path: str
