"""With which moments of the optimizer a round begins: those that the coordinator has a commit to, or none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standby_member import SHA256, Standby

from coordinator.chains import Expected, Take, judge
from node.committer import NO_MOMENTS_COMMITTED, CommittedMoments, may_begin
from node.progress_file import Progress
from node.progress_plan import Use, usable
from protocol.commitments import MOMENTS_ROUNDS, NO_MOMENTS, ChainStart, link_of
from protocol.generated import hocket_pb2 as pb

small = st.integers(0, 4)


@pytest.fixture(scope="module")
def context(harness: ModuleType) -> Any:
    chain = harness.Chain(2)
    chain.open_round(3)
    return chain.nodes[1].context


@given(steps_taken=small, round=small, stage=st.integers(0, 1), committed=small)
def test_moments_go_on_that_were_committed_to_in_this_stage_and_lately(
    context: Any, steps_taken: int, round: int, stage: int, committed: int
) -> None:
    why = may_begin(steps_taken, CommittedMoments(round, stage, committed), context)
    known = (stage, committed) == (context.stage, steps_taken) and context.round - round <= MOMENTS_ROUNDS
    assert (why == "") == (steps_taken == 0 or known)
    assert (may_begin(steps_taken, NO_MOMENTS_COMMITTED, context) == "") == (steps_taken == 0)


@dataclass
class Worker:
    """A member as far as its moments go: which they are, after how many steps, and what it remembers of commits."""

    stage: int = 0
    moments: bytes = NO_MOMENTS
    taken: int = 0
    committed: CommittedMoments = NO_MOMENTS_COMMITTED
    saved: tuple[Progress, bytes] | None = None


events = st.lists(
    st.sampled_from(
        ("step", "lost step", "save", "round", "deaf round", "missed round", "restart", "move", "promoted", "fault", "deaf fault")
    ), max_size=40,
)  # fmt: skip


@given(history=events)
def test_the_coordinator_takes_every_chain_that_an_honest_worker_begins(context: Any, history: list[str]) -> None:
    """Whatever befell it: steps whose commit never arrived, rounds without it, restarts, moves, promotions, faults."""
    worker, round, kept, made = Worker(), 1, set(), count(1)

    def begin(where: Worker, *, arrives: bool = True) -> None:
        """A chain of the round, as `Station.open_round` begins it, judged as the coordinator does once it has arrived."""
        here = replace(context, round=round, stage=where.stage, stages=2, run_id="r", member_id="m", generation=1, base_cid="b")
        resumed = False
        if where.taken == 0 and where.saved is not None:
            progress, moments = where.saved
            use, _ = usable(progress, here, SHA256.hex())
            if use is not Use.NOTHING:
                where.moments, where.taken, resumed = moments, progress.steps_taken, True
        if not resumed and may_begin(where.taken, where.committed, here):
            where.moments, where.taken = NO_MOMENTS, 0
        where.committed = where.committed.beside(where.stage, where.taken)
        start = ChainStart("r", round, where.stage, "m", 1, "b", b"", 0)
        commit = pb.StepCommit(
            round=round, generation=1, stage=where.stage, update_digest=SHA256, moments_digest=where.moments
        )  # fmt: skip
        commit.link = link_of(commit, start)
        known = frozenset(one for at, stage, one in kept if stage == where.stage and round - MOMENTS_ROUNDS <= at <= round)
        verdict = judge(commit, start, {}, Expected(SHA256, 1.0, 4, known))
        assert verdict.take is Take.NEW, (history, verdict.reason)
        if arrives:
            take(where)

    def take(where: Worker) -> None:
        kept.add((round, where.stage, where.moments))
        where.committed = CommittedMoments(round, where.stage, where.taken)

    begin(worker)
    for event in history:
        if event in ("step", "lost step"):
            worker.taken += 1
            worker.moments = hashlib.sha256(f"{next(made)}".encode()).digest()
            if event == "step":
                take(worker)
        elif event == "save" and worker.committed == CommittedMoments(round, worker.stage, worker.taken) and worker.taken:
            progress = Progress(
                run_id="r", member_id="m", stage=worker.stage, stages=2, round=round, base_cid=f"b{round}", generation=1,
                weights_sha256=SHA256.hex(), frames=1, inner_steps=1, steps_taken=worker.taken, chain_link=SHA256.hex(),
            )  # fmt: skip
            worker.saved = progress, worker.moments
        elif event == "missed round":
            round += 1
        elif event != "save":
            round += event.endswith("round")
            if event == "move":
                worker = replace(worker, stage=1 - worker.stage, moments=NO_MOMENTS, taken=0)
            elif event == "promoted" or event.endswith("fault"):  # a stage that is built anew, in the same process
                worker = replace(worker, moments=NO_MOMENTS, taken=0)
            elif event == "restart":
                worker = Worker(stage=worker.stage, saved=worker.saved)
            begin(worker, arrives=not event.startswith("deaf"))


def test_a_stage_begins_anew_with_moments_that_nobody_has_a_commit_to_and_says_so(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any) -> None:
        trained = chain.at(1)[0].local
        await chain.work()
        standby = Standby(harness, chain, tmp_path)  # its coordinator cannot be reached
        station, context = standby.station, standby.context(pb.REPLICA, 1)
        await station.adopt(context, trained.weights(), SHA256)
        await station.carry_on(trained.copied_moments(), trained.steps_taken)
        await station.open_round(context)
        assert station.local.steps_taken == 0 and not station.local.moments()
        ((_, told),) = [one for one in standby.events if one[0] == "moments_dropped"]
        assert "never committed to" in told["reason"]
        assert station.serving is not None and station.serving.replica.ramp, "like one that joins late"
        await standby.close()

    harness.run_chain(harness.Chain(2), body)


def test_moments_that_are_carried_over_are_not_replaced_by_older_ones_on_disk(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any) -> None:
        trained = chain.at(1)[0].local
        await chain.work()
        standby = Standby(harness, chain, tmp_path)
        station, context = standby.station, standby.context(pb.REPLICA, 1)
        await station.adopt(context, trained.weights(), SHA256)
        older, steps = trained.copied_moments(), trained.steps_taken
        await station.carry_on(older, steps)
        standby.committer._moments = CommittedMoments(1, 1, steps)
        await station.open_round(context)
        assert station.serving is not None

        async def link() -> bytes:
            return bytes(32)

        await station.progress.at_boundary(station.serving.replica, SHA256.hex(), [], [], link)
        await standby.close()
        newer = {name: value + np.float32(1) for name, value in older.items()}
        again = Standby(harness, chain, tmp_path)
        again.committer._moments = CommittedMoments(1, 1, steps + 1)
        await again.station.adopt(context, trained.weights(), SHA256)
        await again.station.carry_on(newer, steps + 1)
        await again.station.open_round(again.context(pb.REPLICA, 2))
        for name, value in again.station.local.copied_moments().items():
            assert np.array_equal(value, newer[name]), name
        await again.close()

    harness.run_chain(harness.Chain(2), body)
