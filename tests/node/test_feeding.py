"""The first stage feeds the chain: which leases it takes, ends and hands back, and who is left when replicas drain."""

from __future__ import annotations

import asyncio
import dataclasses
from types import ModuleType
from typing import Any

import pytest
import torch

from common.faults import Fault, Faults
from protocol.generated import hocket_pb2 as pb
from protocol.roster import RosterView


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_draining_replica_takes_nothing_and_the_other_does_all(harness: ModuleType) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(2))
    drained, other = chain.at(1)

    async def body(chain: Any) -> None:
        drained.replica.drain()
        await chain.work()

    harness.run_chain(chain, body)
    assert drained.replica.ledger.counted() == []
    assert [identifier for identifier, _ in other.replica.ledger.counted()] == list(range(8))
    assert not chain.named("suspected") and not chain.named("dropped")


def test_when_every_replica_drains_and_the_round_closes_the_feeder_hears_of_it_at_once(harness: ModuleType) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(1), step_deadline_s=60.0)

    async def body(chain: Any) -> None:
        for node in chain.at(1):
            node.replica.drain()
        chain.at(0)[0].downstream.close()
        async with asyncio.timeout(5):
            await chain.work()

    harness.run_chain(chain, body)
    assert len(chain.named("dropped")) == 4 and all("draining" in event["reason"] for event in chain.named("dropped"))


def test_a_stage_whose_last_replica_leaves_is_waited_for(harness: ModuleType) -> None:
    """The microbatches wait at their sender until somebody takes the place; none is dropped."""
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(1), step_deadline_s=60.0)
    first, (leaver, successor) = chain.at(0)[0], chain.at(1)

    async def body(chain: Any) -> None:
        def without(peer_id: str) -> Any:
            roster = pb.Roster(run_id=chain.roster.run_id, round=1)
            roster.entries.extend(entry for entry in chain.roster.entries if entry.peer_id != peer_id)
            return dataclasses.replace(first.context, roster=RosterView(roster))

        first.downstream.follow(without(successor.peer_id))
        leaver.replica.drain()
        working = asyncio.create_task(chain.work())
        while not first.downstream._routers[pb.TRAIN]._replicas[leaver.peer_id].drained:
            await asyncio.sleep(0)
        first.downstream.follow(without(leaver.peer_id))
        await asyncio.wait_for(working, 20.0)

    harness.run_chain(chain, body)
    assert chain.named("dropped") == [] and chain.counted(0) == [0, 1, 2, 3]
    assert [identifier for identifier, _ in successor.replica.ledger.counted()] == [0, 1, 2, 3]


def test_a_feeder_that_is_to_finish_ends_its_lease_and_takes_no_other(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(5))
    first = chain.at(0)[0]

    async def body(chain: Any) -> None:
        running = asyncio.create_task(first.feeder.run())
        while not chain.at(1)[0].replica.ledger.counted():
            await asyncio.sleep(0)
        first.feeder.finish()
        await asyncio.wait_for(running, 20.0)

    harness.run_chain(chain, body)
    (done,) = first.feeder.totals.leases
    assert (done.lease_id, done.microbatches) == (0, 4)
    assert chain.counted(0) == [0, 1, 2, 3] == chain.counted(1) and chain.named("dropped") == []


def test_a_lease_that_cannot_be_finished_goes_back_whole(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(5), step_deadline_s=60.0)
    first = chain.at(0)[0]

    async def body(chain: Any) -> None:
        chain.at(1)[0].replica.drain()
        running = asyncio.create_task(first.feeder.run())
        while not first.replica.in_flight:
            await asyncio.sleep(0)
        first.feeder.finish()
        first.downstream.close()
        await asyncio.wait_for(running, 20.0)

    harness.run_chain(chain, body)
    assert first.feeder.totals.leases == [] and len(chain.named("lease_handed_back")) == 1
    assert chain.named("dropped") == [] and first.replica.ledger.dropped == 0


def test_a_feeder_takes_leases_until_there_are_no_more_and_fetches_the_next_one_ahead(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(4, utterances=8, microbatches=4))

    async def body(chain: Any) -> None:
        feeder = chain.at(0)[0].feeder
        running = asyncio.create_task(feeder.run())
        while len(feeder.totals.leases) < 4:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    harness.run_chain(chain, body)
    first = chain.at(0)[0]
    assert [done.lease_id for done in first.feeder.totals.leases] == [0, 1, 2, 3]
    assert all(done.microbatches == 4 for done in first.feeder.totals.leases)
    assert sum(done.frames for done in first.feeder.totals.leases) == first.replica.totals.frames
    order = [event["event"] for event in first.events if event["event"] in ("lease", "lease_done")]
    in_hand = [order[: index + 1].count("lease") - order[: index + 1].count("lease_done") for index in range(len(order))]
    assert max(in_hand) == 2 and min(in_hand) >= 0


def test_a_feeder_stops_when_its_replica_drains(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(1000, utterances=4, microbatches=2))

    async def body(chain: Any) -> None:
        first = chain.at(0)[0]
        running = asyncio.create_task(first.feeder.run())
        while not first.feeder.totals.leases:
            await asyncio.sleep(0.01)
        first.replica.drain()
        async with asyncio.timeout(5):
            await running

    harness.run_chain(chain, body)
    assert chain.counted(0) == chain.counted(1)


def test_a_first_stage_whose_device_fails_hands_its_lease_back(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(3))
    first = chain.at(0)[0]
    first.engine._faults = Faults([Fault.parse("node.device.fault:task=forward,number=6:fail")])

    harness.run_chain(chain, lambda chain: asyncio.wait_for(first.feeder.run(), 20.0))
    assert first.engine.fault and len(chain.named("lease_handed_back")) == 1
    assert [done.lease_id for done in first.feeder.totals.leases] == [0] and chain.named("dropped") == []
