"""Mistakes that only a process started for us can see are told as if they had been seen at once: one line, its own exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload


def hocket(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, stdin=subprocess.DEVNULL)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("options", "number", "exit_code", "remedy"),
    [
        (["--language", "JP"], "H202", 3, "use ja"),
        (["--data", "data", "--stages", "50"], "H503", 2, "use 1 to 5 stages"),
        (["--data", "data", "--preset", "tset"], "H502", 2, "correct the value"),
        (["--data", "nowhere"], "H103", 2, "correct the value"),
    ],
)
def test_a_mistake_that_a_child_finds(tmp_path: Path, options: list[str], number: str, exit_code: int, remedy: str) -> None:
    if "data" in options:
        (tmp_path / "data").mkdir()
        write_dataset(Workload("test", 4, 2, 16), tmp_path / "data")
    answer = hocket("simulate", "--out", "out", *options, cwd=tmp_path)
    (line,) = answer.stderr.splitlines()
    assert line.startswith(f"{number} ") and line.count("Remedy: ") == 1 and remedy in line
    assert answer.returncode == exit_code


@pytest.mark.parametrize("options", [["--log-level", "LOUD"], ["--threads", "99999"]])
def test_an_option_beyond_reason(tmp_path: Path, options: list[str]) -> None:
    answer = hocket("worker", "hocket1:", "--state-dir", "state", *options, cwd=tmp_path)
    assert answer.returncode == 2 and "fault of ours" not in answer.stderr
    assert "LOUD" in answer.stderr or "1024" in answer.stderr
    assert not (tmp_path / "state").exists()
