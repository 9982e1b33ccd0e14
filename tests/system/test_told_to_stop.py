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
