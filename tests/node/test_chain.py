"""The chain as a whole: balanced replicas, lost peers, repeats, drift, flushes and deadlines."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from common.faults import Fault, Faults
from coordinator.run_config import RunConfig
from node import stage_service
from node.wire import TRAIN_STEP_PROTOCOL, Losses
from protocol.generated import hocket_pb2 as pb
from protocol.messages import make_signed
from protocol.roster import RosterView
from tts.batch import collate
from tts.dropout import PassContext
from tts.reference import forward_chain
from tts.stages import build_stages


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("stages", [2, 3])
def test_two_replicas_a_stage_get_equal_shares_of_every_inner_step(harness: ModuleType, stages: int) -> None:
    chain = harness.Chain(stages, 2, leases=harness.Leases(8))

    async def body(chain: Any) -> None:
        await chain.work()
        await chain.close_round()

    harness.run_chain(chain, body)
    for stage in range(stages):
        assert chain.counted(stage) == list(range(32))
        for node in chain.at(stage):
            steps = node.named("inner_step")
            if stage > 0:
                assert sum(step["microbatches"] for step in steps) == 16
            assert all(step["microbatches"] == 4 for step in steps)
            assert node.replica.ledger.dropped == 0 and node.replica.ledger.duplicates == 0
    paths = Counter(tuple(hop["peer_id"] for hop in event["path"]) for event in chain.named("microbatch"))
    assert len(paths) > 2 and len({peer for path in paths for peer in path}) == 2 * stages


@pytest.mark.parametrize("point", ["node.forward.before", "node.answer.half"])
def test_the_last_of_four_stages_killed_costs_one_retry_in_the_whole_chain(harness: ModuleType, point: str) -> None:
    chain = harness.Chain(4, [1, 1, 1, 2], leases=harness.Leases(1, microbatches=2))
    lost = chain.at(3)[0]
    lost.faults = harness.CutAt(chain.network, lost.peer_id, point)

    harness.run_chain(chain, lambda chain: chain.work())
    rerouted = chain.named("rerouted")
    assert [(event["stage"], event["from_peer"]) for event in rerouted] == [(3, lost.peer_id)]
    assert len(chain.named("suspected")) == 1 and not chain.named("dropped")
    assert sorted(event["attempts_used"] for event in chain.named("microbatch")) == [0, 1]
    for stage in range(4):
        assert chain.counted(stage, without=lost) == [0, 1]
    assert chain.at(2)[0].downstream.stats.reroutes == 1
    assert all(chain.at(stage)[0].downstream.stats.reroutes == 0 for stage in (0, 1))


@pytest.mark.parametrize("after_bytes", [0, 1, 200, 5000])
def test_an_answer_that_breaks_off_anywhere_is_repeated_and_counted_once(harness: ModuleType, after_bytes: int) -> None:
    chain = harness.Chain(2, leases=harness.Leases(1, microbatches=2))
    last = chain.at(1)[0]

    async def body(chain: Any) -> None:
        broken = chain.network.cut_next_answer(last.peer_id, TRAIN_STEP_PROTOCOL, after_bytes=after_bytes)
        await chain.work()
        assert broken.is_set()

    harness.run_chain(chain, body)
    # The only replica was asked again after its back-off, and gave the answer that it had kept.
    assert last.replica.ledger.duplicates == 1
    assert chain.counted(1) == [0, 1] == chain.counted(0)
    assert last.replica.totals.inner_steps == 1 and last.replica.totals.frames == chain.at(0)[0].replica.totals.frames


def test_of_those_that_wait_for_a_full_step_the_ones_that_were_retried_go_on_first(harness: ModuleType) -> None:
    chain = harness.Chain(1)
    order: list[int] = []

    async def body(chain: Any) -> None:
        replica = chain.at(0)[0].replica

        async def enter(identifier: int, frames: int, *, retried: bool = False) -> Any:
            taken = await replica.admit(identifier, frames, 100, counts=True, hold_s=30.0, retried=retried)
            order.append(identifier)
            return taken

        first = await enter(0, 100)
        held = [asyncio.create_task(enter(number, 50, retried=number in (2, 4))) for number in (1, 2, 3, 4)]
        await asyncio.sleep(0)
        assert order == [0] and not any(one.done() for one in held)
        replica.give_up(first)  # the step has room for two again
        await asyncio.wait({held[1], held[3]})
        assert order == [0, 2, 4] and not held[0].done() and not held[2].done()
        for one in (held[1], held[3]):
            replica.give_up(one.result())
        for taken in await asyncio.gather(held[0], held[2]):
            replica.give_up(taken)

    harness.run_chain(chain, body)
    assert order == [0, 2, 4, 1, 3]


def test_a_frozen_replica_is_noticed_by_its_silence_and_only_its_caller_retries(harness: ModuleType) -> None:
    chain = harness.Chain(3, [1, 1, 2], leases=harness.Leases(1, microbatches=2), silence_s=0.7)
    lost = chain.at(2)[0]

    async def body(chain: Any) -> None:
        chain.network.freeze(lost.peer_id)
        await chain.work()

    harness.run_chain(chain, body)
    assert [(event["stage"], event["from_peer"]) for event in chain.named("rerouted")] == [(2, lost.peer_id)]
    (event,) = chain.named("rerouted")
    assert 0.6 < event["detected_after_s"] < 2.0 and "silent" in event["reason"]
    assert chain.counted(0) == [0, 1] == chain.counted(1)


def test_with_the_run_files_own_bound_a_frozen_replica_is_left_within_five_seconds(harness: ModuleType) -> None:
    silence_s = RunConfig.model_fields["network"].get_default(call_default_factory=True).silence_s
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(1, microbatches=2), silence_s=silence_s)

    async def body(chain: Any) -> None:
        chain.network.freeze(chain.at(1)[0].peer_id)
        await chain.work()

    harness.run_chain(chain, body)
    (event,) = chain.named("rerouted")
    assert 0.9 * silence_s < event["waited_s"] < 5.0


def test_a_retry_through_a_drifted_replica_gets_its_gradient_and_adds_nothing(harness: ModuleType) -> None:
    chain = harness.Chain(3, [1, 2, 1], leases=harness.Leases(1, microbatches=2))
    first, second = chain.at(1)
    last = chain.at(2)[0]

    async def body(chain: Any) -> None:
        drifted = {name: value * np.float32(1.01) for name, value in second.local.weights().items()}
        await second.engine.run(0, second.local.adopt, drifted)
        chain.network.drop_next_answer(first.peer_id, TRAIN_STEP_PROTOCOL)
        await chain.work()

    harness.run_chain(chain, body)
    assert len(chain.named("rerouted")) == 1
    assert last.replica.ledger.duplicates == 1
    assert chain.counted(2) == [0, 1] == chain.counted(0)
    assert last.replica.totals.inner_steps == 1 and last.replica.totals.frames == chain.at(0)[0].replica.totals.frames
    # Both replicas of the middle stage have counted the microbatch that was repeated; the coordinator reports it.
    assert sorted(chain.counted(1)) in ([0, 0, 1], [0, 1, 1])


def test_a_full_inner_step_is_flushed_before_the_next_forward(harness: ModuleType) -> None:
    chain = harness.Chain(2, [2, 1], leases=harness.Leases(6))
    harness.run_chain(chain, lambda chain: chain.work())
    last = chain.at(1)[0]
    assert [step["microbatches"] for step in last.named("inner_step")] == [4] * 6
    assert chain.counted(1) == list(range(24))


def test_a_spent_deadline_is_answered_from_the_top_down_and_the_chain_goes_on(harness: ModuleType) -> None:
    chain = harness.Chain(3, leases=harness.Leases(2, microbatches=1), silence_s=30.0, step_deadline_s=1.2)
    last = chain.at(2)[0]

    async def body(chain: Any) -> None:
        loop = asyncio.get_running_loop()
        chain.network.freeze(last.peer_id)
        began = loop.time()
        await chain.at(0)[0].feeder.work(await chain.leases.lease())
        assert 0.5 < loop.time() - began < 1.2 + 0.5
        chain.network.thaw(last.peer_id)
        for node in chain.nodes:
            assert await node.replica.idle(5.0)
        await asyncio.sleep(2.0)  # the back-off of the replica that was silent
        await chain.at(0)[0].feeder.work(await chain.leases.lease())

    harness.run_chain(chain, body)
    (dropped,) = chain.named("dropped")
    assert dropped["id"] == 0 and "DOWNSTREAM_FAILED" in dropped["reason"] and "stage 2" in dropped["reason"]
    assert chain.at(0)[0].replica.ledger.dropped == 1
    # Stage 1 gave up before stage 0 would have: the failure came as an answer, and stage 1 got no mark for it.
    assert [event["peer"] for event in chain.named("suspected")] == [last.peer_id]
    assert chain.counted(0) == [1] == chain.counted(1)


def test_no_more_tries_than_the_budget_of_the_whole_chain(harness: ModuleType) -> None:
    chain = harness.Chain(3, [1, 1, 3], leases=harness.Leases(1, microbatches=1), attempts=2)
    for node in chain.at(2):
        node.faults = harness.CutAt(chain.network, node.peer_id, "node.forward.before")
    harness.run_chain(chain, lambda chain: chain.work())
    assert len(chain.named("suspected")) == 2 and len(chain.named("dropped")) == 1
    assert chain.counted(0) == [] == chain.counted(1)


def test_a_round_that_closes_gives_partial_steps_from_a_quarter_on_and_drops_less(harness: ModuleType) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(1, microbatches=4))
    updates = {}

    async def body(chain: Any) -> None:
        await chain.work()
        updates.update(await chain.close_round())

    harness.run_chain(chain, body)
    for node in chain.at(1):
        assert [step["why"][:5] for step in node.named("inner_step")] == ["worth"]
        assert len(node.replica.ledger.counted()) == 2 and node.replica.ledger.dropped == 0
        assert any(value.any() for value in updates[node.peer_id].values())

    chain = harness.Chain(2, [1, 5], leases=harness.Leases(1, microbatches=5))
    harness.run_chain(chain, body)
    for node in chain.at(1):
        assert not node.named("inner_step") and len(node.named("inner_step_discarded")) == 1
        assert node.replica.ledger.counted() == [] and node.replica.ledger.dropped == 1 and node.replica.totals.frames == 0
        assert not any(value.any() for value in updates[node.peer_id].values())


@pytest.mark.parametrize("stages", [2, 3])
def test_evaluation_is_the_chain_on_the_base_and_counts_nothing(harness: ModuleType, stages: int) -> None:
    chain = harness.Chain(stages, leases=harness.Leases(3))

    async def body(chain: Any) -> tuple[Losses, Losses]:
        before = await chain.at(0)[0].feeder.evaluate()
        await chain.work()
        for node in chain.nodes:
            node.replica.drain()
        return before, await chain.at(0)[0].feeder.evaluate()

    before, after = harness.run_chain(chain, body)
    assert before == after
    assert all(chain.counted(stage) == list(range(12)) for stage in range(stages))
    base = build_stages(harness.CONFIG, stages)
    utterances = asyncio.run(harness.Corpus().heldout())
    expected = sum(
        float(forward_chain(base, collate([utterance], harness.CONFIG), PassContext(train=False)).ce.sum())
        for utterance in utterances
    )
    assert sum(before.ce) == pytest.approx(expected, rel=1e-5)
    assert sum(before.count) == sum((utterance.n_frames + 1) * 2 for utterance in utterances)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_compressed_wires_train_close_to_the_plain_one(harness: ModuleType, wire: str) -> None:
    weights = {}
    for encoding in ("fp32", wire):
        chain = harness.Chain(3, leases=harness.Leases(3), wire=encoding)

        async def body(chain: Any) -> dict[str, np.ndarray]:
            await chain.work()
            return {name: value for node in chain.nodes for name, value in node.local.pseudo_gradient().items()}

        weights[encoding] = harness.run_chain(chain, body)
        requests = chain.at(0)[0].carrier.traffic.requests[TRAIN_STEP_PROTOCOL]
        weights[encoding + " bytes"] = requests
    plain = np.concatenate([value.ravel() for value in weights["fp32"].values()])
    lossy = np.concatenate([value.ravel() for value in weights[wire].values()])
    cosine = float(plain @ lossy / np.linalg.norm(plain) / np.linalg.norm(lossy))
    assert cosine > (0.98 if wire == "bf16" else 0.9)
    assert weights[wire + " bytes"] < 0.75 * weights["fp32 bytes"]


def test_the_last_stage_reports_the_losses_of_what_it_counted(harness: ModuleType) -> None:
    chain = harness.Chain(3, leases=harness.Leases(2))
    harness.run_chain(chain, lambda chain: chain.work())
    utterances = [harness.speak(position) for position in range(16)]
    last, first = chain.at(2)[0].replica.totals, chain.at(0)[0].replica.totals
    assert list(last.losses.count) == [sum(utterance.n_frames + 1 for utterance in utterances)] * 2
    assert last.losses.ce == pytest.approx(first.losses.ce)
    assert first.losses.auxiliary["duration"][1] == sum(len(utterance.phonemes) for utterance in utterances)
    assert last.frames == first.frames == sum(utterance.n_frames for utterance in utterances)
    assert pb.CodebookLoss.FromString(last.losses.codebooks()[0].SerializeToString()).count == last.losses.count[0]


def test_the_answer_to_another_request_is_no_answer(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed by the right member for the right caller, but with a nonce that this request did not have."""
    monkeypatch.setattr(stage_service, "make_signed", lambda *given, **fields: make_signed(*given, **{**fields, "nonce": None}))

    async def body(chain: Any) -> None:
        await chain.work()
        assert len(chain.named("dropped")) == 4 and chain.counted(0) == []
        assert all("another request" in event["reason"] for event in chain.named("suspected")) and chain.named("suspected")

    harness.run_chain(harness.Chain(2, attempts=1), body)


def test_all_calls_to_a_frozen_replica_are_left_with_the_first_and_it_is_told_at_once(harness: ModuleType) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(1, microbatches=4), silence_s=1.0)
    first = chain.at(0)[0]
    lost = chain.at(1)[0]
    told: list[set[str]] = []

    async def body(chain: Any) -> None:
        first.downstream._poke = lambda: told.append(set(first.downstream.stats.suspects))
        chain.network.freeze(lost.peer_id)
        await chain.work()

    harness.run_chain(chain, body)
    events = chain.named("suspected")
    assert [event["peer"] for event in events] == [lost.peer_id] * 2
    # The second microbatch was sent later and waited no longer than the first.
    assert sum("another call" in event["reason"] for event in events) == 1
    assert told and told[0] == {lost.peer_id} == first.downstream.stats.suspects
    assert chain.counted(0) == [0, 1, 2, 3] == chain.counted(1, without=lost)


def test_nobody_waits_for_a_replica_that_the_roster_has_dropped(harness: ModuleType) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(1, microbatches=2), silence_s=60.0)
    first, lost = chain.at(0)[0], chain.at(1)[0]

    async def body(chain: Any) -> None:
        chain.network.freeze(lost.peer_id)
        working = asyncio.create_task(chain.work())
        while lost.peer_id not in first.downstream._callees._calls:
            await asyncio.sleep(0)
        roster = pb.Roster(run_id=chain.roster.run_id, round=1)
        roster.entries.extend(entry for entry in chain.roster.entries if entry.peer_id != lost.peer_id)
        first.downstream.follow(dataclasses.replace(first.context, roster=RosterView(roster)))
        await asyncio.wait_for(working, 20.0)

    harness.run_chain(chain, body)
    assert [event["from_peer"] for event in chain.named("rerouted")] == [lost.peer_id]
    assert first.downstream.stats.suspects == set()
    assert chain.counted(0) == [0, 1] == chain.counted(1, without=lost)


def test_a_replica_whose_device_fails_is_passed_over_without_a_mark(harness: ModuleType) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(2))
    failing, sound = chain.at(1)
    failing.engine._faults = Faults([Fault.parse("node.device.fault:task=backward,number=2:fail")])
    harness.run_chain(chain, lambda chain: chain.work())
    assert failing.engine.fault and chain.named("suspected") == [] == chain.named("dropped")
    assert chain.counted(0) == list(range(8))
    assert len(failing.replica.ledger.counted()) == 1 and len(sound.replica.ledger.counted()) == 7
