"""Keys of random draws: functions of a seed and of what is drawn for, so that whoever knows both draws the same. No torch."""

from __future__ import annotations

import hashlib


def draw_key(seed: int, what: int | str, where: str) -> int:
    """A 128-bit generator key for one draw."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{what}/{where}".encode(), digest_size=16).digest(), "little")
