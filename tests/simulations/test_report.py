"""The report of a run, from logs that are written out here by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.actions import FaultRecord
from simulations.recoveries import OpenSpans, false_suspicions, recoveries, recovery_times
from simulations.report import acked_updates_lost, build_report, merged, sampled_paths, speeds, summary

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


def test_a_recovery_is_the_longest_wait_since_the_loss_of_a_microbatch_that_was_addressed_to_the_lost_replica() -> None:
    events = [
        rerouted(99.0, "p3", 50.0),
        microbatch(100.5, 1, "p3"),
        rerouted(100.2, "p3", 1.5),
        rerouted(101.0, "p3", 2.5),     # it had been there for 1.5 s when the replica was lost at 100
        rerouted(104.0, "p3", 0.75),    # sent to it when it was long gone
        rerouted(101.0, "p9", 9.0),
        microbatch(103.0, 2, "p4"),
    ]
    (found,) = recoveries([KILL], events)
    assert found["seconds"] == 1.0 and found["longest_wait_s"] == 2.5
    assert found["resumed_at"] == 103.0
    assert found["detected_after_s"] == pytest.approx(0.2)
    assert found["rerouted_microbatches"] == 3


def test_a_recovery_without_a_waiting_microbatch_is_the_time_to_the_next_one_elsewhere() -> None:
    (found,) = recoveries([KILL], [microbatch(99.0, 1, "p4"), microbatch(100.5, 2, "p3"), microbatch(104.0, 3, "p4")])
    assert found["seconds"] == 4.0 and found["detected_after_s"] is None and found["longest_wait_s"] is None


def test_a_wait_belongs_to_the_last_fault_of_a_member_and_to_the_stage_that_it_served() -> None:
    """A member that was frozen as a replica of stage 0 comes back in stage 1, where it is frozen again."""
    first = FaultRecord("freeze", "worker-3", 33, 0, 2, "m3", "p3", at=90.0, until=95.0)
    second = FaultRecord("freeze", "worker-3", 33, 1, 2, "m3", "p3", at=100.0, until=115.0)
    events = [{**rerouted(98.0, "p3", 3.0), "stage": 1}, rerouted(101.0, "p3", 1.5), microbatch(90.5, 1, "p4")]
    found = recoveries([first, second], sorted(events, key=lambda event: float(event["time"])))
    assert [one["rerouted_microbatches"] for one in found] == [0, 1]
    assert found[1]["seconds"] == 1.0
    assert false_suspicions([first, second], events) == 0


def test_a_stage_that_never_resumed_has_no_seconds() -> None:
    (found,) = recoveries([KILL], [microbatch(99.0, 1, "p4")])
    assert found["seconds"] is None and found["resumed_at"] is None


def test_time_without_an_open_round_is_no_recovery() -> None:
    spans = OpenSpans()
    for at, phase in ((90.0, "OPEN"), (101.0, "CLOSING"), (102.0, "AGGREGATING"), (109.0, "OPEN"), (110.0, "OPEN")):
        spans.look(phase, at)
    (found,) = recoveries([KILL], [microbatch(110.5, 1, "p4")], spans)
    assert found["seconds"] == pytest.approx(1.0 + 1.5)
    assert OpenSpans().open_s(1.0, 4.0) == 3.0


def test_what_a_hurt_caller_says_is_no_measure_and_no_false_suspicion() -> None:
    frozen = FaultRecord("freeze", "worker-9", 99, 0, 2, "m9", "p9", at=98.0, until=104.0)
    events = [
        {**rerouted(101.0, "p3", 0.5), "process": "worker-1"},
        {**rerouted(104.5, "p3", 6.0), "process": "worker-9"},
        {**rerouted(104.5, "p4", 6.0), "process": "worker-9"},
    ]
    (found, _) = recoveries([KILL, frozen], events)
    assert found["seconds"] == 0.5 and false_suspicions([KILL, frozen], events) == 0
    later = [{**rerouted(120.0, "p9", 1.0), "process": "worker-1"}]
    assert false_suspicions([KILL, frozen], later) == 1


def test_a_promotion_belongs_to_the_oldest_loss_of_its_stage_that_has_none() -> None:
    second = FaultRecord("cut", "worker-4", 34, stage=1, round=2, member="m4", peer_id="p5", at=103.0)
    other = FaultRecord("kill", "worker-5", 35, stage=1, round=2, member="m6", peer_id="p6", at=99.0, role="standby")
    promotion = {"event": "promoted", "stage": 1, "round": 2, "generation": 3}
    events = [{**promotion, "time": 101.5}, {**promotion, "time": 104.0}]
    found = recoveries([KILL, second, other], events)
    assert [one["promoted_after_s"] for one in found] == [1.5, 1.0, None]
    assert [one["promoted"] for one in found] == [True, True, False]
    assert found[2]["seconds"] is None and found[2]["role"] == "standby"


def test_recovery_times_are_of_replicas_and_by_kind() -> None:
    found = [{"role": "replica", "kind": "kill", "seconds": 0.1 * number} for number in range(1, 21)]
    found += [{"role": "replica", "kind": "cut", "seconds": None}, {"role": "standby", "kind": "cut", "seconds": None}]
    times = recovery_times(found)
    assert times["kill"]["p95"] == pytest.approx(1.9) and times["kill"]["longest"] == pytest.approx(2.0)
    assert times["kill"]["n"] == 20 and times["kill"]["unknown"] == 0
    assert times["cut"] == {"n": 1, "median": None, "p95": None, "longest": None, "unknown": 1}


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
    lines = summary({**report, "seconds": 12.0})
    assert "kill: 1 replicas lost" in lines[1] and "p95 1.00 s" in lines[1]
    assert "1 of them lost" in lines[2] and "2 dropped" in lines[2]
