"""A member that leaves within a round hands in what it has trained, before the round closes; what it holds goes back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from virtual_run import Behaviour, VirtualRun

from coordinator.rounds import Phase

CALM = Behaviour(silent=(0, 0), ticks_per_lease=2, hands_nothing_in=False)


@pytest.mark.parametrize("stage", [0, 1])
def test_the_update_of_a_leaving_member_is_taken_while_the_round_is_open_and_counts_once(tmp_path: Path, stage: int) -> None:
    async def body() -> None:
        run = VirtualRun(tmp_path, [CALM] * 4, seed=3)
        core, state = run.core, run.core.state

        def trained() -> bool:
            return state.phase is Phase.OPEN and any(one.stage == stage and one.microbatches for one in run.members)

        await run.until(trained, behave=False, limit=200)
        leaver = next(one for one in run.members if one.stage == stage and one.microbatches)
        early = await run.submit(leaver, stage)
        assert not early.accepted and "CLOSING" in early.reason
        assert (await run.submit(leaver, stage, leaving=True)).accepted
        update = state.updates[stage, leaver.name]
        assert update.frames == sum(leaver.microbatches.values()) > 0
        held = [lease.range for lease in state.outstanding if lease.member == leaver.name]
        core.leave(leaver.name, "asked to stop", ("aa", os.urandom(4).hex(), 1))
        assert all(lease.member != leaver.name for lease in state.outstanding)
        assert set(held) <= set(state.returned)
        run.members.remove(leaver)
        closing = state.round
        await run.until(lambda: state.round != closing, behave=True, limit=400)
        (record,) = state.rounds
        assert record["frames"] == record["target_frames"]
        taken = record["stages"][stage]
        assert leaver.name in taken["accepted_members"] or any(leaver.name in str(one) for one in taken["refused"])
        assert taken["n"] == 2

    asyncio.run(body())
