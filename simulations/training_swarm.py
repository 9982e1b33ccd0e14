"""A small run in one process: real stage services, feeders and inner steps over the in-memory carrier, and real aggregation.

Every replica has a member key, a peer in a network in memory, its own weights and moments. All share one compute engine. The
coordinator's part is played by its own deciders on files: leases are numbered in advance, and `coordinator.aggregate` makes the
next version of each stage. So what attackers do to a run can be measured many times in minutes, and two runs differ in nothing
but what is done to them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.aggregate import StageOutcome, Submitted, aggregate_stage
from node.context import RoundContext
from node.downstream import Downstream
from node.engine import Engine, Priority
from node.feeder import Feeder
from node.feeder import Reader as SpeechReader
from node.local_sgd import LocalStage
from node.peers import AddressBook
from node.replica import Replica
from node.stage_service import Serving, StageService
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.roster import RosterView
from protocol.tensor_files import TensorInfo, write_tensors
from simulations.attacks.base import Attack, UpdateAttack, to_rows, to_tensors
from simulations.attacks.impossible import Inflated
from simulations.attacks.on_data import DataAttack
from simulations.made_up_speech import MadeUpSpeech, small_model
from swarm.directory import MemoryDirectory
from swarm.memory import MemoryCarrier, MemoryNetwork
from tts.collation import UtteranceLike
from tts.evaluate_loss import heldout_loss
from tts.stage_files import expected_tensors, read_stage, stage_file_name, weights_of, write_stage
from tts.stages import build_stage

logger = logging.getLogger(__name__)

RUN = "training-swarm"
DRAIN_S = 60.0


@dataclass(frozen=True)
class SwarmSettings:
    """What a small run is.

    Args:
        replicas: of each stage. rounds, inner_steps: of the run, and of each replica in a round.
        microbatches, utterances: of an inner step of one replica of stage 0.
        rule, prepare, tolerate: of the aggregation.
        attackers: of each stage; the last ones by number. attack: theirs; None: they are honest.
        first_round: in which they begin.
    """

    stages: int = 2
    replicas: int = 5
    rounds: int = 8
    inner_steps: int = 5
    microbatches: int = 1
    utterances: int = 6
    inner_lr: float = 3e-2
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    rule: str = "centred_clipping"
    prepare: str = "none"
    tolerate: int = 1
    attackers: int = 0
    attack: Attack | None = None
    first_round: int = 1
    seed: int = 0


@dataclass
class SwarmResult:
    """What a small run came to.

    Args:
        losses: held-out cross-entropy per code of every version, that of the first weights first.
        outcomes: of the aggregations, by round and stage. attackers: their member ids by stage.
    """

    losses: list[float] = field(default_factory=list)
    outcomes: list[list[StageOutcome]] = field(default_factory=list)
    attackers: list[set[str]] = field(default_factory=list)


class _Poisoned:
    """A reader whose utterances a data attack has changed; the held-out ones are left."""

    def __init__(self, reader: SpeechReader, attack: DataAttack, codebook_size: int) -> None:
        self._reader, self._attack, self._size = reader, attack, codebook_size

    async def utterances(self, epoch: int, start: int, stop: int, seed: int) -> Sequence[UtteranceLike]:
        return self._attack.poison(await self._reader.utterances(epoch, start, stop, seed), self._size)

    async def heldout(self) -> Sequence[UtteranceLike]:
        return await self._reader.heldout()


@dataclass
class _Node:
    """One replica."""

    stage: int
    number: int
    key: MemberKey
    carrier: MemoryCarrier
    local: LocalStage
    service: StageService | None = None
    replica: Replica | None = None
    feeder: Feeder | None = None


async def _nothing() -> None:
    """No lease is reported: the next ones are known already."""


async def _no_lease() -> pb.LeaseReply | None:
    return None


def _silent(name: str, **fields: Any) -> None:
    """The event log of a replica whose events nobody reads."""


class TrainingSwarm:
    """A small run.

    Args:
        settings: of the run. folder: for the files of versions and updates.
    """

    def __init__(self, settings: SwarmSettings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._config = small_model()
        self._speech = MadeUpSpeech(settings.seed)
        self._engine = Engine("training-swarm")
        self._network, self._directory = MemoryNetwork(), MemoryDirectory()
        self._tensors: list[list[TensorInfo]] = [
            expected_tensors(self._config, stage, settings.stages) for stage in range(settings.stages)
        ]
        self._base = [folder / f"version-0-{stage_file_name(stage)}" for stage in range(settings.stages)]
        self._momentum: list[Path | None] = [None] * settings.stages
        self._frames_before = 0
        self._nodes = [self._node(stage, number) for stage in range(settings.stages) for number in range(settings.replicas)]
        roster = pb.Roster(run_id=RUN, round=1)
        for node in self._nodes:
            roster.entries.append(pb.RosterEntry(
                member_id=node.key.member_id, peer_id=node.carrier.peer_id, stage=node.stage, role=pb.REPLICA, generation=1
            ))  # fmt: skip
        self._roster = RosterView(roster)

    def _node(self, stage: int, number: int) -> _Node:
        key = MemberKey.from_seed(hashlib.sha256(f"{self.settings.seed}|{stage}|{number}".encode()).digest())
        local = LocalStage(
            build_stage(self._config, stage, self.settings.stages), ordered=True, weight_decay=0.01, clip_norm=1.0
        )
        return _Node(stage, number, key, MemoryCarrier(self._network, f"peer-{stage}-{number}"), local)

    def attacks(self, node: _Node) -> bool:
        """Whether this replica belongs to an attacker."""
        return node.number >= self.settings.replicas - self.settings.attackers

    async def run(self) -> SwarmResult:
        """Train all rounds."""
        settings, result = self.settings, SwarmResult()
        self._folder.mkdir(parents=True, exist_ok=True)
        result.attackers = [
            {node.key.member_id for node in self._nodes if node.stage == stage and self.attacks(node)}
            for stage in range(settings.stages)
        ]
        for stage, path in enumerate(self._base):
            write_stage(path, build_stage(self._config, stage, settings.stages, seed=settings.seed))
        try:
            for node in self._nodes:
                if node.stage > 0:
                    node.service = StageService(node.carrier, node.key, RUN)
                    await node.service.start()
            result.losses.append(self._heldout())
            for number in range(1, settings.rounds + 1):
                await self._train(number)
                updates = await self._close(number)
                result.outcomes.append([self._aggregate(number, stage, updates[stage]) for stage in range(settings.stages)])
                result.losses.append(self._heldout())
                logger.info("round %d: held out %.4f", number, result.losses[-1])
        finally:
            for node in self._nodes:
                await node.carrier.close()
            self._engine.close()
        return result

    # ---- one round --------------------------------------------------------------------------------------------------

    async def _train(self, number: int) -> None:
        """Adopt the round's base everywhere and work off the round's leases."""
        for stage, path in enumerate(self._base):
            weights = weights_of(read_stage(path, self._config, stage, self.settings.stages))
            for node in self._nodes:
                if node.stage == stage:
                    await self._engine.run(Priority.STEP, node.local.adopt, weights)
                    self._open(node, number, f"version-{number - 1}")
        feeders = [node for node in self._nodes if node.feeder is not None]
        for step in range(self.settings.inner_steps):
            # One inner step of the swarm after the other, so that each replica has its share of every one.
            await asyncio.gather(*(self._work(node, number, step) for node in feeders))
        for node in self._nodes:
            assert node.replica is not None
            await node.replica.settled()

    async def _work(self, node: _Node, number: int, step: int) -> None:
        assert node.feeder is not None
        settings = self.settings
        lease = ((number - 1) * settings.inner_steps + step) * settings.replicas + node.number
        await node.feeder.work(pb.LeaseReply(
            granted=True, lease_id=lease, epoch=0, start=lease * settings.utterances, stop=(lease + 1) * settings.utterances,
            first_microbatch_id=lease * settings.microbatches,
        ))  # fmt: skip

    def _open(self, node: _Node, number: int, base: str) -> None:
        settings = self.settings
        context = RoundContext(
            RUN, number, base, node.key.member_id, node.carrier.peer_id, node.stage, settings.stages, 1, self._roster,
            self._round_settings(), self._config,
        )  # fmt: skip
        node.replica = Replica(node.local, self._engine, context, _silent)
        downstream = None
        if node.stage < settings.stages - 1:
            downstream = Downstream(node.carrier, node.key, context, AddressBook(self._directory, RUN), _silent)
        if node.service is not None:
            node.service.serve(Serving(context, node.replica, downstream))
        if node.stage == 0:
            reader: SpeechReader = self._speech
            if isinstance(settings.attack, DataAttack) and self.attacks(node) and number >= settings.first_round:
                reader = _Poisoned(reader, settings.attack, self._config.codebook_size)
            node.feeder = Feeder(context, node.replica, downstream, reader, (), _no_lease, _silent, _nothing)

    def _round_settings(self) -> pb.RoundSettings:
        settings = self.settings
        frames = settings.utterances * 30
        steps = settings.rounds * settings.inner_steps
        return pb.RoundSettings(
            frames_per_inner_step=frames, microbatches_per_inner_step=settings.microbatches, target_frames=1 << 40,
            inner_lr_peak=settings.inner_lr, total_frames=steps * frames * settings.replicas, frames_before=self._frames_before,
            seed=settings.seed, wire="fp32", silence_s=60.0, step_deadline_s=120.0, attempts=4, weight_decay=0.01, clip_norm=1.0,
            accumulation="ordered", lr_floor=0.1,
        )  # fmt: skip

    async def _close(self, number: int) -> list[list[Submitted]]:
        """What every replica sends, the attackers' forgeries in the place of their updates; by stage."""
        updates: list[list[tuple[_Node, dict[str, np.ndarray], int]]] = [[] for _ in range(self.settings.stages)]
        done = 0
        for node in self._nodes:
            assert node.replica is not None
            node.replica.drain()
            if not await node.replica.idle(DRAIN_S):
                raise RuntimeError("a replica did not drain")
            update = await node.replica.close()
            updates[node.stage].append((node, {name: value.copy() for name, value in update.items()}, node.replica.totals.frames))
            done += node.replica.totals.frames if node.stage == 0 else 0
        self._frames_before += done
        return [self._written(number, stage, updates[stage]) for stage in range(self.settings.stages)]

    def _written(self, number: int, stage: int, updates: list[tuple[_Node, dict[str, np.ndarray], int]]) -> list[Submitted]:
        attack = self.settings.attack
        false = [entry for entry in updates if self.attacks(entry[0])]
        sent: dict[int, Mapping[str, np.ndarray]] = {node.number: update for node, update, _ in updates}
        if isinstance(attack, UpdateAttack) and false and number >= self.settings.first_round:
            honest = to_rows([update for node, update, _ in updates if not self.attacks(node)])
            draw = np.random.Generator(np.random.Philox(key=[self.settings.seed, number * self.settings.stages + stage]))
            forged = attack.forge(honest, to_rows([update for _, update, _ in false]), draw)
            for (node, update, _), row in zip(false, forged, strict=True):
                sent[node.number] = to_tensors(row, update)
        submitted = []
        for node, _, frames in updates:
            path = self._folder / f"update-{stage}-{node.number}.safetensors"
            write_tensors(path, sent[node.number])
            claimed = attack.frames if isinstance(attack, Inflated) and self.attacks(node) else frames
            submitted.append(Submitted(node.key.member_id, path, claimed))
        return submitted

    def _aggregate(self, number: int, stage: int, submitted: list[Submitted]) -> StageOutcome:
        settings = self.settings
        weights = self._folder / f"version-{number}-{stage_file_name(stage)}"
        momentum = self._folder / f"momentum-{number}-{stage_file_name(stage)}"
        outcome = aggregate_stage(
            self._base[stage], self._momentum[stage], submitted, self._tensors[stage], rule=settings.rule,
            tolerate=settings.tolerate, outer_lr=settings.outer_lr, outer_momentum=settings.outer_momentum, new_weights=weights,
            new_momentum=momentum, prepare=settings.prepare, seed=f"{settings.seed}|{number}|{stage}".encode(), threads=1,
        )  # fmt: skip
        if outcome.accepted:
            self._base[stage] = weights
            self._momentum[stage] = momentum if outcome.momentum else None
        return outcome

    def _heldout(self) -> float:
        """Cross-entropy per code of the held-out speech under the newest version."""
        stages = [
            read_stage(path, self._config, stage, self.settings.stages) for stage, path in enumerate(self._base)
        ]
        return heldout_loss(stages, self._speech.heldout_utterances()).per_code
