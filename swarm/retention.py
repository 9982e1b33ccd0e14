"""Which blocks a store drops when it has grown beyond its limit. A decider: no clock, no disk."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

LEFT_SHARE = 0.9


@dataclass(frozen=True)
class StoredBlock:
    """A block in a store.

    Args:
        used_s: when it was written or last used, seconds since the epoch.
    """

    cid: str
    size_bytes: int
    used_s: float


@dataclass(frozen=True)
class Retention:
    """What to drop, in that order, and why.

    Args:
        left_bytes: of all blocks that stay.
    """

    drop: list[str]
    left_bytes: int
    reason: str


def choose_blocks(
    blocks: Iterable[StoredBlock], *, limit_bytes: int, pinned: Container[str], spared: Container[str] = ()
) -> Retention:
    """Drop the least recently used blocks until nine tenths of the limit are left, so that the next block does not ask again.

    Args:
        pinned: never dropped, even if the store stays too large. spared: dropped only once nothing else is left to drop.
    """
    known = list(blocks)
    left = sum(block.size_bytes for block in known)
    if left <= limit_bytes:
        return Retention([], left, "the store is within its limit")
    target = int(limit_bytes * LEFT_SHARE)
    drop: list[str] = []
    for block in sorted(known, key=lambda one: (one.cid in spared, one.used_s, one.cid)):
        if left <= target:
            break
        if block.cid not in pinned:
            drop.append(block.cid)
            left -= block.size_bytes
    if left > limit_bytes:
        return Retention(drop, left, f"what must be kept has {left} bytes, more than the limit of {limit_bytes}")
    return Retention(drop, left, f"{len(drop)} blocks unused for longest go, for a limit of {limit_bytes} bytes")
