"""Who joins while a round is open takes part in the next one at the latest."""

from __future__ import annotations

import asyncio
from pathlib import Path

from virtual_run import Behaviour, Scripted, VirtualRun

from coordinator.rounds import Phase

CALM = Behaviour(silent=(0, 0), ticks_per_lease=2, hands_nothing_in=False)
MOST_TICKS = 400


def test_a_joiner_is_in_the_version_of_the_next_round(tmp_path: Path) -> None:
    async def run() -> None:
        virtual = VirtualRun(tmp_path, [CALM] * 3, seed=1)
        joined = 0
        for number in range(MOST_TICKS):
            state = virtual.core.state
            if state.phase is Phase.FINISHED:
                break
            if not joined and state.phase is Phase.OPEN and state.leases:
                virtual.members.append(Scripted("joiner", CALM))
                joined = state.round
            await virtual.tick(number, behave=False)
        state = virtual.core.state
        taken = [one["round"] for one in state.rounds if any("joiner" in stage["accepted_members"] for stage in one["stages"])]
        assert state.phase is Phase.FINISHED and 0 < joined < state.rounds[-1]["round"]
        assert joined + 1 in taken
        virtual.journal.close()

    asyncio.run(run())
