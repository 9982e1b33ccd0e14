"""Random but seeded churn: each round a share of the workers is hurt, and new ones join. The decider is pure.

[churn]
share = 0.3                           # of the live workers, or of those that there were in the beginning if they were fewer
kinds = ["kill", "freeze", "cut"]     # each fault is one of these, by chance
joins = true                          # keep the number of workers that are there and unhurt
seed = 0
from_round = 2
to_round = 19
earliest = 0.1                        # of the round's frames: when faults fall
latest = 0.7
freeze_for_s = 10.0
cut_for_s = 10.0

The last ready replica of a stage is spared, unless a ready standby of the stage is there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simulations.actions import Action, FaultKind, Seen, seen_in


class Churn(BaseModel):
    """The `[churn]` table of a fault plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    share: float = Field(gt=0.0, le=1.0)
    kinds: tuple[FaultKind, ...] = Field(default=("kill", "freeze"), min_length=1)
    joins: bool = True
    seed: int = 0
    from_round: int = Field(default=1, ge=1)
    to_round: int | None = Field(default=None, ge=1)
    earliest: float = Field(default=0.1, ge=0.0, le=1.0)
    latest: float = Field(default=0.7, ge=0.0, le=1.0)
    freeze_for_s: float = Field(default=10.0, gt=0.0)
    cut_for_s: float = Field(default=10.0, gt=0.0)

    @model_validator(mode="after")
    def _ordered(self) -> Churn:
        if self.earliest > self.latest:
            raise ValueError("earliest is above latest")
        if self.to_round is not None and self.to_round < self.from_round:
            raise ValueError("to_round is before from_round")
        return self


@dataclass(frozen=True)
class Hit:
    """One fault of a round, drawn before anybody is named.

    Args:
        after_share: of the round's frames. draw: in [0, 1), which of those that may be hurt it is.
    """

    after_share: float
    kind: FaultKind
    draw: float


def draw_hits(churn: Churn, round_number: int, live: int) -> list[Hit]:
    """The faults of a round with `live` workers, the earliest first; from the seed and the round alone."""
    if round_number < churn.from_round or (churn.to_round is not None and round_number > churn.to_round):
        return []
    chance = random.Random(f"churn/{churn.seed}/{round_number}")
    hits = [
        Hit(chance.uniform(churn.earliest, churn.latest), chance.choice(churn.kinds), chance.random())
        for _ in range(math.floor(churn.share * live + 0.5))
    ]
    return sorted(hits, key=lambda hit: hit.after_share)


def may_be_hurt(workers: Sequence[Seen]) -> list[Seen]:
    """Those of `workers`, who are all unhurt, whose loss leaves their stage another ready replica or standby."""

    def covered_without(one: Seen) -> bool:
        return any(other.pid != one.pid and other.stage == one.stage and other.ready for other in workers)

    return [one for one in workers if covered_without(one)]


class ChurnProgress:
    """Decides whom churn hurts, and when. Pure: the status and the time come in."""

    def __init__(self, churn: Churn) -> None:
        self._churn = churn
        self._round = 0
        self._hits: list[Hit] = []
        self._hurt: dict[int, float] = {}
        self._wanted = 0
        self._present = 0
        self._endings: list[tuple[float, Action]] = []
        self.missed: list[str] = []
        """Faults that found nobody to hurt before their round was over."""

    @property
    def done(self) -> bool:
        """Whether nothing of what was begun is left to be ended."""
        return not self._endings

    def due(self, status: Mapping[str, Any], now: float) -> list[Action]:
        """The actions for a status of the run at `now` (seconds, any clock that does not jump)."""
        actions = [action for at, action in self._endings if at <= now]
        self._endings = [(at, action) for at, action in self._endings if at > now]
        for action in actions:
            self._hurt.pop(action.pid, None)
        if status.get("phase") != "OPEN":
            return actions
        workers = seen_in(status)
        current = int(status.get("round", 0))
        if current != self._round:
            self._begin(current, workers)
        share = int(status.get("frames_done", 0)) / max(int(status.get("target_frames", 0)), 1)
        while self._hits and self._hits[0].after_share <= share:
            allowed = may_be_hurt([one for one in workers if one.pid not in self._hurt])
            if not allowed:
                break
            hit = self._hits.pop(0)
            actions += self._hurt_one(hit, allowed[int(hit.draw * len(allowed))], current, share, now)
        return actions

    def _begin(self, current: int, workers: Sequence[Seen]) -> None:
        self.missed += [f"{hit.kind} at {hit.after_share:.0%} of round {self._round}: nobody to spare" for hit in self._hits]
        self._round = current
        unhurt = [one for one in workers if one.pid not in self._hurt]
        if not self._wanted:
            self._wanted = self._present = len(unhurt)
        # Those that came back may be more than there were: the churn does not grow with them.
        self._hits = draw_hits(self._churn, current, min(len(unhurt), self._wanted))

    def _hurt_one(self, hit: Hit, target: Seen, current: int, share: float, now: float) -> list[Action]:
        """One fault, and the join that makes up for it where workers are too few."""
        fault = Action.against(target, hit.kind, current, f"churn, round {current} has {share:.0%} of its frames")
        actions = [fault]
        if hit.kind == "kill":
            self._hurt[target.pid] = math.inf
            self._present -= 1
        else:
            for_s = self._churn.freeze_for_s if hit.kind == "freeze" else self._churn.cut_for_s
            self._hurt[target.pid] = now + for_s
            self._endings.append((now + for_s, fault.ended(f"{for_s:g} s are over")))
        away = sum(1 for until in self._hurt.values() if until != math.inf)
        if self._churn.joins and self._present - away < self._wanted:
            self._present += 1
            actions.append(Action("join", current, f"churn, {self._present - 1 - away} of {self._wanted} workers are left"))
        return actions
