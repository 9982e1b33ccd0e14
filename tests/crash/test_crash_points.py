"""Crash points: what must not be lost is killed at each change of its files and goes on as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SWEEP = Path(__file__).with_name("sweep.py")


def sweep(*arguments: str, limit_s: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of a sweep and its runs."""
    ended = subprocess.run([sys.executable, str(SWEEP), *arguments], capture_output=True, text=True, timeout=limit_s)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    wrong = [one for one in lines if one.get("faults")]
    assert ended.returncode == 0, f"{wrong}\n{ended.stderr[-2000:]}"
    (head,) = [one for one in lines if "points" in one]
    return head, [one for one in lines if "point" in one]


def test_a_tenth_of_all_crashes_of_the_coordinator_changes_nothing() -> None:
    head, runs = sweep("coordinator", "--share", "0.1", limit_s=200)
    assert head["points"] >= 400 and len(runs) == head["chosen"] == round(head["points"] / 10)


@pytest.mark.parametrize(("what", "least"), [("blocks", 40), ("writer", 40), ("keys", 16)])
def test_a_tenth_of_all_crashes_loses_no_file(what: str, least: int) -> None:
    head, runs = sweep(what, "--share", "0.1", limit_s=60)
    assert head["points"] >= least and len(runs) == head["chosen"]


@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_a_disk_that_fails_ends_the_coordinator_with_one_line_or_is_told_to_the_member_and_changes_nothing(disk: str) -> None:
    _, runs = sweep("coordinator", "--share", "0.02", "--seed", "4", "--disk", disk, limit_s=120)
    assert len(runs) >= 10


ALL = [
    ("coordinator",), ("coordinator", "--again"), ("coordinator", "--disk", "full"), ("coordinator", "--disk", "read-only"),
    ("blocks",), ("writer",), ("keys",),
]  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arguments", ALL)
def test_no_crash_loses_anything(arguments: tuple[str, ...]) -> None:
    head, runs = sweep(*arguments, "--jobs", "2", limit_s=1700)
    assert len(runs) == head["points"]
