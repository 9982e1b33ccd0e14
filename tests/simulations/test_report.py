"""The report of a run, from logs that are written out here by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.actions import FaultRecord
from simulations.report import (
    acked_updates_lost,
    build_report,
    false_suspicions,
    merged,
    recoveries,
    sampled_paths,
    speeds,
)

KILL = FaultRecord("kill", "worker-3", 33, stage=1, round=2, member="m3", peer_id="p3", at=100.0)


def microbatch(time: float, number: int, peer: str, *, round_number: int = 2, pid: int = 7) -> dict[str, Any]:
    path = [{"stage": 0, "peer_id": "p0", "pid": 1}, {"stage": 1, "peer_id": peer, "pid": pid}]
    return {"event": "microbatch", "time": time, "round": round_number, "id": number, "frames": 10, "seconds": 0.5, "path": path}


def rerouted(time: float, peer: str, waited_s: float) -> dict[str, Any]:
    return {
        "event": "rerouted",
        "time": time,
        "round": 2,
        "id": 1,
        "stage": 1,
        "from_peer": peer,
        "to_peer": "p4",
        "waited_s": waited_s,
    }


def test_logs_are_merged_by_time() -> None:
    events = merged({"a": [{"event": "x", "time": 3.0}], "b": [{"event": "y", "time": 1.0}, {"event": "z", "time": 4.0}]})
    assert [(event["event"], event["process"]) for event in events] == [("y", "b"), ("x", "a"), ("z", "b")]


def test_a_recovery_is_the_longest_wait_of_a_microbatch_that_was_addressed_to_the_lost_replica() -> None:
    events = [
        rerouted(99.0, "p3", 50.0),
        microbatch(100.5, 1, "p3"),
        rerouted(100.2, "p3", 1.5),
        rerouted(101.0, "p3", 2.5),
        rerouted(101.0, "p9", 9.0),
        microbatch(103.0, 2, "p4"),
    ]
    (found,) = recoveries([KILL], events)
    assert found["seconds"] == 2.5
    assert found["resumed_at"] == 103.0
    assert found["detected_after_s"] == pytest.approx(0.2)
    assert found["rerouted_microbatches"] == 2


def test_a_recovery_without_a_waiting_microbatch_is_the_time_to_the_next_one_elsewhere() -> None:
    (found,) = recoveries([KILL], [microbatch(99.0, 1, "p4"), microbatch(100.5, 2, "p3"), microbatch(104.0, 3, "p4")])
    assert found["seconds"] == 4.0 and found["detected_after_s"] is None


def test_a_stage_that_never_resumed_has_no_seconds() -> None:
    (found,) = recoveries([KILL], [microbatch(99.0, 1, "p4")])
    assert found["seconds"] is None and found["resumed_at"] is None


def test_giving_up_a_healthy_replica_is_a_false_suspicion() -> None:
    events = [rerouted(99.0, "p3", 1.0), rerouted(101.0, "p3", 1.0), rerouted(101.0, "p4", 1.0)]
    assert false_suspicions([KILL], events) == 2


def log(sha256: str, *, round_number: int = 1) -> list[dict[str, Any]]:
    return [
        {"event": "started", "time": 0.0, "member_id": "m1"},
        {"event": "update_acked", "time": 1.0, "round": round_number, "stage": 0, "sha256": sha256},
    ]


def manifest(**entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"accepted": [], "refused": [], **entries}


def test_an_acknowledged_update_is_found_in_the_manifest_by_member_stage_and_digest() -> None:
    good = {"member": "m1", "stage": 0, "sha256": "aa"}
    assert acked_updates_lost({"worker-0": log("aa")}, {1: manifest(accepted=[good])}) == []
    for other in ({**good, "member": "m2"}, {**good, "stage": 1}, {**good, "sha256": "bb"}):
        (lost,) = acked_updates_lost({"worker-0": log("aa")}, {1: manifest(accepted=[other])})
        assert lost == {"process": "worker-0", "member": "m1", "round": 1, "stage": 0, "sha256": "aa"}


def test_a_refused_update_is_accounted_for() -> None:
    assert (
        acked_updates_lost({"w": log("aa")}, {1: manifest(refused=[{"member": "m1", "stage": 0, "reason": "few frames"}])}) == []
    )


def test_an_update_of_a_round_without_a_manifest_is_not_counted() -> None:
    assert acked_updates_lost({"w": log("aa", round_number=5)}, {1: manifest()}) == []


def test_the_sampled_round_is_the_one_that_a_fault_fell_into() -> None:
    events = [microbatch(float(number), number, "p4", round_number=number, pid=number + 5) for number in (1, 2, 3)]
    assert sampled_paths(events, 2)["round"] == 2
    sampled = sampled_paths(events, 2, [FaultRecord("kill", "w", 1, 1, 3, "m", "p", 0.0)])
    assert sampled["round"] == 3 and sampled["pids"] == [1, 8] and sampled["incomplete"] == []
    assert [hop["pid"] for hop in sampled["microbatches"][0]["path"]] == [1, 8]


def test_a_path_that_skips_a_stage_is_reported_as_incomplete() -> None:
    assert sampled_paths([microbatch(1.0, 6, "p4")], 3)["incomplete"] == [6]


def test_speeds_are_a_median_with_its_spread() -> None:
    rounds = [{"frames": frames, "seconds": 2.0} for frames in (100, 400, 200)]
    assert speeds(rounds) == {"median": 100.0, "slowest": 50.0, "fastest": 200.0}
    assert speeds([]) == {"median": None, "slowest": None, "fastest": None}


def test_the_report_holds_what_the_contract_names() -> None:
    status = {
        "run_id": "r",
        "rounds": [{"round": 1, "frames": 100, "seconds": 2.0}],
        "stages": [{"stage": 0}, {"stage": 1}],
        "duplicates": 1,
        "dropped": 2,
        "bytes": {"activations": 5},
        "version": {"round": 1, "cid": "bafy"},
        "watch": [{"round": 1, "watch": None}],
        "alarms": [{"round": 1, "kind": "text_not_read", "group": "all", "reason": "why"}],
    }
    report = build_report(
        status=status,
        logs={"worker-0": [*log("aa"), microbatch(101.0, 1, "p4", round_number=1)]},
        manifests={1: manifest()},
        faults=[KILL],
        coordinator_restarts=1,
        memory={"worker-0": {"own": 1, "children": 2, "total": 3}},
        unexpected_ends=[],
        missed_steps=[],
        config={"stages": 2},
    )
    assert report["acked_updates"] == 1 and report["acked_updates_lost"] == 1
    assert report["duplicate_microbatches"] == 1 and report["dropped_microbatches"] == 2
    assert report["recoveries"][0]["seconds"] == 1.0
    assert report["final_version"]["cid"] == "bafy" and report["coordinator_restarts"] == 1
    assert report["watch"] == status["watch"] and report["alarms"] == status["alarms"]
    assert report["frames_per_second"]["median"] == 50.0
