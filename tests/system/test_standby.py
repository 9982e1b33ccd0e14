"""A standby takes a lost replica's place, and a frozen replica finds its own taken when it wakes: real processes and signals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_logs import refused_moments

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.faults import NO_FAULTS
from common.log import read_events
from coordinator.journal import Event, Journal
from simulations.plan import Freeze, Kill, Plan
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_simulation, run_to_the_end

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

PROMOTED_WITHIN_S = 1.0


def journal(out: Path) -> list[Event]:
    """What the coordinator of a run that is over decided."""
    kept = Journal(next(out.rglob("journal.sqlite")), NO_FAULTS)
    try:
        return list(kept.events())
    finally:
        kept.close()


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]


def test_a_standby_is_promoted_within_a_second_and_a_woken_replica_is_fenced_and_rejoins(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    plan = Plan(
        freeze=(Freeze(round=2, stage=1, for_s=4.0, after_share=0.2),), kill=(Kill(round=7, stage=1, after_share=0.2),)
    )  # fmt: skip
    out = tmp_path / "run"
    out.mkdir()
    # Four workers: a replica and a standby of each stage.
    settings = SimulationSettings(
        stages=2, replicas=2, rounds=7, inner_steps=8, frames_per_inner_step=8 * 142, plan=plan, time_limit_s=150.0,
        data=write_dataset(Workload("test", 4, 2, 16), tmp_path / "data"),
        extra={
            "rounds": {"evaluate": False, "replicas_wanted": 1}, "membership": {"silence_s": 4.0, "standbys": 2},
            "network": {"silence_s": 1.5},
        },
    )  # fmt: skip
    report = run_to_the_end(run_simulation(settings, out, Quiet()))
    assert report["missed_plan_steps"] == [] and report["unexpected_ends"] == []
    assert report["acked_updates_lost"] == 0 and report["duplicate_microbatches"] == 0
    assert refused_moments(out) == []

    logs = {f"worker-{number}": list(read_events(out / f"worker-{number}" / "events.jsonl")) for number in range(4)}
    members = {named(log, "started")[0]["member_id"]: name for name, log in logs.items()}
    decided = journal(out)
    lost = [event for event in decided if event.kind == "lost"]
    assert len(lost) == 2
    seconds = []
    for event in lost:
        # In the same look at the members in which one was given up, a standby got its place.
        after = next(other for other in decided if other.seq > event.seq)
        assert (after.kind, after.data["stage"], after.data["role"]) == ("assigned", 1, "replica")
        log = logs[members[after.data["member"]]]
        promoted = next(one for one in named(log, "promoted") if one["generation"] == after.data["generation"])
        seconds.append(promoted["time"] - event.time)
        # It held the base: nothing was loaded between the loss and the promotion.
        assert not [one for one in named(log, "standby_ready") if event.time < one["time"] < promoted["time"]]
    record_property("promoted_after_s", seconds)
    assert max(seconds) < PROMOTED_WITHIN_S, seconds

    frozen = lost[0].data["member"]
    log = logs[members[frozen]]
    fenced = named(log, "fenced")[0]
    assigned = [event.data["generation"] for event in decided if event.kind == "assigned" and event.data["member"] == frozen]
    assert fenced["stage"] == 1 and fenced["generation"] == assigned[0] < assigned[1]
    # What it had trained of that round is in no update, and what its successor trained is in one.
    round = next(
        event.data["round"] for event in reversed(decided) if event.seq < lost[0].seq and event.data.get("phase") == "PREPARING"
    )
    assert round not in [one["round"] for one in named(log, "update_acked")]
    updates = [
        (event.data["member"], event.data["stage"])
        for event in decided
        if event.kind == "update" and event.data["round"] == round
    ]
    assert len(updates) == len(set(updates)) == 2 and frozen not in dict(updates)
