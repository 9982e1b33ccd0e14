"""Whole runs in virtual time: the real driver, journal, uploads and aggregation, members that come, fall silent and lag.

Whatever happened, a run whose members behave at last comes to its end.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_run import MEMORY, Behaviour, VirtualRun

from coordinator.rounds import Phase
from coordinator.run import RunState

behaviours = st.lists(
    st.builds(
        Behaviour,
        silent=st.tuples(st.integers(0, 60), st.integers(0, 120)),
        ticks_per_lease=st.integers(1, 30),
        hands_nothing_in=st.booleans(),
        keeps=st.booleans(),
    ),
    min_size=2, max_size=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(behaviours, st.integers(0, 1 << 20), st.dictionaries(st.integers(0, 200), st.floats(0, 30), max_size=4))
def test_a_run_ends_whatever_happened_before(drawn: list[Behaviour], seed: int, restarts: dict[int, float]) -> None:
    async def run(folder: Path) -> VirtualRun:
        virtual = VirtualRun(folder, drawn, seed)
        for number in range(600):
            if number in restarts:
                virtual.restart(restarts[number])
            await virtual.tick(number, behave=number >= 150)
            if virtual.core.state.phase is Phase.FINISHED:
                return virtual
        raise AssertionError(f"not finished: {virtual.core.state.phase}: {virtual.core.reason}")

    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        virtual = asyncio.run(run(Path(name)))
        state = virtual.core.state
        assert virtual.folded() == state
        virtual.journal.close()
    assert state.version == 2 and len(state.rounds) == 2
    assert state.rounds[-1]["heldout_loss"] == 2.0
    for record in state.rounds:
        assert all(one["duplicates"] == 0 for one in record["microbatches"])
        for stage in record["stages"]:
            assert stage["accepted"] + len(stage["refused"]) <= len(drawn)
    # Frames count where the holder of a lease and the last stage agree: never more than was leased.
    assert sum(record["frames"] for record in state.rounds) <= 300 * (state.next_lease_id - 1)
    assert any(stage["accepted"] for record in state.rounds for stage in record["stages"])


@pytest.mark.parametrize("name", ["m0", "m1", "m2", "m3"])
def test_what_a_restarted_worker_goes_on_from_is_counted_once_and_nothing_of_it_is_lost(tmp_path: Path, name: str) -> None:
    """Each member in turn is killed in the middle of round 1, twice, and goes on from what it had saved."""
    steady = Behaviour(silent=(0, 0), ticks_per_lease=1, hands_nothing_in=False, keeps=True)

    async def run() -> RunState:
        virtual, kills = VirtualRun(tmp_path, [steady] * 4, 1), 0
        for number in range(200):
            await virtual.tick(number, behave=True)
            state = virtual.core.state
            done = sum(lease.done_at is not None for lease in state.leases.values())
            member = next(one for one in virtual.members if one.name == name)
            if state.phase is Phase.OPEN and state.round == 1 and done > kills and member.microbatches and kills < 2:
                virtual.start_anew(name)
                kills += 1
            if state.phase is Phase.FINISHED:
                virtual.journal.close()
                assert kills == 2
                return state
        raise AssertionError(virtual.core.reason)

    state = asyncio.run(run())
    first = state.rounds[0]
    # Until it says that it goes on, what it had trained counts as lost: the round makes up for that, by a lease a time.
    assert first["target_frames"] <= first["frames"] <= first["target_frames"] + 600 and first["loss"] == 1.0
    assert first["lost_frames"] == 0
    for stage in first["microbatches"]:
        assert (stage["frames"], stage["duplicates"], stage["dropped"]) == (first["frames"], 0, 0)
    # Microbatches are drawn to replicas: one that got few of them hands in too little to be taken.
    assert sum(one["accepted"] + len(one["refused"]) for one in first["stages"]) == 4
    # Each report of this run says 1: those of the dead processes are told again in the later ones.
    assert first["duplicate_reports"] == 4


def test_an_undisturbed_run_needs_few_ticks_and_all_frames(tmp_path: Path) -> None:
    calm = Behaviour(silent=(0, 0), ticks_per_lease=1, hands_nothing_in=False)

    async def run() -> tuple[int, RunState]:
        virtual = VirtualRun(tmp_path, [calm] * 4, 1)
        for number in range(200):
            await virtual.tick(number, behave=False)
            if virtual.core.state.phase is Phase.FINISHED:
                virtual.journal.close()
                return number, virtual.core.state
        raise AssertionError(virtual.core.reason)

    ticks, state = asyncio.run(run())
    assert ticks < 40
    assert [record["frames"] for record in state.rounds] == [1200, 1200]
    assert state.frames_counted == 2400 and [one["version"] for one in state.versions] == [0, 1, 2]
