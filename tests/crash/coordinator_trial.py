"""A coordinator that is killed at every point of a scripted run, against the run that nobody disturbed."""

from __future__ import annotations

import random
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked_core as child
from core_members import Crowd, Link, Member, Stuck
from crash_points import Trial
from scripted_run import MEMBERS, outcome, write_run

from protocol.identity import PeerKey


class CoordinatorTrial(Trial):
    """Runs in a folder of their own.

    Args:
        again: the restarted coordinator is killed, too, twice, soon after it has started.
        failure: an error of the disk that it meets instead.
    """

    def __init__(self, folder: Path, *, again: bool, failure: int | None = None) -> None:
        self._folder = folder / "run"
        self._again = again
        self._failure: int | None = None
        self._members = [Member(number + 1, PeerKey.generate()) for number in range(MEMBERS)]
        self._run_toml = write_run(folder)
        names = folder / "names"
        self._expected, _ = self._play([], names)
        self.points = names.read_text().splitlines()
        self._failure = failure

    def play(self, number: int, draw: random.Random) -> list[str]:
        """What was different in a run that was killed at point `number`."""
        kills = [number, draw.randint(1, 40), draw.randint(1, 80)] if self._again else [number]
        try:
            found, starts = self._play(kills)
        except (Stuck, child.Refusal) as error:
            return [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)]
        # A disk that fails while an update comes in is told to the member, and nobody dies of it.
        killed = ["it was not killed"] if starts == 1 and self._failure is None else []
        changed = [f"{key}: {found[key]} instead of {value}" for key, value in self._expected.items() if found[key] != value]
        return killed + changed

    def _play(self, kills: Sequence[int], names: Path | None = None) -> tuple[dict[str, Any], int]:
        """One run from its first start to its end; what it came to, and how many starts it took."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        link = Link(self._folder, self._run_toml, iter(kills), names, self._failure)
        crowd = Crowd(self._members, link)
        crowd.play()
        return outcome(link.state_dir, crowd), link.starts
