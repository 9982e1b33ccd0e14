"""Which version of a run is listened to next, and which previews are kept. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """What is listened to next.

    Args:
        round: whose version; None: nothing for now. cid: of that version's manifest.
        skipped: rounds that were due and are passed over for it. reason: in words.
    """

    round: int | None
    cid: str
    skipped: tuple[int, ...]
    reason: str


def choose(versions: Sequence[Mapping[str, Any]], done: Collection[int], *, every: int, last: int) -> Choice:
    """The newest version that is due and newer than all that were listened to.

    Listening takes as long as it takes, and rounds do not wait: whoever falls behind goes on with the newest version, for an
    old one tells nothing that the newest does not. One listening at a time; the caller asks again when it is over.

    Args:
        versions: published ones, oldest first, each with `round` and `cid`; round 0 is the untrained one, which is never due.
        done: rounds that were listened to, or could not be.
        every: how many rounds lie between two that are due; 0: none ever is.
        last: the run's last round, which is due whatever its number.
    """
    if every == 0:
        return Choice(None, "", (), "previews are off")
    newest_done = max(done, default=0)
    due = {
        int(one["round"]): str(one["cid"])
        for one in versions
        if one["round"] > newest_done and (one["round"] % every == 0 or one["round"] == last)
    }
    if not due:
        return Choice(None, "", (), "no version is due")
    chosen = max(due)
    skipped = tuple(sorted(set(due) - {chosen}))
    behind = f"; round {', '.join(map(str, skipped))} passed over, as listening is behind" if skipped else ""
    kind = "the last round" if chosen == last else f"each {every}. round is due" if every > 1 else "every round is due"
    return Choice(chosen, due[chosen], skipped, f"{kind}{behind}")


def outdated(rounds: Collection[int], keep: int) -> list[int]:
    """Rounds whose previews go when the newest `keep` stay, oldest first."""
    return sorted(rounds)[:-keep] if keep else sorted(rounds)
