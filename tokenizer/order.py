"""The order of samples: a pure function of seed, epoch and position, so that nobody has to remember or send it.

Each epoch is a permutation of 0 .. n - 1, computed one position at a time: a Feistel network permutes the 4^h >= n numbers
of 2h bits, and a result that is not below n is put through it again (cycle walking) until one is.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

ROUNDS = 6


@lru_cache(maxsize=64)
def _key(seed: int, epoch: int) -> bytes:
    return blake2b(f"hocket-order/1 {seed} {epoch}".encode(), digest_size=32).digest()


def sample_at(seed: int, epoch: int, position: int, n: int) -> int:
    """Index of the sample at `position` of an epoch.

    Args:
        seed: of the run; any integer.
        epoch: any integer; each has an order of its own.
        position: 0 .. n - 1.
        n: samples in the dataset.

    Returns:
        An index 0 .. n - 1. For fixed seed, epoch and n no two positions have the same.

    Raises:
        ValueError: `position` is not in 0 .. n - 1.
    """
    if not 0 <= position < n:
        raise ValueError(f"position {position} is not in 0..{n - 1}")
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    key = _key(seed, epoch)
    value = position
    while True:
        left, right = value >> half, value & mask
        for turn in range(ROUNDS):
            digest = blake2b(turn.to_bytes(1, "big") + right.to_bytes(8, "big"), key=key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        value = left << half | right
        if value < n:
            return value
