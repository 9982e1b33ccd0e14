"""What dies with a replica within a round is trained anew in that round, within a bound."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_run import Behaviour, Scripted, VirtualRun

from coordinator.lost_work import MOST_MADE_UP, lost_frames
from coordinator.measures import report_record
from coordinator.rounds import Phase
from coordinator.run import Update
from protocol.generated import hocket_pb2 as pb

CALM = Behaviour(silent=(0, 0), ticks_per_lease=2, hands_nothing_in=False)
MUCH = 1 << 40


def report(member: str, stage: int, frames: int, generation: int = 1, resumed: tuple[int, ...] = ()) -> dict[str, Any]:
    message = pb.MemberReport(stage=stage, generation=generation, frames_done=frames, resumed_generations=resumed)
    return report_record(member, message)


def update(member: str, stage: int, frames: int, generation: int = 1) -> Update:
    return Update(member, stage, generation, "00", 1, frames, 1, [(1, frames)], 0, 0, "p")


def test_the_stage_that_lost_most_tells() -> None:
    ended = [report("a", 0, 30), report("b", 1, 20), report("c", 1, 25)]
    assert lost_frames(ended, [], [], MUCH) == 45
    assert lost_frames(ended, [report("d", 1, 500)], [], MUCH) == 45
    assert lost_frames(ended, [], [], 40) == 40
    assert lost_frames([], [report("d", 1, 500)], [], MUCH) == 0


def test_what_an_update_holds_or_a_later_life_took_up_is_not_lost() -> None:
    ended = [report("a", 1, 30), report("b", 1, 20)]
    assert lost_frames(ended, [], [update("b", 1, 20)], MUCH) == 30
    assert lost_frames(ended, [report("a", 1, 35, 2, (1,))], [], MUCH) == 20
    # A second life that began anew has nothing of the first one, and one of another stage neither.
    assert lost_frames(ended, [report("a", 1, 35, 2)], [], MUCH) == 50
    assert lost_frames(ended, [report("a", 0, 35, 2, (1,))], [], MUCH) == 50
    # The second life died too: what it had taken up died once.
    assert lost_frames([*ended, report("a", 1, 35, 2, (1,))], [], [], MUCH) == 55


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**12), st.booleans()), max_size=8), st.integers(0, 10**6))
def test_it_is_bounded_and_never_less_for_one_more_death(lives: list[tuple[int, int, bool]], most: int) -> None:
    ended = [report(f"m{index}", stage, frames) for index, (stage, frames, _) in enumerate(lives)]
    updates = [update(f"m{index}", stage, frames) for index, (stage, frames, held) in enumerate(lives) if held]
    lost = lost_frames(ended, [], updates, most)
    assert 0 <= lost <= most
    assert lost_frames([*ended, report("another", 0, 7)], [], updates, most) >= lost


def round_with_a_death(folder: Path, stage: int, claims: int | None = None) -> dict[str, Any]:
    """The record of a round in which a replica of `stage` dies once it has trained; `claims`: frames that it says it had done."""
    async def body() -> dict[str, Any]:
        run = VirtualRun(folder, [CALM] * 5, seed=3)    # two a stage, and a standby
        core, state = run.core, run.core.state

        def trained() -> list[Scripted]:
            there = [one for one in run.members if one.stage == stage and len(one.microbatches) >= 4]
            return there if state.phase is Phase.OPEN else []

        await run.until(lambda: bool(trained()), behave=False, limit=200)
        victim = trained()[0]
        if claims is not None:
            core.reports[victim.name, victim.generation]["frames"] = claims
        core.lose(victim.name, "killed", barred=True)
        run.members.remove(victim)
        closing = state.round
        await run.until(lambda: state.round != closing, behave=True, limit=600)
        run.journal.close()
        record: dict[str, Any] = state.rounds[0]
        return record

    return asyncio.run(body())


@pytest.mark.parametrize("stage", [0, 1])
def test_every_stage_holds_the_rounds_frames_though_a_replica_died(tmp_path: Path, stage: int) -> None:
    record = round_with_a_death(tmp_path, stage)
    assert record["lost_frames"] >= 300
    held = [one["frames"] for one in record["microbatches"]]
    # The dead one's last report may be older than its last microbatch.
    assert min(held) >= record["target_frames"] - 300 and max(held) >= record["target_frames"] + record["lost_frames"]
    assert record["target_frames"] <= record["frames"] <= record["target_frames"] + 300


def test_a_liar_about_its_own_work_makes_the_round_half_as_long_again_and_no_longer(tmp_path: Path) -> None:
    record = round_with_a_death(tmp_path, 1, claims=10**15)
    assert record["lost_frames"] == MOST_MADE_UP * record["target_frames"]
    trained = max(one["frames"] for one in record["microbatches"])
    assert trained <= (1 + MOST_MADE_UP) * record["target_frames"] + 300
