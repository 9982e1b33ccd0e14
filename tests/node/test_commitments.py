"""What replicas commit to: chains that follow, records that agree at both ends of an edge, and states that can be opened."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import ModuleType
from typing import Any

import leased_dataset
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.leased_batches import LeasedBatches
from node.commitments import Chain, HeldStep, PassTrace, Recorder
from node.downstream import Errand
from node.feeder import Feeder
from node.wire import StepInput
from protocol.commitments import ChainStart, link_of, state_digests, tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.openings import group_arrays


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


async def recorded(chain: Any, **options: Any) -> dict[str, list[HeldStep]]:
    """Let every node record, answer every step at once, and keep what was held; by peer id."""
    kept: dict[str, list[HeldStep]] = {node.peer_id: [] for node in chain.nodes}

    async def answer(node: Any) -> None:
        while True:
            held = await node.replica.recorder.steps.get()
            kept[node.peer_id].append(held)
            await held.commit
            node.replica.recorder.answered(held.step)

    tasks = []
    for node in chain.nodes:
        node.replica.recorder = Recorder(node.local, node.engine, node.context, **options)
        await node.replica.recorder.begin()
        tasks.append(asyncio.ensure_future(answer(node)))
    await chain.work()
    for node in chain.nodes:
        await node.replica.recorder.link()
        while node.replica.recorder.steps.qsize():
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return kept


def commits(held: list[HeldStep]) -> list[pb.StepCommit]:
    return [one.commit.result() for one in held]


async def again(caller: Any, trace: PassTrace) -> None:
    """Send a microbatch another time, with hidden states that have drifted."""
    arrays = group_arrays(trace.input)
    step_input = StepInput(arrays.pop("hidden") * np.float32(1.5), arrays)
    errand = Errand(
        trace.identifier, trace.frames, trace.inner_step_frames, pb.TRAIN, 1, asyncio.get_running_loop().time() + 30
    )
    await caller.downstream.call(errand, step_input, own_step=9)


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_both_ends_of_every_edge_commit_to_the_same_bytes(harness: ModuleType, wire: str) -> None:
    chain = harness.Chain(3, leases=harness.Leases(3), wire=wire)

    async def body(chain: Any) -> None:
        kept = await recorded(chain)
        by_stage = []
        for node in chain.nodes:
            found = {record.id: record for commit in commits(kept[node.peer_id]) for record in commit.records}
            assert sorted(found) == [identifier for identifier, _ in node.replica.ledger.counted()]
            by_stage.append(found)
        for upper, lower, node in zip(by_stage, by_stage[1:], chain.nodes, strict=False):
            for identifier, record in upper.items():
                below = lower[identifier]
                assert len(record.output) == 32 and record.output == below.input
                assert len(record.gradient_in) == 32 and record.gradient_in == below.gradient_out
                assert below.sender == node.key.member_id and below.frames == record.frames
        for record in by_stage[0].values():
            assert len(record.input) == 32 and not record.gradient_out and not record.sender
        for record in by_stage[-1].values():
            assert len(record.output) == 32 and not record.gradient_in

    harness.run_chain(chain, body)


def test_the_chain_follows_from_the_round_and_ends_at_the_update(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(3))

    async def body(chain: Any) -> None:
        kept = await recorded(chain)
        updates = await chain.close_round()
        for node in chain.nodes:
            steps = commits(kept[node.peer_id])
            assert [commit.step for commit in steps] == [0, 1, 2, 3]
            where = node.context
            start = ChainStart(where.run_id, where.round, where.stage, where.member_id, where.generation, where.base_cid)
            previous = b""
            for commit in steps:
                assert commit.previous == previous and commit.link == link_of(commit, start)
                assert commit.frames == sum(record.frames for record in commit.records)
                previous = commit.link
            zeros = {name: np.zeros(shape, np.float32) for name, shape in node.local.stage.shapes().items()}
            assert steps[0].update_digest == tensors_digest(zeros) and steps[0].moments_digest == tensors_digest({})
            assert steps[-1].update_digest == tensors_digest(updates[node.peer_id])
            assert await node.replica.recorder.link() == steps[-1].link

    harness.run_chain(chain, body)


def test_recording_does_not_change_a_bit_of_what_is_trained(harness: ModuleType) -> None:
    async def body(chain: Any) -> dict[str, bytes]:
        if chain.recording:
            await recorded(chain)
        else:
            await chain.work()
        return {f"{node.stage}.{name}": value.tobytes() for node in chain.nodes for name, value in node.local.weights().items()}

    weights = []
    for recording in (False, True):
        chain = harness.Chain(3, leases=harness.Leases(4))
        chain.recording = recording
        weights.append(harness.run_chain(chain, body))
    assert weights[0] == weights[1]


def test_states_around_a_step_are_those_that_were_committed(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(3))

    async def body(chain: Any) -> None:
        kept = await recorded(chain)
        for node in chain.nodes:
            base = node.local.base_arrays()
            steps = kept[node.peer_id]
            for earlier, later in pairwise(steps):
                assert later.before is earlier.after
                commit = later.commit.result()
                assert state_digests(base, later.after) == (commit.update_digest, commit.moments_digest)
            assert "moments." not in "".join(steps[0].after)
            assert later.about.lr > 0 and later.about.frames == later.commit.result().frames
            # Outputs are kept for the first step, inputs for all of them.
            for held in steps[1:]:
                assert all(trace.input for trace in held.traces.values())
                assert all(bool(trace.output) == (held.step == 1) for trace in held.traces.values())

    harness.run_chain(chain, body)


def test_memory_is_bounded_by_the_steps_that_are_unanswered(harness: ModuleType) -> None:
    chain = harness.Chain(1, leases=harness.Leases(6))

    async def body(chain: Any) -> None:
        (node,) = chain.nodes
        recorder = node.replica.recorder = Recorder(node.local, node.engine, node.context, max_unanswered=2)
        await recorder.begin()
        training = asyncio.ensure_future(chain.work())
        first, second = await recorder.steps.get(), await recorder.steps.get()
        await asyncio.wait([training], timeout=0.3)
        assert not training.done() and node.replica.totals.inner_steps == 1
        assert recorder.held(0) is first and recorder.held(1) is second
        recorder.answered(0)
        third = await recorder.steps.get()
        assert recorder.held(0) is None and third.step == 2
        await asyncio.wait([training], timeout=0.3)
        assert not training.done() and node.replica.totals.inner_steps == 2
        # A round that closes waits for nobody.
        recorder.release()
        await asyncio.wait_for(training, 30)
        assert node.replica.totals.inner_steps == 6
        recorder.answered(6)
        assert recorder.held(6) is not None  # the newest one is held until the round is over
        assert all(recorder.signed(identifier) is not None for identifier, _ in node.replica.ledger.counted())
        await recorder.close()
        assert recorder.held(6) is None and recorder.last() is None

    harness.run_chain(chain, body)


def test_all_that_was_signed_is_listed_though_it_was_not_counted(harness: ModuleType) -> None:
    """A microbatch that is thrown away with its step, one that comes again, and one whose way down was cut off."""
    chain = harness.Chain(2, leases=harness.Leases(1))

    async def body(chain: Any) -> None:
        kept = await recorded(chain)
        first, last = chain.nodes
        records = {record.id: record for record in commits(kept[last.peer_id])[1].records}
        recorder, trace = last.replica.recorder, next(iter(kept[last.peer_id][1].traces.values()))
        # The same microbatch again, with other hidden states: it is computed, not counted, and its answer is signed.
        await again(first, trace)
        (extra,) = recorder.take_uncounted()
        assert (extra.id, extra.frames, extra.sender) == (trace.identifier, 0, first.key.member_id)
        assert extra.input != records[extra.id].input and len(extra.gradient_out) == 32
        recorder.uncounted(trace)
        recorder.passed(trace)
        recorder.discarded([trace.identifier])
        recorder.stepped([], 0, 0.1, 1.0, last.local.copied_state())
        step = recorder.last()
        assert step is not None and not step.traces
        assert [(record.id, record.frames) for record in (await step.commit).records] == [(trace.identifier, 0)] * 2
        assert recorder.take_uncounted() == []

    harness.run_chain(chain, body)


def test_signed_messages_of_a_pass_that_came_again_take_their_room_once(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = harness.Chain(1, leases=harness.Leases(1))

    async def body(chain: Any) -> None:
        (node,) = chain.nodes
        recorder = Recorder(node.local, node.engine, node.context)
        await recorder.begin()
        monkeypatch.setattr("node.commitments.SIGNED_BYTES", 25)
        for identifier in (1, 2, 2, 2):  # the gradients of 2 are thrown away twice
            recorder.passed(PassTrace(identifier, 5, 5, "fp32", {}, b"i", "sender", b"r" * 6, b"a" * 4))
            recorder.discarded([2])
        assert recorder.signed(1) == recorder.signed(2) == (b"r" * 6, b"a" * 4)
        recorder.passed(PassTrace(3, 5, 5, "fp32", {}, b"i", "sender", b"r" * 6, b"a" * 4))
        assert recorder.signed(1) is None and recorder.signed(2) and recorder.signed(3)
        await recorder.close()

    harness.run_chain(chain, body)


def test_what_was_sent_and_given_up_is_listed(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(1), step_deadline_s=1.0, attempts=1)

    async def body(chain: Any) -> None:
        first, last = chain.nodes
        chain.network.cut_off(last.peer_id)
        await recorded(chain)
        found = first.replica.recorder.take_uncounted()
        assert sorted(record.id for record in found) == [0, 1, 2, 3]
        assert all(record.frames == 0 and len(record.output) == 32 and not record.gradient_in for record in found)

    harness.run_chain(chain, body)


@given(
    frames=st.lists(st.integers(1, 1000), max_size=5), part=st.integers(0, 3), previous=st.sampled_from([b"", b"p" * 32]),
    change=st.sampled_from(["frames", "lr", "record", "update", "moments", "order"]),
)  # fmt: skip
def test_a_link_binds_all_that_is_before_it(frames: list[int], part: int, previous: bytes, change: str) -> None:
    start = ChainStart("run", 3, 1, "member", 2, "base", previous, part)

    def build(changed: str = "") -> list[bytes]:
        made, links = Chain(start), [b""]
        links.append(made.add(b"u" * 32, b"m" * 32, [], 0, 0.0).link)
        for number, count in enumerate(frames):
            records = [pb.MicrobatchRecord(id=number * 2 + at, frames=count, input=b"i" * 32) for at in (0, 1)]
            update, moments, divisor, lr = bytes([number]) * 32, b"n" * 32, 2 * count, 0.5
            if number == 0:
                update = b"x" * 32 if changed == "update" else update
                moments = b"x" * 32 if changed == "moments" else moments
                divisor += changed == "frames"
                lr += changed == "lr"
                if changed == "record":
                    records[0].output = b"o" * 32
                if changed == "order":
                    records.reverse()
            links.append(made.add(update, moments, records, divisor, lr).link)
        return links

    plain, other = build(), build(change)
    assert len(set(plain)) == len(plain)
    if change == "order":
        assert plain == other
    else:
        assert plain[:2] == other[:2] and not set(plain[2:]) & set(other[2:])


def test_what_a_feeder_commits_to_is_what_the_dataset_has_in_its_lease(harness: ModuleType) -> None:
    manifest, shards = leased_dataset.made_up()
    config = harness.CONFIG.model_copy(
        update={
            "n_codebooks": leased_dataset.BOOKS, "codebook_size": leased_dataset.CARD, "n_phonemes": leased_dataset.SYMBOLS,
            "n_languages": 2, "tempo_share": 0.5,
        }
    )  # fmt: skip
    chain = harness.Chain(2, leases=harness.Leases(3, utterances=5, microbatches=3), config=config)

    async def body(chain: Any) -> None:
        first = chain.at(0)[0]
        first.feeder = Feeder(
            first.context, first.replica, first.downstream, leased_dataset.reader_of(manifest, shards), manifest.languages,
            chain.leases.lease, first.event, harness.no_report,
        )  # fmt: skip
        kept = await recorded(chain)
        batches = LeasedBatches(manifest, shards.__getitem__, config, chain.settings.seed)
        told = [batches.compare_commit(commit) for commit in commits(kept[first.peer_id])]
        assert [one.ok for one in told] == [True] * 4, told
        assert sum(len(commit.records) for commit in commits(kept[first.peer_id])) == 9
        assert not any(record.HasField("leased") for commit in commits(kept[chain.at(1)[0].peer_id]) for record in commit.records)

    harness.run_chain(chain, body)
