"""Fault plans: reading them, and deciding when a step is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from simulations.plan import Freeze, Join, Kill, Plan, PlanProgress, load_plan


def status(round_number: int, done: int, *, phase: str = "OPEN", alive: tuple[bool, bool] = (True, True)) -> dict[str, Any]:
    """A status of a run of two stages with two replicas each; the pid of a replica is 1000 + 100 * stage + its number."""
    return {
        "phase": phase,
        "round": round_number,
        "frames_done": done,
        "target_frames": 100,
        "stages": [
            {
                "stage": stage,
                "replicas": [
                    {
                        "member": f"m{stage}{number}",
                        "peer_id": f"p{stage}{number}",
                        "pid": 1000 + 100 * stage + number,
                        "alive": alive[number],
                    }
                    for number in (1, 0)
                ],
            }
            for stage in (0, 1)
        ],
    }


def test_a_plan_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[[kill]]\nround = 2\nstage = 1\n[[join]]\nround = 3\n[[fault]]\nprocess = "worker-1"\nline = "a.b:round=1:kill"\n'
    )
    plan = load_plan(path)
    assert plan.kill == (Kill(round=2, stage=1, replica=0, after_share=0.5),)
    assert plan.join == (Join(round=3, after_share=0.0),)
    assert plan.fault_lines("worker-1") == ["a.b:round=1:kill"]
    assert plan.fault_lines("worker-0") == []


def test_no_path_is_the_empty_plan() -> None:
    assert PlanProgress(load_plan(None)).done


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[[kill]]\nround = 2\n", "kill.0.stage"),
        ("[[kill]]\nround = 0\nstage = 1\n", "kill.0.round"),
        ("[[kill]]\nround = 1\nstage = 1\nwhen = 2\n", "kill.0.when"),
        ("[[freeze]]\nround = 1\nstage = 1\n", "freeze.0.for_s"),
        ('[[fault]]\nprocess = "worker-1"\nline = "nonsense"\n', "fault.0.line"),
        ('[[fault]]\nprocess = "someone"\nline = "a:kill"\n', "fault.0.process"),
        ("[[kill\n", "plan.toml"),
    ],
)
def test_a_wrong_plan_names_the_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(HocketError) as caught:
        load_plan(path)
    assert caught.value.code is Code.FAULT_PLAN_INVALID
    assert place in caught.value.detail


def test_a_missing_plan_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HocketError, match="H106"):
        load_plan(tmp_path / "none.toml")


def test_a_kill_waits_for_its_round_and_share_and_acts_once() -> None:
    progress = PlanProgress(Plan(kill=(Kill(round=2, stage=1, replica=1),)))
    assert progress.due(status(1, 99), 0.0) == []
    assert progress.due(status(2, 49), 1.0) == []
    assert progress.due(status(2, 60, phase="CLOSING"), 2.0) == []
    (action,) = progress.due(status(2, 50), 3.0)
    assert (action.kind, action.pid, action.member, action.peer_id, action.round) == ("kill", 1101, "m11", "p11", 2)
    assert progress.due(status(2, 90), 4.0) == []
    assert progress.done and progress.missed == []


def test_a_step_whose_round_went_by_unseen_is_due_in_the_next_open_round() -> None:
    progress = PlanProgress(Plan(kill=(Kill(round=2, stage=0, after_share=0.9),)))
    assert progress.due(status(2, 10), 0.0) == []
    (action,) = progress.due(status(3, 0), 1.0)
    assert action.round == 3


def test_a_step_waits_for_a_replica_that_is_not_there() -> None:
    progress = PlanProgress(Plan(kill=(Kill(round=1, stage=0, replica=1, after_share=0.0),)))
    assert progress.due(status(1, 50, alive=(True, False)), 0.0) == []
    assert progress.missed and not progress.done
    assert [action.pid for action in progress.due(status(1, 60), 1.0)] == [1001]


def test_a_stage_that_the_run_does_not_have_is_reported_as_missed() -> None:
    progress = PlanProgress(Plan(kill=(Kill(round=1, stage=9),)))
    assert progress.due(status(5, 99), 0.0) == []
    assert "'stage': 9" in progress.missed[0]


@given(for_s=st.floats(0.1, 100.0), looks=st.lists(st.floats(0.0, 200.0), max_size=20))
def test_a_frozen_replica_is_thawed_once_and_not_before_its_time(for_s: float, looks: list[float]) -> None:
    progress = PlanProgress(Plan(freeze=(Freeze(round=1, stage=0, after_share=0.0, for_s=for_s),)))
    (freeze,) = progress.due(status(1, 1), 0.0)
    assert freeze.kind == "freeze"
    thaws = [(now, action) for now in sorted(looks) for action in progress.due(status(1, 1), now)]
    assert all(action.kind == "thaw" and action.pid == freeze.pid and now >= for_s for now, action in thaws)
    assert len(thaws) == (1 if any(now >= for_s for now in looks) else 0)
    assert progress.done == bool(thaws)


def test_a_thaw_does_not_wait_for_an_open_round() -> None:
    progress = PlanProgress(Plan(freeze=(Freeze(round=1, stage=0, after_share=0.0, for_s=5.0),)))
    progress.due(status(1, 1), 0.0)
    assert [action.kind for action in progress.due(status(1, 100, phase="CLOSING"), 5.0)] == ["thaw"]
