"""What the event logs of a run's workers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.log import read_events


def events_of_workers(out: Path) -> list[dict[str, Any]]:
    """All that the workers of a run have written, worker by worker."""
    return [event for path in sorted(out.glob("worker-*/events.jsonl")) for event in read_events(path)]


def refused_moments(out: Path) -> list[dict[str, Any]]:
    """Commits that were refused for the moments with which a chain began: no honest worker has one."""
    return [one for one in events_of_workers(out) if one["event"] == "commit_refused" and "moments" in one["reason"]]
