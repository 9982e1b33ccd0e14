"""Live progress of a run: stages x replicas, a bar for the round, the loss. Plain lines where the output is no terminal."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 40
MOST_LOST = 2
PLAIN_LINE_EVERY_S = 10.0


def loss_text(entry: Mapping[str, Any]) -> str:
    """`loss 4.123, held out 4.321` of a finished round, with what is known of it."""
    parts = []
    if entry.get("loss") is not None:
        parts.append(f"loss {float(entry['loss']):.3f}")
    if entry.get("heldout_loss") is not None:
        parts.append(f"held out {float(entry['heldout_loss']):.3f}")
    return ", ".join(parts) or "no loss yet"


def round_line(entry: Mapping[str, Any]) -> str:
    """A finished round in one line."""
    seconds = float(entry.get("seconds") or 0)
    speed = f", {float(entry['frames']) / seconds:.0f} frames/s" if seconds > 0 else ""
    accepted = "/".join(str(stage["accepted"]) for stage in entry.get("stages", ()))
    refused = sum(len(stage["refused"]) for stage in entry.get("stages", ()))
    trouble = f", {refused} refused" if refused else ""
    return (
        f"round {entry['round']}: {loss_text(entry)}, {entry['frames']} frames in {seconds:.1f} s{speed}, "
        f"updates by stage {accepted}{trouble}"
    )


def replica_mark(entry: Mapping[str, Any], phase: str = "") -> str:
    """One replica in a few characters: done with the run, lost, preparing, or its frames of this round."""
    if phase == "FINISHED" and str(entry.get("reason", "")).endswith("finished"):
        return "done"
    if not entry.get("alive", True):
        return "lost"
    if not entry.get("ready", False):
        return "..."
    return str(int(entry.get("frames", 0)))


def shown_replicas(stage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those that are there, and of the lost ones the last few: under churn there may be many."""
    there = [entry for entry in stage["replicas"] if entry.get("alive", True)]
    lost = [entry for entry in stage["replicas"] if not entry.get("alive", True)]
    return [*there, *lost[-MOST_LOST:]]


def standby_marks(stage: Mapping[str, Any]) -> str:
    """How many stand by for a stage, and how many of them hold the round's base; empty: nobody does."""
    standbys = stage.get("standbys") or []
    ready = sum(bool(entry.get("ready")) for entry in standbys)
    return f"{ready} of {len(standbys)} standbys ready" if standbys else ""


def alarm_lines(status: Mapping[str, Any]) -> list[str]:
    """The alarms of the newest version that was listened to."""
    alarms = status.get("alarms") or []
    listened = [int(entry["round"]) for entry in status.get("watch") or []]
    newest = max(listened, default=0)
    return [alarm_line(alarm) for alarm in alarms if int(alarm["round"]) == newest]


def alarm_line(alarm: Mapping[str, Any]) -> str:
    """One alarm in a line."""
    return f"alarm, {alarm['kind']}: {alarm['reason']}"


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """A status for people, in plain lines."""
    done, target = int(status.get("frames_done", 0)), int(status.get("target_frames", 0))
    lines = [f"run {status['run_id']}: {status['phase']}, round {status['round']} ({status.get('reason', '')})"]
    if target:
        lines.append(f"frames {done} of {target} ({done / target:.0%})")
    for stage in status["stages"]:
        members = ", ".join(f"{entry['member'][:8]} {replica_mark(entry, status['phase'])}" for entry in shown_replicas(stage))
        lines.append("; ".join(part for part in (f"stage {stage['stage']}: {members or 'nobody'}", standby_marks(stage)) if part))
    lines.extend(round_line(entry) for entry in status["rounds"])
    lines.extend(alarm_lines(status))
    version = status.get("version") or {}
    if version.get("cid"):
        lines.append(f"version of round {version['round']}: {version['cid']}")
    return lines


def picture(status: Mapping[str, Any], notes: list[str]) -> Group:
    """A status for a terminal: table of stages x replicas, a bar for the round's frames, the losses so far, recent notes."""
    title = Text(f"run {status['run_id']}  round {status['round']}  {status['phase']}", style="bold")
    table = Table()
    width = max((len(shown_replicas(stage)) for stage in status["stages"]), default=0)
    kept_ready = any(standby_marks(stage) for stage in status["stages"])
    table.add_column("stage", justify="right")
    for index in range(width):
        table.add_column(f"replica {index}", justify="right", min_width=9)
    if kept_ready:
        table.add_column("standbys")
    for stage in status["stages"]:
        cells = []
        for entry in shown_replicas(stage):
            mark = replica_mark(entry, status["phase"])
            cells.append(Text(mark, style="red" if mark == "lost" else "yellow" if mark == "..." else "green"))
        if kept_ready:
            cells += [Text()] * (width - len(cells)) + [Text(standby_marks(stage))]
        table.add_row(str(stage["stage"]), *cells)
    done, target = int(status.get("frames_done", 0)), int(status.get("target_frames", 0))
    if status["phase"] == "FINISHED":
        done = target
    bar = ProgressBar(total=max(target, 1), completed=min(done, target), width=BAR_WIDTH)
    rounds = [Text(round_line(entry)) for entry in status["rounds"][-6:]]
    lines = [*(Text(line, style="red") for line in alarm_lines(status)), *(Text(note, style="bold") for note in notes[-3:])]
    return Group(title, table, bar, Text(f"{done} of {target} frames of this round"), *rounds, *lines)


class Show(ABC):
    """Where progress goes. A context manager: a live picture is taken down at the end."""

    def __enter__(self) -> Show:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    @abstractmethod
    def status(self, status: Mapping[str, Any]) -> None:
        """A new status of the run."""

    @abstractmethod
    def note(self, line: str) -> None:
        """One thing that happened."""


class Quiet(Show):
    """Shows nothing, for commands whose output a script reads."""

    def status(self, status: Mapping[str, Any]) -> None:
        return None

    def note(self, line: str) -> None:
        return None


class PlainLines(Show):
    """One line for each finished round, each alarm and each change of phase, and one now and then within a round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._rounds = 0
        self._alarms = 0
        self._next_line = 0.0

    def status(self, status: Mapping[str, Any]) -> None:
        for entry in status["rounds"][self._rounds :]:
            self.note(round_line(entry))
        self._rounds = len(status["rounds"])
        alarms = status.get("alarms") or []
        for alarm in alarms[self._alarms :]:
            self.note(alarm_line(alarm))
        self._alarms = len(alarms)
        phase = f"round {status['round']}: {status['phase']}"
        now = time.monotonic()
        if phase == self._phase and (now < self._next_line or status["phase"] != "OPEN"):
            return
        done, target = int(status.get("frames_done", 0)), int(status.get("target_frames", 0))
        share = f", {done} of {target} frames" if status["phase"] == "OPEN" else ""
        self.note(phase + share)
        self._phase = phase
        self._next_line = now + PLAIN_LINE_EVERY_S

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LivePicture(Show):
    """The picture, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._notes: list[str] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def status(self, status: Mapping[str, Any]) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._live.update(picture(status, self._notes))

    def note(self, line: str) -> None:
        if self._live is None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._notes.append(line)


def show_for(*, quiet: bool) -> Show:
    """The kind of progress that fits: none, a live picture on a terminal, plain lines elsewhere."""
    if quiet:
        return Quiet()
    console = Console(file=sys.stdout)
    return LivePicture(console) if console.is_terminal else PlainLines(console)
