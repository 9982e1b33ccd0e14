"""A whole pipeline in one process: real stages, engines, services and feeders over the in-memory carrier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from node.context import RoundContext
from node.downstream import Downstream
from node.engine import Engine
from node.feeder import Feeder
from node.local_sgd import LocalStage
from node.peers import AddressBook
from node.replica import Replica
from node.stage_service import Serving, StageService
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.roster import RosterView
from swarm.directory import MemoryDirectory
from swarm.memory import MemoryCarrier, MemoryNetwork
from tts.collation import UtteranceLike
from tts.config import ModelConfig, preset
from tts.stages import build_stage

RUN = "run-under-test"
BASE = "base-under-test"
CONFIG: ModelConfig = preset("test", n_codebooks=2, codebook_size=16, n_phonemes=12, n_layers=4, d_model=32, text_dim=16)


@dataclass
class Spoken:
    """A synthetic utterance with everything that a shard's row has."""

    id: str
    phonemes: np.ndarray
    durations: np.ndarray
    word_starts: np.ndarray
    codes: np.ndarray
    n_frames: int
    language: str = "en-us"
    speaker_embedding: np.ndarray | None = None


def speak(number: int, config: ModelConfig = CONFIG) -> Spoken:
    """Utterance `number`: a fixed function of it."""
    generator = np.random.default_rng(number)
    phonemes = generator.integers(1, config.n_phonemes, generator.integers(3, 8))
    durations = generator.integers(1, 5, len(phonemes))
    frames = int(durations.sum())
    return Spoken(
        id=f"u{number}",
        phonemes=phonemes.astype(np.uint16),
        durations=durations.astype(np.uint16),
        word_starts=(generator.random(len(phonemes)) < 0.4).astype(np.uint8),
        codes=generator.integers(0, config.codebook_size, (config.n_codebooks, frames)).astype(np.uint16),
        n_frames=frames,
    )


class Corpus:
    """A reader of synthetic utterances: position p of epoch e is utterance 1000 e + p."""

    async def utterances(self, epoch: int, start: int, stop: int, seed: int) -> Sequence[UtteranceLike]:
        return [speak(1000 * epoch + position) for position in range(start, stop)]

    async def heldout(self) -> Sequence[UtteranceLike]:
        return [speak(900_000 + number) for number in range(12)]


async def no_report() -> None:
    """The harness reads the nodes themselves."""


async def no_openings(cid: str, providers: Any) -> dict[str, np.ndarray]:
    """Nobody hands an opening on here."""
    raise HocketError(Code.BLOCK_NOT_FOUND, cid)


class Leases:
    """Grants `count` leases of `utterances` utterances in all, to whoever asks, with running microbatch ids."""

    def __init__(self, count: int, *, utterances: int = 8, microbatches: int = 4) -> None:
        self.count, self.utterances, self.microbatches = count, utterances, microbatches
        self.granted = 0

    async def lease(self) -> pb.LeaseReply:
        if self.granted >= self.count:
            return pb.LeaseReply(granted=False, reason="the round has its frames")
        number, self.granted = self.granted, self.granted + 1
        start = number * self.utterances
        return pb.LeaseReply(
            granted=True,
            lease_id=number,
            epoch=0,
            start=start,
            stop=start + self.utterances,
            first_microbatch_id=number * self.microbatches,
        )


def settings(**changes: Any) -> pb.RoundSettings:
    values: dict[str, Any] = {
        "frames_per_inner_step": 100,
        "microbatches_per_inner_step": 4,
        "target_frames": 1000,
        "inner_lr_peak": 4e-3,
        "total_frames": 10_000,
        "seed": 3,
        "wire": "fp32",
        "silence_s": 2.0,
        "step_deadline_s": 30.0,
        "attempts": 4,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "accumulation": "ordered",
        "lr_floor": 0.03,
    }
    return pb.RoundSettings(**{**values, **changes})


@dataclass
class Node:
    """One worker of the chain."""

    stage: int
    key: MemberKey
    carrier: MemoryCarrier
    engine: Engine
    local: LocalStage
    events: list[dict[str, Any]] = field(default_factory=list)
    context: RoundContext = None  # type: ignore[assignment]
    replica: Replica = None  # type: ignore[assignment]
    downstream: Downstream | None = None
    service: StageService | None = None
    feeder: Feeder | None = None
    faults: Faults = NO_FAULTS

    @property
    def peer_id(self) -> str:
        return self.carrier.peer_id

    def event(self, name: str, **fields: Any) -> None:
        self.events.append({"event": name, **fields})

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


class CutAt(Faults):
    """Instead of killing the process, cuts its peer off the network when a point is reached for the `after`-th time."""

    def __init__(self, network: MemoryNetwork, peer_id: str, point: str, *, after: int = 1) -> None:
        super().__init__()
        self._network, self._peer_id, self._point, self._left = network, peer_id, point, after

    def reach(self, point: str, **facts: object) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._network.cut_off(self._peer_id)


class Chain:
    """Stages with their replicas, all serving one round.

    Args:
        stages: number of stages. replicas: of each stage. leases: source of stage 0's leases.
    """

    def __init__(
        self,
        stages: int,
        replicas: int | Sequence[int] = 1,
        *,
        leases: Leases | None = None,
        config: ModelConfig = CONFIG,
        **changes: Any,
    ) -> None:
        self.config = config
        self.stages = stages
        self.leases = leases or Leases(1)
        self.settings = settings(microbatches_per_inner_step=self.leases.microbatches, **changes)
        self.directory = MemoryDirectory()
        self.network = MemoryNetwork()
        counts = [replicas] * stages if isinstance(replicas, int) else list(replicas)
        self.nodes: list[Node] = []
        for stage, count in enumerate(counts):
            for number in range(count):
                self.nodes.append(self._node(stage, number))
        self.roster = pb.Roster(run_id=RUN, round=1)
        for node in self.nodes:
            self.roster.entries.append(
                pb.RosterEntry(
                    member_id=node.key.member_id, peer_id=node.peer_id, stage=node.stage, role=pb.REPLICA, generation=1
                )
            )

    def _node(self, stage: int, number: int) -> Node:
        key = MemberKey.from_seed(bytes([stage + 1, number + 1]) * 16)
        local = LocalStage(
            build_stage(self.config, stage, self.stages),
            ordered=self.settings.accumulation == "ordered",
            weight_decay=self.settings.weight_decay,
            clip_norm=self.settings.clip_norm,
        )
        return Node(stage, key, MemoryCarrier(self.network, f"peer-{stage}-{number}"), Engine(f"engine-{stage}-{number}"), local)

    def at(self, stage: int) -> list[Node]:
        """The replicas of a stage, in the roster's order."""
        order = [entry.peer_id for entry in RosterView(self.roster).replicas(stage)]
        return sorted((node for node in self.nodes if node.stage == stage), key=lambda node: order.index(node.peer_id))

    def open_round(self, number: int = 1, base_cid: str = BASE) -> None:
        """Let every node serve a round."""
        for node in self.nodes:
            node.context = RoundContext(
                RUN,
                number,
                base_cid,
                node.key.member_id,
                node.peer_id,
                node.stage,
                self.stages,
                1,
                RosterView(self.roster),
                self.settings,
                self.config,
            )
            node.replica = Replica(node.local, node.engine, node.context, node.event)
            node.downstream = None
            if node.stage < self.stages - 1:
                node.downstream = Downstream(node.carrier, node.key, node.context, AddressBook(self.directory, RUN), node.event)
            if node.service is not None:
                node.service.serve(Serving(node.context, node.replica, node.downstream))
            if node.stage == 0:
                node.feeder = Feeder(
                    node.context, node.replica, node.downstream, Corpus(), (), self.leases.lease, node.event, no_report
                )

    async def start(self) -> None:
        for node in self.nodes:
            if node.stage > 0:
                node.service = StageService(node.carrier, node.key, RUN, faults=node.faults)
                await node.service.start()
        self.open_round()

    async def work(self) -> None:
        """Let the feeders use up the leases."""

        async def feed(node: Node) -> None:
            assert node.feeder is not None
            while (lease := await self.leases.lease()).granted:
                await node.feeder.work(lease)

        await asyncio.gather(*(feed(node) for node in self.at(0)))
        # A later stage may still be taking its last inner step when the first stage has all its gradients.
        for node in self.nodes:
            if node.replica is not None and node.replica.in_flight == 0:
                await node.replica.settled()

    def counted(self, stage: int, *, without: Node | None = None) -> list[int]:
        """Ids counted by the replicas of a stage, repeats included; `without` the lost one."""
        nodes = [node for node in self.at(stage) if node is not without]
        return sorted(identifier for node in nodes for identifier, _ in node.replica.ledger.counted())

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for node in self.nodes for event in node.named(name)]

    async def close_round(self) -> dict[str, dict[str, np.ndarray]]:
        """Drain and close every node; updates by peer id."""
        updates = {}
        for node in self.nodes:
            node.replica.drain()
            assert await node.replica.idle(5.0)
            updates[node.peer_id] = await node.replica.close()
        return updates

    async def close(self) -> None:
        for node in self.nodes:
            await node.carrier.close()
            node.engine.close()


@asynccontextmanager
async def running(chain: Chain) -> AsyncIterator[Chain]:
    await chain.start()
    try:
        yield chain
    finally:
        await chain.close()


def run_chain(chain: Chain, body: Callable[[Chain], Any]) -> Any:
    """Run `body(chain)` in a fresh event loop with the chain up."""

    async def main() -> Any:
        async with running(chain):
            return await body(chain)

    return asyncio.run(main())
