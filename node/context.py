"""What a worker knows of the round that it serves: one frozen value, replaced as a whole when the coordinator's view changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from protocol.generated import hocket_pb2 as pb
from protocol.openings import About, MicrobatchAbout
from protocol.roster import RosterView
from tts.config import ModelConfig
from tts.schedule import lr_at


@dataclass(frozen=True)
class RoundContext:
    """The round as one member sees it.

    Args:
        run_id: of the run. round, base_cid: of the round.
        member_id, peer_id: our own.
        stage: that we serve, of `stages`. generation: of our assignment.
        roster: who serves what. settings: of the round. config: of the model.
    """

    run_id: str
    round: int
    base_cid: str
    member_id: str
    peer_id: str
    stage: int
    stages: int
    generation: int
    roster: RosterView
    settings: pb.RoundSettings
    config: ModelConfig

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def index(self) -> int:
        """Our place among the replicas of our stage, which rotates the routing."""
        members = [entry.member_id for entry in self.roster.replicas(self.stage)]
        return members.index(self.member_id) if self.member_id in members else 0

    def next_replicas(self) -> list[pb.RosterEntry]:
        return self.roster.replicas(self.stage + 1)

    def about(self, step: int, microbatches: Iterable[MicrobatchAbout], **optimizer: Any) -> About:
        """What an opening of ours belongs to. `optimizer`: fields of an optimizer step."""
        return About(
            run_id=self.run_id, round=self.round, base_cid=self.base_cid, member_id=self.member_id, stage=self.stage,
            stages=self.stages, generation=self.generation, step=step, seed=self.settings.seed,
            microbatches=tuple(microbatches), **optimizer,
        )  # fmt: skip

    def learning_rate(self, frames_done: int) -> float:
        """Inner learning rate after `frames_done` frames of the round at this replica; its siblings are taken to be as fast."""
        settings = self.settings
        siblings = max(1, len(self.roster.replicas(self.stage)))
        return lr_at(
            settings.frames_before + frames_done * siblings,
            settings.total_frames,
            settings.warmup_frames,
            settings.inner_lr_peak,
            settings.lr_floor,
        )
