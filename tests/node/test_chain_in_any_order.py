"""Replicas that freeze, wake, go and come back, answers that are lost or cut, in any order and in the middle of inner steps:
when all is well again every microbatch has been trained, and no replica has counted one twice.

The deciders of a worker (router, waits, accounts of inner steps, ledgers) with their services, over the in-memory carrier.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from node.stage_service import StageService
from node.wire import TRAIN_STEP_PROTOCOL
from swarm.memory import MemoryCarrier

REPLICAS = (1, 2, 2)
MICROBATCHES = 4
LEASES = 4
BACK_OFF_S = 0.05  # instead of some seconds, so that replicas that failed are soon tried again
LOOK_S = 0.001
AT_MOST_S = 0.4  # where both ends of a call wait for a silence to pass
LIMIT_S = 120.0
places = st.tuples(st.integers(1, len(REPLICAS) - 1), st.integers(0, 1))


class AnyOrder(RuleBasedStateMachine):
    """A chain of three stages that works on a few leases while this and that happens to its network."""

    def __init__(self, harness: ModuleType) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.loop = asyncio.new_event_loop()
        self.chain = harness.Chain(
            len(REPLICAS), REPLICAS, leases=harness.Leases(LEASES, microbatches=MICROBATCHES), silence_s=0.3,
            step_deadline_s=LIMIT_S, attempts=100,
        )  # fmt: skip
        self.away: set[str] = set()
        self.frozen: set[str] = set()
        self.loop.run_until_complete(self.begin())

    async def begin(self) -> None:
        await self.chain.start()
        for node in self.chain.nodes:
            for router in node.downstream._routers.values() if node.downstream is not None else ():
                router._back_off_s, router._back_off_limit_s = BACK_OFF_S, 4 * BACK_OFF_S
        self.work = asyncio.create_task(self.chain.work())

    async def until_trained(self, more: int) -> None:
        """Until the first stage has counted so many more microbatches, or that takes long."""
        wanted = len(self.chain.counted(0)) + more
        deadline = self.loop.time() + AT_MOST_S
        while len(self.chain.counted(0)) < wanted and not self.work.done() and self.loop.time() < deadline:
            await asyncio.sleep(LOOK_S)

    def spared(self, node: Any) -> bool:
        """Whether the other replica of the stage is there, so that this one may go."""
        (other,) = (one for one in self.chain.at(node.stage) if one is not node)
        return node.peer_id not in self.away | self.frozen and other.peer_id not in self.away | self.frozen

    def node(self, place: tuple[int, int]) -> Any:
        return self.chain.at(place[0])[place[1]]

    @rule(more=st.integers(1, 3))
    def go_on(self, more: int) -> None:
        self.loop.run_until_complete(self.until_trained(more))

    @rule(cut=st.lists(st.tuples(places, st.sampled_from([0, 40, 3000])), min_size=1, max_size=3))
    def answers_break_off(self, cut: list[tuple[tuple[int, int], int]]) -> None:
        """The next answers of these replicas, after so many bytes: what they were for has been computed."""
        for place, after_bytes in cut:
            self.chain.network.cut_next_answer(self.node(place).peer_id, TRAIN_STEP_PROTOCOL, after_bytes=after_bytes)
        self.go_on(1)

    @rule(place=places)
    def one_freezes(self, place: tuple[int, int]) -> None:
        node = self.node(place)
        if self.spared(node):
            self.frozen.add(node.peer_id)
            self.chain.network.freeze(node.peer_id)
            self.go_on(1)

    @rule()
    def the_frozen_wake(self) -> None:
        for peer_id in sorted(self.frozen):
            self.chain.network.thaw(peer_id)
        self.frozen.clear()
        self.go_on(1)

    @rule(place=places)
    def one_goes(self, place: tuple[int, int]) -> None:
        node = self.node(place)
        if self.spared(node):
            self.away.add(node.peer_id)
            self.chain.network.cut_off(node.peer_id)
            self.go_on(1)

    @rule()
    def those_who_went_come_back(self) -> None:
        self.loop.run_until_complete(self.come_back())

    async def come_back(self) -> None:
        """As after a cut: with everything that they had trained, at their old addresses."""
        for node in self.chain.nodes:
            if node.peer_id in self.away:
                await node.carrier.close()
                node.carrier = MemoryCarrier(self.chain.network, node.peer_id)
                before = node.service
                node.service = StageService(node.carrier, node.key, node.context.run_id)
                node.service.serve(before._serving)
                await node.service.start()
                if node.downstream is not None:
                    node.downstream._callees._carrier = node.carrier
        self.away.clear()

    def teardown(self) -> None:
        try:
            self.the_frozen_wake()
            self.loop.run_until_complete(self.end())
        finally:
            self.loop.run_until_complete(self.chain.close())
            self.loop.close()

    async def end(self) -> None:
        await self.come_back()
        async with asyncio.timeout(LIMIT_S):
            await self.work
        trained = list(range(LEASES * MICROBATCHES))
        assert self.chain.counted(0) == trained and not self.chain.named("dropped")
        for stage in range(1, len(REPLICAS)):
            counted = Counter(self.chain.counted(stage))
            assert sorted(counted) == trained, "what stage 0 has a gradient for has been counted below it"
            # An answer that was lost leaves its microbatch with one replica, and another may count it as well; that is told.
            assert max(counted.values()) <= len(self.chain.at(stage))
        for node in self.chain.nodes:
            ledger = node.replica.ledger.counted()
            assert len({identifier for identifier, _ in ledger}) == len(ledger)
            assert node.replica.totals.frames == sum(frames for _, frames in ledger)
        updates = await self.chain.close_round()
        assert all(np.isfinite(values).all() for update in updates.values() for values in update.values())


@pytest.mark.timeout(280)
def test_whatever_happens_on_the_way_every_microbatch_is_trained_and_none_counted_twice(harness: ModuleType) -> None:
    run_state_machine_as_test(
        lambda: AnyOrder(harness), settings=settings(max_examples=8, stateful_step_count=12, deadline=None)
    )
