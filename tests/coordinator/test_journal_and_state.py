"""The journal, and the state as a fold over it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_run import small_run

from common.errors import Code, HocketError
from common.faults import NO_FAULTS
from coordinator.core import Core, Refused
from coordinator.journal import Journal
from coordinator.rounds import Phase
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from protocol.generated import hocket_pb2 as pb

# Many short journals: how they reach a real disk is tested below.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TOML = small_run(3) + """microbatches_per_inner_step = 2
"""


class Time:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_core(folder: Path, clock: Time) -> tuple[Core, Journal]:
    """A core over the journal in `folder`, as a start of the coordinator makes it."""
    journal = Journal(folder / "journal.sqlite", NO_FAULTS)
    core = Core(RunConfig.parse(TOML), journal, fold(journal), NO_FAULTS, clock)
    if not core.state.run_id:
        core.emit("created", run_id="r", run_toml=TOML, stages=2, model_config={},
                  dataset={"rows": 50, "frames": 5000, "heldout_rows": 3, "cid": "d", "codec": {}, "pinned": []})  # fmt: skip
        core.emit("version", version=0, round=0, cid="base", frames=0, record=None)
    core.emit("started", pid=1)
    return core, journal


def fold(journal: Journal) -> RunState:
    state = RunState()
    for event in journal.events():
        state.apply(event)
    return state


def join(core: Core, member: str) -> None:
    core.join(member, pb.JoinRequest(peer_id=f"peer-{member}"), ("aa", os.urandom(4).hex(), 1))


def apply_step(core: Core, step: tuple[str, str, int]) -> None:
    """Whatever the run allows of one random step."""
    kind, member, number = step
    state, known = core.state, core.state.members.get(step[1])
    if kind == "join":
        join(core, member)
    elif kind == "seen":
        core.seen(member)
    elif kind == "lose" and known is not None and known.live:
        core.lose(member, "silent")
    elif kind == "assign" and known is not None and known.live:
        core.assign(member, number % 2, "drawn")
    elif kind == "ready" and known is not None and known.stage is not None:
        core.emit("ready", member=member, base_cid=state.base_cid)
    elif kind == "lease" and known is not None:
        core.grant_lease(known, pb.LeaseRequest(round=state.round, generation=known.generation), ("aa", "bb", number))
    elif kind == "report" and known is not None and known.stage is not None:
        report = pb.MemberReport(round=state.round, stage=known.stage, generation=known.generation, frames_done=number, pid=1)
        report.leases_done.add(lease_id=number, frames=300, microbatches=2)
        core.take_report(known, report)
    elif kind == "return" and number in state.leases and state.leases[number].outstanding:
        core.emit("lease_returned", lease_id=number, reason="drawn")
    elif kind == "listened":
        core.emit("listened", round=number, cid="c", skipped=(1,), seconds=0.5, watch=None, alarms=[], previews=0, errors=["e"])
    elif kind == "phase":
        next_phase = {
            Phase.GATHERING: Phase.PREPARING, Phase.PREPARING: Phase.OPEN,
            Phase.OPEN: Phase.CLOSING, Phase.CLOSING: Phase.GATHERING,
        }  # fmt: skip
        more: dict[str, Any] = {
            Phase.GATHERING: {"round": state.round + 1},
            Phase.PREPARING: {"target_rows": 40, "target_frames": 4000, "total_frames": 12000},
        }.get(state.phase, {})
        core.emit("phase", phase=next_phase[state.phase].value, reason="drawn", **more)


steps = st.lists(
    st.tuples(
        st.sampled_from([
            "join", "seen", "lose", "assign", "ready", "ready", "lease", "lease", "report", "return", "listened", "phase",
        ]),
        st.sampled_from(["a", "b", "c"]), st.integers(0, 12),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_restart_finds_the_same_state_after_any_step(drawn: list[tuple[str, str, int]]) -> None:
    clock = Time()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        core, journal = open_core(Path(name), clock)
        revision = core.state.revision
        for step in drawn:
            clock.now += 0.5
            apply_step(core, step)
            assert core.state.revision >= revision
            revision = core.state.revision
        assert fold(journal) == core.state
        journal.close()
        again, journal = open_core(Path(name), clock)
        assert again.state.starts == 2 and again.state.revision > revision
        journal.close()


@settings(max_examples=60, deadline=None)
@given(steps)
def test_no_position_is_trained_twice_and_no_microbatch_id_is_given_twice(drawn: list[tuple[str, str, int]]) -> None:
    clock = Time()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        core, journal = open_core(Path(name), clock)
        # Into an open round with two ready replicas of stage 0, where leases flow.
        for member in ("a", "b"):
            join(core, member)
            core.assign(member, 0, "drawn")
        for kind in ("phase", "phase"):
            apply_step(core, (kind, "a", 0))
        for member in ("a", "b"):
            core.emit("ready", member=member, base_cid="base")
        given_ids: set[int] = set()
        seen: set[int] = set()
        for step in drawn:
            apply_step(core, step)
            for lease in core.state.leases.values():
                if lease.lease_id not in seen:
                    seen.add(lease.lease_id)
                    ids = set(range(lease.first_microbatch_id, lease.first_microbatch_id + 2))
                    assert not ids & given_ids
                    given_ids |= ids
            kept = sorted(lease.range for lease in core.state.leases.values() if not lease.returned)
            pool = sorted(core.state.returned)
            spans = sorted([*kept, *pool])
            # Within a round no position is both held, done or free more than once; a late one done after its return was leased
            # to somebody else is the exception that stays marked as returned.
            for before, after in pairwise(spans):
                assert before.epoch != after.epoch or before.stop <= after.start
        journal.close()


def two_replicas_in_an_open_round(folder: Path) -> tuple[Core, Journal]:
    core, journal = open_core(folder, Time())
    for member in ("a", "b"):
        join(core, member)
        core.assign(member, 0, "drawn")
    for _ in range(2):
        apply_step(core, ("phase", "a", 0))
    for member in ("a", "b"):
        core.emit("ready", member=member, base_cid="base")
    return core, journal


def test_a_lost_holder_gives_its_range_back_and_the_next_one_gets_it(tmp_path: Path) -> None:
    core, journal = two_replicas_in_an_open_round(tmp_path)

    def lease(member: str) -> pb.LeaseReply | Refused:
        known = core.state.members[member]
        return core.grant_lease(known, pb.LeaseRequest(round=1, generation=known.generation), ("aa", "bb", 1))

    first = lease("a")
    assert isinstance(first, pb.LeaseReply) and (first.start, first.stop) == (0, 3)
    core.lose("a", "silent")
    again = lease("b")
    assert isinstance(again, pb.LeaseReply) and (again.start, again.stop) == (0, 3)
    assert again.first_microbatch_id == 2 and again.lease_id == 2
    assert isinstance(lease("a"), Refused)
    stale = core.grant_lease(core.state.members["b"], pb.LeaseRequest(round=1, generation=7), ("aa", "bb", 1))
    assert isinstance(stale, Refused) and "generation" in stale.reason
    journal.close()


def test_a_lease_whose_grant_was_lost_is_granted_again(tmp_path: Path) -> None:
    core, journal = two_replicas_in_an_open_round(tmp_path)

    def lease(member: str, known: int | None) -> pb.LeaseReply | Refused:
        one = core.state.members[member]
        request = pb.LeaseRequest(round=1, generation=one.generation, known_lease_id=known)
        return core.grant_lease(one, request, ("aa", "bb", 1))

    first, others = lease("a", 0), lease("b", 0)
    assert isinstance(first, pb.LeaseReply) and isinstance(others, pb.LeaseReply)
    assert lease("a", 0) == first and lease("a", 0) == first
    second = lease("a", first.lease_id)
    assert isinstance(second, pb.LeaseReply) and second.lease_id == 3
    assert lease("a", first.lease_id) == second, "it is given again although two leases are unfinished"
    assert isinstance(lease("a", second.lease_id), Refused)
    core.emit("lease_done", lease_id=second.lease_id, frames=300, microbatches=2)
    third = lease("a", first.lease_id)
    assert isinstance(third, pb.LeaseReply) and third.lease_id == 4, "what is done was known"
    assert isinstance(lease("b", None), pb.LeaseReply), "who does not say what it knows gets a new one"
    core.lose("a", "silent")
    apply_step(core, ("join", "a", 0))
    core.assign("a", 0, "drawn")
    core.emit("ready", member="a", base_cid="base")
    again = lease("a", third.lease_id)
    assert isinstance(again, pb.LeaseReply) and again.lease_id > 4
    journal.close()


WRITER = """
import sys
from pathlib import Path
from common.faults import NO_FAULTS
from coordinator.journal import Journal
journal = Journal(Path(sys.argv[1]), NO_FAULTS)
number = 0
while True:
    event = journal.append("count", 0.0, {"number": number})
    print(event.seq, flush=True)
    number += 1
"""


def test_what_append_returned_from_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().split()]
    process.wait()
    process.stdout.close()
    journal = Journal(path, NO_FAULTS)
    numbers = [event.data["number"] for event in journal.events()]
    journal.close()
    assert numbers == list(range(len(numbers))) and len(numbers) >= len(told)


def test_a_journal_of_another_format_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(HocketError) as caught:
        Journal(path, NO_FAULTS)
    assert caught.value.code is Code.STATE_UNREADABLE
    path.write_bytes(b"not a database, but long enough to be looked at as one" * 50)
    with pytest.raises(HocketError) as caught:
        Journal(path, NO_FAULTS)
    assert caught.value.code is Code.STATE_UNREADABLE


def test_a_full_disk_is_named_and_the_event_is_not_there(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", NO_FAULTS)
    journal.append("x", 0.0, {"number": 1})
    journal._database.execute(f"PRAGMA max_page_count={journal._database.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(HocketError) as caught:
        journal.append("x", 0.0, {"text": "long " * 10_000})
    assert caught.value.code is Code.DISK_FULL
    assert [event.data for event in journal.events()] == [{"number": 1}]
    journal.close()


def test_values_that_are_no_json_never_reach_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", NO_FAULTS)
    with pytest.raises(ValueError):
        journal.append("x", 0.0, {"loss": float("nan")})
    assert list(journal.events()) == []
    journal.close()
