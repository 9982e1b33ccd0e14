"""Inner progress: saved at the boundary of inner steps, taken up by the next process, refused when it does not fit."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from node.engine import Priority
from node.feeder import FeederTotals
from node.progress import ProgressKeeper
from node.progress_file import Progress, read_progress, tensors_of
from node.progress_plan import SavePlan, Use, usable
from node.replica import RoundTotals
from tts.footprint import stage_footprint
from tts.partition import partition

SHA256 = "ab" * 32


def eager() -> SavePlan:
    """Saves at every boundary that does not meet a save in the making."""
    return SavePlan(least_pause_s=0.0, stall_share=1e9, write_bytes_per_s=1e18)


def base(config: Any, stage: int) -> dict[str, np.ndarray]:
    """Weights of the round's base: a fixed function of the stage."""
    from tts.stages import build_stage

    draw = np.random.default_rng(stage)
    shapes = build_stage(config, stage, 2).shapes()
    return {name: (draw.standard_normal(shape) * 0.05).astype(np.float32) for name, shape in shapes.items()}


async def adopt(chain: Any) -> None:
    for node in chain.nodes:
        await node.engine.run(Priority.STEP, node.local.adopt, base(chain.config, node.stage))


def keeper(node: Any, folder: Path, plan: SavePlan | None = None) -> ProgressKeeper:
    return ProgressKeeper(folder / f"{node.peer_id}", node.local, node.engine, node.event, plan=plan)


async def committed() -> bytes:
    """The link of a step that the coordinator has."""
    return bytes.fromhex(SHA256)


async def save(chain: Any, folder: Path) -> None:
    """What stations do at a boundary."""
    for node in chain.nodes:
        keeping = keeper(node, folder)
        leases = node.feeder.totals.leases if node.feeder is not None else []
        await keeping.at_boundary(node.replica, SHA256, [], leases, committed)
        await keeping.close()


async def resume(chain: Any, folder: Path) -> list[Progress]:
    """What stations do when they open a round after a restart."""
    found = []
    for node in chain.nodes:
        saved = await keeper(node, folder).take_up(node.context, SHA256)
        assert saved is not None
        totals = RoundTotals(saved.frames, saved.inner_steps, saved.losses)
        node.replica.resume(totals, saved.settled(), duplicates=saved.duplicates, dropped=saved.dropped)
        found.append(saved)
    return found


def ends(chain: Any) -> list[tuple[Any, ...]]:
    """Everything that an inner step changes, per node."""
    return [
        (
            {name: array.copy() for name, array in node.local.live_tensors().items()},
            node.replica.ledger.counted(),
            (node.replica.totals.frames, node.replica.totals.inner_steps, node.replica.totals.losses),
            node.local.steps_taken,
        )
        for node in chain.nodes
    ]


def test_a_pipeline_that_dies_between_steps_and_goes_on_ends_with_the_same_bits(harness: ModuleType, tmp_path: Path) -> None:
    async def undisturbed(chain: Any) -> Any:
        await adopt(chain)
        await chain.work()
        return ends(chain)

    async def first_half(chain: Any) -> None:
        await adopt(chain)
        await chain.work()
        await save(chain, tmp_path)

    async def second_half(chain: Any) -> Any:
        await adopt(chain)
        chain.leases.granted = 2
        resumed = await resume(chain, tmp_path)
        assert [one.inner_steps for one in resumed] == [2, 2]
        assert [len(one.leases) for one in resumed] == [2, 0] and len(resumed[0].microbatches) == 8
        await chain.work()
        return ends(chain)

    expected = harness.run_chain(harness.Chain(2, leases=harness.Leases(4)), undisturbed)
    harness.run_chain(harness.Chain(2, leases=harness.Leases(2)), first_half)
    found = harness.run_chain(harness.Chain(2, leases=harness.Leases(4)), second_half)
    for (tensors, *others), (tensors_expected, *others_expected) in zip(found, expected, strict=True):
        assert others == others_expected
        assert tensors.keys() == tensors_expected.keys()
        for name in tensors:
            np.testing.assert_array_equal(tensors[name], tensors_expected[name])


def test_a_snapshot_is_of_a_whole_step_and_of_nothing_that_came_after(harness: ModuleType, tmp_path: Path) -> None:
    """Saved by the replica's and the feeder's own hooks while the pipeline runs; each save is read back and added up."""

    async def body(chain: Any) -> None:
        await adopt(chain)
        kept: dict[int, ProgressKeeper] = {}
        seen: list[Progress] = []

        def hook(node: Any, totals: FeederTotals) -> Any:
            async def boundary() -> None:
                keeping = kept[node.stage]
                await keeping.at_boundary(node.replica, SHA256, [], totals.leases)
                snapshot = await keeping.last()
                assert snapshot is not None
                seen.append(snapshot.progress)
                for name, array in node.local.live_tensors().items():
                    np.testing.assert_array_equal(array, snapshot.tensors[name])

            return boundary

        for node in chain.nodes:
            kept[node.stage] = keeper(node, tmp_path, eager())
            if node.stage == 0:
                node.feeder._boundary = hook(node, node.feeder.totals)
            else:
                node.replica._boundary = hook(node, FeederTotals())
        await chain.work()
        for keeping in kept.values():
            await keeping.close()
        assert [one.inner_steps for one in seen if one.stage == 1] == [1, 2, 3]
        for one in seen:
            counted = [each for each in one.microbatches if each.counted]
            assert one.frames == sum(each.frames for each in counted) and len(counted) == 4 * one.inner_steps
            if one.stage == 0:
                assert len(one.leases) == one.inner_steps and sum(lease.frames for lease in one.leases) == one.frames

    harness.run_chain(harness.Chain(2, leases=harness.Leases(3)), body)


def test_a_microbatch_of_before_the_restart_is_answered_but_not_counted_again(harness: ModuleType, tmp_path: Path) -> None:
    async def first(chain: Any) -> None:
        await adopt(chain)
        await chain.work()
        await save(chain, tmp_path)

    async def again(chain: Any) -> None:
        await adopt(chain)
        saved = await resume(chain, tmp_path)
        last = chain.nodes[1]
        before = last.replica.ledger.counted()
        chain.nodes[0].replica.ledger = type(last.replica.ledger)(1 << 20)  # the caller has forgotten; the callee has not
        await chain.work()
        assert last.replica.ledger.counted() == before and last.replica.totals.frames == saved[1].frames
        assert last.replica.ledger.duplicates == 4 and chain.nodes[0].replica.totals.inner_steps == 2

    harness.run_chain(harness.Chain(2, leases=harness.Leases(1)), first)
    harness.run_chain(harness.Chain(2, leases=harness.Leases(1)), again)


def test_with_another_base_the_moments_alone_are_taken_up(harness: ModuleType, tmp_path: Path) -> None:
    async def first(chain: Any) -> Any:
        await adopt(chain)
        await chain.work()
        await save(chain, tmp_path)
        return ends(chain)

    async def later(chain: Any) -> Any:
        chain.open_round(2, "another-base")
        await adopt(chain)
        for node in chain.nodes:
            assert await keeper(node, tmp_path).take_up(node.context, SHA256, moments=False) is None
            assert node.local.steps_taken == 0 and not node.local.moments()
            assert await keeper(node, tmp_path).take_up(node.context, SHA256) is None
        return ends(chain)

    before = harness.run_chain(harness.Chain(2), first)
    for stage, ((old, *_), (new, counted, totals, steps)) in enumerate(
        zip(before, harness.run_chain(harness.Chain(2), later), strict=True)
    ):
        assert counted == [] and totals[0] == 0 and steps == 1
        for name, array in base(harness.CONFIG, stage).items():
            np.testing.assert_array_equal(new[f"weights.{name}"], array)
        for name in old:
            if name.startswith("moments."):
                np.testing.assert_array_equal(new[name], old[name])


@pytest.fixture(scope="module")
def saved_file(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Any]:
    """The file of a small stage, and what it must hold."""
    folder = tmp_path_factory.mktemp("saved")

    async def body(chain: Any) -> Any:
        await adopt(chain)
        await chain.work()
        await save(chain, folder)
        return tensors_of(chain.nodes[1].local.stage.shapes())

    expected = harness.run_chain(harness.Chain(2), body)
    return (folder / "peer-1-0" / "replica.safetensors").read_bytes(), expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@example(place=0.0, flip=255, cut=False)
@example(place=0.0, flip=1, cut=True)
def test_a_damaged_file_is_refused(
    saved_file: tuple[bytes, Any], tmp_path: Path, place: float, flip: int, cut: bool
) -> None:
    whole, expected = saved_file
    at = int(place * len(whole))
    path = tmp_path / "replica.safetensors"
    path.write_bytes(whole)
    read_progress(path, expected)
    path.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    with pytest.raises(HocketError) as caught:
        read_progress(path, expected)
    assert caught.value.code is Code.CHECKPOINT_INVALID


def test_a_snapshot_takes_the_memory_that_was_foretold(saved_file: tuple[bytes, Any], harness: ModuleType) -> None:
    whole, expected = saved_file
    foretold = stage_footprint(harness.CONFIG, partition(harness.CONFIG, 2)[1]).snapshot_bytes
    parameters = sum(info.name.startswith("weights.") for info in expected)
    assert sum(info.size_bytes for info in expected) == foretold + 4 * parameters  # a count of steps for each
    assert 0 < len(whole) - foretold < 1 << 16


def test_a_file_of_another_stage_is_left_alone(
    harness: ModuleType, saved_file: tuple[bytes, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(chain: Any) -> None:
        await adopt(chain)
        first = chain.nodes[0]
        keeping = keeper(first, tmp_path)
        path = tmp_path / first.peer_id / "replica.safetensors"
        path.parent.mkdir()
        path.write_bytes(saved_file[0])
        before = {name: array.copy() for name, array in first.local.live_tensors().items()}
        with caplog.at_level(logging.WARNING):
            assert await keeping.take_up(first.context, SHA256) is None
        assert "not those of this stage" in caplog.text
        for name, array in first.local.live_tensors().items():
            np.testing.assert_array_equal(array, before[name])
        assert path.read_bytes() == saved_file[0]

    harness.run_chain(harness.Chain(2), body)


def progress(**changes: Any) -> Progress:
    fields: dict[str, Any] = {
        "run_id": "run-under-test", "member_id": "m", "stage": 1, "stages": 2, "round": 1, "base_cid": "base-under-test",
        "weights_sha256": SHA256, "generation": 1, "frames": 10, "inner_steps": 1, "steps_taken": 1,
    }  # fmt: skip
    return Progress(**{**fields, **changes})


def test_what_may_be_taken_up(harness: ModuleType) -> None:
    chain = harness.Chain(2)
    chain.open_round()
    context = replace(chain.nodes[1].context, member_id="m", generation=3)

    def use(**changes: Any) -> Use:
        return usable(progress(**changes), context, SHA256)[0]

    assert use() is Use.ALL and use(generation=3) is Use.ALL
    link = {"chain_link": "ab" * 32}
    for other in ({"round": 0}, {"base_cid": "c"}, {"weights_sha256": "cd" * 32}, {"generation": 4}):
        assert use(**other, **link) is Use.MOMENTS
        assert use(**other) is Use.NOTHING, "the coordinator has no commit to them"
    late = replace(context, round=4)
    assert usable(progress(**link), late, SHA256)[0] is Use.NOTHING, "and to these it has none any more"
    assert usable(progress(**link), replace(late, round=3), SHA256)[0] is Use.MOMENTS
    for foreign in ({"run_id": "r"}, {"member_id": "n"}, {"stage": 0}, {"stages": 3}, {"steps_taken": 0}):
        assert use(**foreign) is Use.NOTHING
    asyncio.run(_close(chain))


async def _close(chain: Any) -> None:
    await chain.close()


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 0.5), st.integers(0, 1 << 30), st.booleans()), max_size=40),
)
def test_saves_take_their_share_of_the_time_and_of_the_disk_and_no_more(
    boundaries: list[tuple[float, float, int, bool]],
) -> None:
    plan, now, last = SavePlan(), 0.0, None
    for pause_s, stall_s, size_bytes, fails in boundaries:
        now += pause_s
        if not plan.decide(now, writing=False).save:
            assert last is not None
            continue
        assert not plan.decide(now, writing=True).save
        if last is not None:
            since_s = now - last[0]
            if last[3]:
                assert since_s >= 30.0
            else:
                assert since_s >= 1.0 and last[1] <= 0.01 * since_s + 1e-9 and last[2] <= (2 << 20) * since_s + 1
        plan.saved(now, size_bytes, stall_s)
        if fails:
            assert 30.0 <= plan.failed(now) <= 1800.0
        else:
            plan.written()
        last = (now, stall_s, size_bytes, fails)


def test_tries_after_failures_are_further_and_further_apart() -> None:
    plan = SavePlan()
    assert [plan.failed(0.0) for _ in range(8)] == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]
    plan.written()
    assert plan.failures == 0 and plan.failed(0.0) == 30.0


def test_a_disk_that_takes_nothing_is_told_once_and_the_training_goes_on(
    harness: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Impatient(SavePlan):
        """Tries again at once."""

        def failed(self, now: float) -> float:
            super().failed(now)
            self._next_at = now
            return 0.0

    async def body(chain: Any) -> None:
        await adopt(chain)
        last = chain.nodes[1]
        keeping = ProgressKeeper(
            tmp_path / "progress", last.local, last.engine, last.event,
            plan=Impatient(least_pause_s=0.0, stall_share=1e9, write_bytes_per_s=1e18),
        )  # fmt: skip
        (tmp_path / "progress").write_text("no folder can be made here")

        async def boundary() -> None:
            await keeping.at_boundary(last.replica, SHA256, [], [])
            assert await keeping.last() is None

        last.replica._boundary = boundary
        with caplog.at_level(logging.INFO, logger="node.progress"):
            await chain.work()
        told = [one for one in caplog.records if one.name == "node.progress"]
        assert len(told) == 1 and "the training goes on" in told[0].getMessage()
        assert last.replica.totals.inner_steps == 4
        (tmp_path / "progress").unlink()
        await keeping.at_boundary(last.replica, SHA256, [], [])
        snapshot = await keeping.last()
        assert snapshot is not None and snapshot.progress.inner_steps == 4
        with caplog.at_level(logging.INFO, logger="node.progress"):
            await keeping.at_boundary(last.replica, SHA256, [], [])
        assert "can be saved again" in caplog.text
        await keeping.close()

    harness.run_chain(harness.Chain(2, leases=harness.Leases(4)), body)
