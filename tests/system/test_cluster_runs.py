"""Whole runs of real processes: real p2pd daemons, real gRPC, real SIGKILLs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from event_logs import refused_moments

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.errors import Code, HocketError
from common.log import read_events
from protocol.content import file_cid
from simulations.actions import FaultKind
from simulations.churn import Churn
from simulations.plan import Cut, InjectedFault, Plan
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_simulation, run_to_the_end

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

FRAMES_PER_STEP = 8 * 142
CHURN_SEED = 3
REPORT_KEYS = {
    "rounds", "recoveries", "false_suspicions", "duplicate_microbatches", "dropped_microbatches", "acked_updates_lost",
    "coordinator_restarts", "quarantined", "attackers", "honest_quarantined", "final_version", "bytes_sent", "config",
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of random utterances for the test preset."""
    return write_dataset(Workload("test", 4, 2, 16), tmp_path_factory.mktemp("data"))


def simulate(out: Path, data: Path, **changes: Any) -> dict[str, Any]:
    """Run a cluster of the test preset to its end."""
    settings = {
        "stages": 2,
        "replicas": 2,
        "rounds": 3,
        "inner_steps": 2,
        "frames_per_inner_step": FRAMES_PER_STEP,
        "data": data,
        "time_limit_s": 240.0,
        "extra": {"rounds": {"evaluate": False}, "membership": {"silence_s": 4.0}},
        **changes,
    }
    out.mkdir()
    return run_to_the_end(run_simulation(SimulationSettings(**settings), out, Quiet()))


def last_ready(out: Path, worker: str) -> dict[str, Any]:
    """The version that a worker reported to have loaded last."""
    return [event for event in read_events(out / worker / "events.jsonl") if event["event"] == "ready"][-1]


def test_under_churn_all_that_stay_end_with_the_bit_same_version(tmp_path: Path, data: Path) -> None:
    """A worker is killed in one round and one is frozen in the next; others join, the frozen one comes back."""
    kinds: tuple[FaultKind, ...] = ("kill", "freeze")
    churn = Churn(share=0.25, kinds=kinds, seed=CHURN_SEED, from_round=2, to_round=3, latest=0.4, freeze_for_s=4.0)
    out = tmp_path / "run"
    # Rounds of some seconds, so that the run is not over before the frozen one is back.
    report = simulate(out, data, rounds=5, inner_steps=10, idle=1, plan=Plan(churn=churn))
    assert [entry["round"] for entry in report["rounds"]] == [1, 2, 3, 4, 5]
    assert report["missed_plan_steps"] == [] and report["unexpected_ends"] == []
    assert [recovery["kind"] for recovery in report["recoveries"]] == ["kill", "freeze"]
    assert all(0 <= recovery["seconds"] < 60 for recovery in report["recoveries"])
    assert report["acked_updates"] >= 4 + 4 * 3 and report["acked_updates_lost"] == 0 and report["false_suspicions"] == 0
    killed = report["recoveries"][0]["process"]
    loaded: dict[int, set[str]] = {}
    members: dict[str, str] = {}
    for number in range(5 + 1):
        name = f"worker-{number}"
        events = read_events(out / name / "events.jsonl")
        if name == killed or not events:  # the last one may still wait for its ticket
            continue
        members[name] = next(event for event in events if event["event"] == "started")["member_id"]
        ready = last_ready(out, name)
        assert ready["base"] == report["rounds"][-1]["base_cid"], name
        loaded.setdefault(int(ready["stage"]), set()).add(ready["weights_sha256"])
    assert set(loaded) == {0, 1} and all(len(digests) == 1 for digests in loaded.values())
    took_part = {member for stage in report["rounds"][-1]["stages"] for member in stage["accepted_members"]}
    assert members["worker-4"] in took_part
    assert members[report["recoveries"][1]["process"]] in took_part, "the frozen one did not come back"
    assert len(report["paths"]["pids"]) >= 3 and report["paths"]["incomplete"] == []
    assert (out / "report.json").is_file()
    assert refused_moments(out) == []


def test_a_worker_that_is_cut_off_is_left_and_comes_back(tmp_path: Path, data: Path) -> None:
    """Nobody is told of the cut: no connection is closed, and its process goes on."""
    plan = Plan(cut=(Cut(round=1, stage=1, after_share=0.2, for_s=3.0),))
    out = tmp_path / "run"
    try:
        report = simulate(out, data, rounds=5, inner_steps=10, plan=plan)
    except HocketError as error:
        if error.code is Code.NETWORK_REFUSED:
            pytest.skip(error.line())
        raise
    (recovery,) = report["recoveries"]
    assert recovery["kind"] == "cut" and recovery["stage"] == 1 and recovery["seconds"] < 60
    assert len(report["rounds"]) == 5 and report["unexpected_ends"] == []
    assert report["acked_updates_lost"] == 0 and report["false_suspicions"] == 0
    assert last_ready(out, recovery["process"])["base"] == report["rounds"][-1]["base_cid"]


def test_a_run_that_does_not_end_in_time_has_a_report_that_says_so(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(HocketError) as caught:
        simulate(out, data, stages=1, replicas=1, rounds=100, inner_steps=500, time_limit_s=2.0)
    assert caught.value.code is Code.CHILD_FAILED and "did not end within 2 s" in caught.value.detail
    report = json.loads((out / "report.json").read_text())
    assert report["unfinished"] in caught.value.detail and report["rounds"] == [] and report["acked_updates_lost"] == 0


def test_a_coordinator_killed_while_it_aggregates_goes_on_and_loses_nothing(tmp_path: Path, data: Path) -> None:
    fault = InjectedFault(process="coordinator", line="coordinator.aggregate.stage:round=2,stage=0:kill")
    report = simulate(tmp_path / "run", data, replicas=1, recycle_every=1, plan=Plan(fault=(fault,)))
    assert report["coordinator_restarts"] == 1
    for worker in ("worker-0", "worker-1"):  # with a new engine each round, and the optimizer's state of the round before
        events = read_events(tmp_path / "run" / worker / "events.jsonl")
        assert {event["round"] for event in events if event["event"] == "engine_recycled"} >= {2, 3}
        assert not [event for event in events if event["event"] in ("moments_dropped", "commit_refused")]
    assert [entry["round"] for entry in report["rounds"]] == [1, 2, 3]
    assert report["acked_updates"] == 6 and report["acked_updates_lost"] == 0
    assert report["unexpected_ends"] == []
    assert report.keys() >= REPORT_KEYS
    for entry in report["rounds"]:
        assert entry.keys() >= {"round", "loss", "heldout_loss", "frames", "seconds", "stages"}
        for stage in entry["stages"]:
            assert stage.keys() >= {"rule", "f", "n", "tolerates", "accepted", "refused"}
            assert (stage["n"], stage["f"], stage["tolerates"], stage["accepted"]) == (1, 0, 0, 1)


@pytest.mark.parametrize("point", ["node.forward.before", "node.answer.half", "node.submit.half"])
def test_the_last_of_four_stages_dies_at_a_point_of_a_round(tmp_path: Path, data: Path, point: str) -> None:
    """One retry in the whole chain, by the direct caller; no round fails and every count is right."""
    # Which of the first four serves the last stage is drawn.
    first = [f"worker-{number}" for number in range(4)]
    plan = Plan(fault=tuple(InjectedFault(process=name, line=f"{point}:round=2,stage=3:kill") for name in first))
    out = tmp_path / "run"
    report = simulate(out, data, stages=4, rounds=3, plan=plan, one_by_one=True)
    assert len(report["rounds"]) == 3 and report["unexpected_ends"] == []
    (recovery,) = report["recoveries"]
    assert recovery["process"] in first and (recovery["stage"], recovery["round"]) == (3, 2)
    rerouted = [
        event
        for number in range(8)
        for event in read_events(out / f"worker-{number}" / "events.jsonl")
        if event["event"] == "rerouted"
    ]
    assert {event["stage"] for event in rerouted} <= {3}
    ids = [event["id"] for event in rerouted]
    assert len(ids) == len(set(ids)), "a microbatch was sent again more than once"
    if point == "node.submit.half":
        assert ids == []
    else:
        assert ids
    assert report["acked_updates_lost"] == 0 and report["duplicate_microbatches"] == 0
    for entry in report["rounds"]:
        per_stage = {stage["stage"]: stage for stage in entry["microbatches"]}
        for stage in range(3):
            assert per_stage[stage]["frames"] == entry["target_frames"] and per_stage[stage]["duplicates"] == 0
        # What only the dead replica had counted is in no update: those, and no others, are missing at its stage.
        assert per_stage[3]["frames"] <= per_stage[2]["frames"]
        if entry["round"] != 2:
            assert per_stage[3]["dropped"] == 0


def test_workers_find_shards_by_their_names_only(tmp_path: Path, data: Path) -> None:
    """A run of one replica a stage; what the first stage read is what the manifest names, byte for byte."""
    out = tmp_path / "run"
    simulate(out, data, replicas=1, rounds=1)
    shards = {path.stem: path for path in (data / "shards").iterdir()}
    assert all(file_cid(path) == name for name, path in shards.items())
    stores = [out / f"worker-{number}" / "blocks" for number in range(2)]
    blocks = {hashlib.sha256(path.read_bytes()).hexdigest() for store in stores for path in store.rglob("*") if path.is_file()}
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in shards.values() if path.stat().st_size < 2**20} <= blocks
