"""What is told to stop takes every process with it that it started, and what those started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.log import read_events
from simulations.plan import InjectedFault, Plan
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_simulation, run_to_the_end
from simulations.usage import descendants

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_every_process_ends(tmp_path: Path, number: int) -> None:
    data = write_dataset(Workload("test", 4, 2, 16), tmp_path / "data")
    arguments = ["simulate", "--out", str(tmp_path / "run"), "--data", str(data), "--stages", "2", "--replicas", "1"]
    arguments += ["--rounds", "500", "--time-limit", "150"]
    process = subprocess.Popen([sys.executable, "-m", "cli.main", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 1: OPEN"):
            break
    assert _left_after(process, number, at_least=6) == []  # the coordinator with its peer and p2pd, two workers with theirs


def test_a_benchmark_ends_what_it_measures() -> None:
    arguments = ["bench", "pipeline", "--rows", "torch2", "--preset", "test", "--inner-steps", "100000"]
    process = subprocess.Popen([sys.executable, "-m", "cli.main", *arguments], stdout=subprocess.PIPE, text=True)
    while len(descendants(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.05)  # no event tells of a grandchild's start
    assert _left_after(process, signal.SIGTERM, at_least=2) == []


def test_workers_that_are_told_to_stop_within_a_round_hand_over_and_lose_nothing(tmp_path: Path) -> None:
    """Of each stage one of two replicas gets SIGTERM half-way through round 2; the run goes on with the others."""
    point = "node.forward.before:round=2"
    lines = (f"{point},stage=0,microbatch=45:term", f"{point},stage=1,microbatch=48:term")
    faults = tuple(InjectedFault(process=f"worker-{number}", line=line) for number in range(4) for line in lines)
    settings = SimulationSettings(
        stages=2, replicas=2, rounds=3, inner_steps=4, frames_per_inner_step=8 * 142, time_limit_s=150.0,
        data=write_dataset(Workload("test", 4, 2, 16), tmp_path / "data"), plan=Plan(fault=faults),
        extra={"rounds": {"evaluate": False}, "membership": {"silence_s": 15.0}},
    )  # fmt: skip
    out = tmp_path / "run"
    out.mkdir()
    report = run_to_the_end(run_simulation(settings, out, Quiet()))
    events = {f"worker-{number}": list(read_events(out / f"worker-{number}" / "events.jsonl")) for number in range(4)}
    named = {name: [event["event"] for event in each] for name, each in events.items()}
    left = [name for name in named if "drained" in named[name]]
    drained_at = [event["stage"] for name in left for event in events[name] if event["event"] == "drained"]
    assert sorted(drained_at) == [0, 1], "one of each stage has left"
    for name in left:
        (drained,) = (event for event in events[name] if event["event"] == "drained")
        (acked,) = (event for event in events[name] if event["event"] == "update_acked" and event["round"] == 2)
        assert drained["round"] == 2 and drained["submitted"] and acked["frames"] > 0
        assert named[name][-1] == "stopped"
    assert [entry["round"] for entry in report["rounds"]] == [1, 2, 3]
    assert report["acked_updates"] == 4 + 4 + 2 and report["acked_updates_lost"] == 0
    assert report["dropped_microbatches"] == 0 == report["false_suspicions"]
    (second,) = (entry for entry in report["rounds"] if entry["round"] == 2)
    assert second["frames"] == second["target_frames"]
    assert all(stage["n"] == 2 for stage in second["stages"])


def test_a_worker_whose_device_fails_starts_its_engine_anew_and_keeps_its_place(tmp_path: Path) -> None:
    fault = InjectedFault(process="worker-3", line="node.device.fault:task=backward,number=6:fail")
    settings = SimulationSettings(
        stages=2, replicas=2, rounds=2, inner_steps=4, frames_per_inner_step=8 * 142, time_limit_s=150.0,
        data=write_dataset(Workload("test", 4, 2, 16), tmp_path / "data"), plan=Plan(fault=(fault,)),
        extra={"rounds": {"evaluate": False}, "membership": {"silence_s": 15.0}},
    )  # fmt: skip
    out = tmp_path / "run"
    out.mkdir()
    report = run_to_the_end(run_simulation(settings, out, Quiet()))
    events = [event for event in read_events(out / "worker-3" / "events.jsonl") if event.get("round") == 1]
    named = [event["event"] for event in events]
    assert named.count("engine_recycled") == 1
    assert named.count("ready") == 2 and "update_acked" in named[named.index("engine_recycled") :]
    assert len({event["base"] for event in events if event["event"] == "ready"}) == 1
    assert [entry["round"] for entry in report["rounds"]] == [1, 2] and report["unexpected_ends"] == []
    assert report["acked_updates"] == 8 and report["acked_updates_lost"] == 0 == report["false_suspicions"]


def _left_after(process: subprocess.Popen[str], number: int, *, at_least: int) -> list[int]:
    """Send a signal; the processes below `process` that are still there 20 s after its end."""
    # A pidfd becomes readable when its process ends, whoever its parent is.
    ends = {pid: os.pidfd_open(pid) for pid in descendants(process.pid)}
    assert len(ends) >= at_least and process.stdout is not None
    os.kill(process.pid, number)
    process.stdout.read()
    assert process.wait(timeout=60) != 0
    left = [pid for pid, end in ends.items() if not select.select([end], [], [], 20.0)[0]]
    for end in ends.values():
        os.close(end)
    return left
