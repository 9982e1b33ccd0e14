"""Which versions stay in the block store, and why. Pure; and the file in which a person pins some."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write
from coordinator.run import RunState
from coordinator.run_config import CheckpointSection

PINS = "pins.json"


def retained(
    versions: Sequence[Mapping[str, Any]],
    losses: Mapping[str, float],
    pinned: Collection[str],
    *,
    keep: int,
    every: int,
    best: int,
    audited: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """The versions that stay, oldest first, each by CID with its reasons.

    Args:
        versions: all that were published, oldest first, each with `version` and `cid`.
        losses: held-out loss by CID, of those that were evaluated. pinned: CIDs.
        keep: the newest that many stay ("newest"); every: each `every`-th besides ("every"; 0: none).
        best: that many with the lowest held-out loss ("best"); of equal ones the older.
        audited: CIDs of bases that audits under way, or evidence, start from ("audited").
    """
    newest = {one["cid"] for one in versions[max(len(versions) - keep, 0) :]}
    ranked = sorted((one for one in versions if one["cid"] in losses), key=lambda one: (losses[one["cid"]], one["version"]))
    first = {one["cid"] for one in ranked[:best]}
    found: dict[str, tuple[str, ...]] = {}
    for one in versions:
        reasons = {
            "newest": one["cid"] in newest,
            "every": every > 0 and one["version"] % every == 0,
            "best": one["cid"] in first,
            "pinned": one["cid"] in pinned,
            "audited": one["cid"] in audited,
        }
        if any(reasons.values()):
            found[one["cid"]] = tuple(name for name, holds in reasons.items() if holds)
    return found


def retained_by(state: RunState, policy: CheckpointSection, pinned: Collection[str]) -> dict[str, tuple[str, ...]]:
    """`retained` of a run, by the losses that it knows and the audits that it has."""
    losses = {cid: one["loss"] for cid, one in state.heldout.items()}
    return retained(
        state.versions, losses, pinned, keep=policy.keep, every=policy.every, best=policy.best, audited=state.audit.bases
    )


def read_pins(state_dir: Path) -> frozenset[str]:
    """CIDs of the versions that a person has pinned in a coordinator's state folder; STATE_UNREADABLE for a damaged file."""
    path = state_dir / PINS
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise HocketError(Code.STATE_UNREADABLE, f"{path} ({error})") from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise HocketError(Code.STATE_UNREADABLE, f"{path} is no list of CIDs")
    return frozenset(found)


def write_pins(state_dir: Path, pins: Collection[str]) -> None:
    """Replace the pins; DISK_FULL or STATE_UNREADABLE where they cannot be written."""
    atomic_write(state_dir / PINS, json.dumps(sorted(pins), indent=1).encode())
