"""Progress for people: what a status looks like on a terminal, in a log, and where nobody looks."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from simulations.progress import LivePicture, PlainLines, Quiet, picture, replica_mark, show_for, status_lines


def status(phase: str = "OPEN", rounds: int = 1) -> dict[str, Any]:
    entry = {
        "loss": 4.5,
        "heldout_loss": None,
        "frames": 1000,
        "seconds": 4.0,
        "stages": [{"accepted": 2, "refused": []}, {"accepted": 1, "refused": [["b", "few frames"]]}],
    }
    return {
        "run_id": "run-7",
        "phase": phase,
        "round": rounds + 1,
        "reason": "all are ready",
        "frames_done": 250,
        "target_frames": 1000,
        "rounds": [{**entry, "round": number + 1} for number in range(rounds)],
        "version": {"round": 1, "cid": "bafyversion"},
        "stages": [
            {"stage": 0, "replicas": [{"member": "memberzero", "ready": True, "frames": 120, "alive": True}]},
            {"stage": 1, "replicas": [{"member": "memberone", "ready": True, "frames": 1, "alive": False}]},
            {"stage": 2, "replicas": []},
        ],
    }


def test_a_status_in_lines_names_everything_a_person_asks_for() -> None:
    text = "\n".join(status_lines(status()))
    for part in (
        "run-7",
        "OPEN",
        "all are ready",
        "250 of 1000",
        "25%",
        "memberze 120",
        "lost",
        "nobody",
        "4.500",
        "2/1",
        "1 refused",
        "bafyv",
    ):
        assert part in text


def test_standbys_are_told_and_of_many_lost_replicas_the_last_few() -> None:
    found = status()
    lost = [{"member": f"gone{number:04}", "alive": False} for number in range(9)]
    found["stages"][0]["replicas"] = [*lost, *found["stages"][0]["replicas"]]
    found["stages"][0]["standbys"] = [{"member": "spare", "ready": True}, {"member": "other", "ready": False}]
    text = "\n".join(status_lines(found))
    assert "memberze 120" in text and "1 of 2 standbys ready" in text
    assert text.count("gone") == 2 and "gone0008" in text
    console = Console(file=io.StringIO(), width=120)
    console.print(picture(found, []))
    assert "1 of 2 standbys ready" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "standbys" not in "\n".join(status_lines(status()))


def heard(*rounds: int) -> dict[str, Any]:
    """A status in which the versions of these rounds were listened to; the first gave an alarm."""
    reason = f"after round {rounds[0]}: this model does not read its text"
    alarm = {"round": rounds[0], "kind": "text_not_read", "group": "all", "reason": reason}
    return {**status(), "watch": [{"round": number} for number in rounds], "alarms": [alarm]}


def test_a_status_shows_the_alarms_of_the_newest_listening() -> None:
    assert "alarm, text_not_read: after round 2: this model does not read its text" in status_lines(heard(2))
    assert not [line for line in status_lines(heard(2, 4)) if "alarm" in line], "what was wrong then is well now"
    assert not [line for line in status_lines(status()) if "alarm" in line]


def test_an_alarm_is_shown_once_in_lines_and_stays_in_the_picture() -> None:
    console = Console(file=io.StringIO(), width=200)
    lines = PlainLines(console)
    for current in (status(), heard(2), heard(2)):
        lines.status(current)
    console.print(picture(heard(2), []))
    assert console.file.getvalue().count("does not read its text") == 2  # type: ignore[attr-defined]


def test_a_member_that_left_a_finished_run_is_done_not_lost() -> None:
    gone = {"member": "m", "alive": False, "ready": False, "frames": 0}
    assert replica_mark({**gone, "reason": "left: finished"}, "FINISHED") == "done"
    assert replica_mark({**gone, "reason": "silent for 10 s"}, "FINISHED") == "lost"
    assert replica_mark({**gone, "reason": "left: finished"}, "OPEN") == "lost"


def test_the_picture_holds_table_bar_and_losses() -> None:
    console = Console(file=io.StringIO(), width=150, force_terminal=True)
    console.print(picture(status(), ["killed worker-3"]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("stage", "replica 0", "120", "lost", "250 of 1000", "4.500", "killed worker-3", "━"):
        assert part in text


def test_plain_lines_come_once_for_each_round_and_phase() -> None:
    stream = io.StringIO()
    show = PlainLines(Console(file=stream, width=200))
    for _ in range(3):
        show.status(status())
    show.status(status(phase="CLOSING"))
    show.status(status(rounds=2))
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith("round 1: loss")] == lines[:1]
    assert sum("round 2: OPEN, 250 of 1000 frames" in line for line in lines) == 1
    assert "round 2: CLOSING" in lines
    assert "\x1b" not in stream.getvalue()


def test_a_live_picture_keeps_notes_and_is_taken_down() -> None:
    console = Console(file=io.StringIO(), width=150, force_terminal=True)
    with LivePicture(console) as show:
        show.note("before")
        show.status(status())
        show.note("worker-3 was killed")
        show.status(status())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "before" in text and "worker-3 was killed" in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_output_that_is_no_terminal_gets_plain_lines_and_a_script_gets_none() -> None:
    assert isinstance(show_for(quiet=False), PlainLines)
    assert isinstance(show_for(quiet=True), Quiet)
