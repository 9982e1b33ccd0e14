"""The order of samples: a pure function of seed, epoch and position, so that nobody has to remember or send it.

Each epoch is a permutation of 0 .. n - 1, computed one position at a time: a Feistel network permutes the 4^h >= n numbers
of 2h bits, and a result that is not below n is put through it again (cycle walking) until one is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

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
    return _permuted(position, n, _key(seed, epoch))


def _permuted(position: int, n: int, key: bytes) -> int:
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = position
    while True:
        left, right = value >> half, value & mask
        for turn in range(ROUNDS):
            digest = blake2b(turn.to_bytes(1, "big") + right.to_bytes(8, "big"), key=key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        value = left << half | right
        if value < n:
            return value


BLOCK_ROWS = 16384  # some 13 hours of speech, 20 MiB of codes: what a reader has to have at hand


class EpochOrder:
    """The order of one epoch over shards: a permutation of their rows that needs few shards at a time.

    The shards are permuted, then gathered into blocks of at least `block_rows` rows, and the rows of each block are permuted:
    a reader that follows the order needs one block's shards at once, not all of them. A dataset of one block has the plain
    order of `sample_at`. What is held is the number of rows of each shard, never of each row.

    Args:
        seed, epoch: as in `sample_at`.
        rows: of each shard, in the order of the manifest.
        block_rows: least rows of a block.
    """

    def __init__(self, seed: int, epoch: int, rows: Sequence[int], *, block_rows: int = BLOCK_ROWS) -> None:
        self._seed, self._epoch = seed, epoch
        whole = sum(rows) <= block_rows
        self._shards = list(range(len(rows))) if whole else [sample_at(seed, epoch, i, len(rows)) for i in range(len(rows))]
        self._ends = list(accumulate(rows[shard] for shard in self._shards))  # rows up to the end of each shard, in this order
        self._block_ends: list[int] = []
        start = 0
        for end in self._ends:
            if end - start >= block_rows:
                self._block_ends.append(end)
                start = end
        if self._ends and (not self._block_ends or self._block_ends[-1] != self._ends[-1]):
            # What is left over is no block of its own: it would be a small one.
            if self._block_ends:
                self._block_ends[-1] = self._ends[-1]
            else:
                self._block_ends.append(self._ends[-1])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def place(self, position: int) -> tuple[int, int]:
        """(shard, row of it) at a position of the epoch.

        Raises:
            ValueError: a position beyond the epoch.
        """
        if not 0 <= position < len(self):
            raise ValueError(f"position {position} is not in 0..{len(self) - 1}")
        block = bisect_right(self._block_ends, position)
        start = self._block_ends[block - 1] if block else 0
        size = self._block_ends[block] - start
        # The first block's key is the epoch's own, so that one block has the order of `sample_at`.
        key = _key(self._seed, self._epoch) if block == 0 else _block_key(self._seed, self._epoch, block)
        index = start + _permuted(position - start, size, key)
        at = bisect_right(self._ends, index)
        return self._shards[at], index - (self._ends[at - 1] if at else 0)


class EpochOrders:
    """The orders of a dataset's epochs; the one that was asked for last is kept.

    Args:
        rows: of each shard, in the order of the manifest.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self._shards = list(rows)
        self.rows = sum(rows)
        self._latest: tuple[int, int, EpochOrder] | None = None

    def of(self, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch."""
        if self._latest is None or self._latest[:2] != (seed, epoch):
            self._latest = (seed, epoch, EpochOrder(seed, epoch, self._shards))
        return self._latest[2]


@lru_cache(maxsize=64)
def _block_key(seed: int, epoch: int, block: int) -> bytes:
    return blake2b(f"hocket-order/1 {seed} {epoch} block {block}".encode(), digest_size=32).digest()
