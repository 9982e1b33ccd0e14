"""Keeps a block store within its size: looks at it only when enough has been written since the last look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from swarm.blocks import BlockStore
from swarm.retention import choose_blocks

logger = logging.getLogger(__name__)

DEFAULT_LIMIT_BYTES = 20 << 30


class StoreKeeper:
    """The size bound of one store.

    Args:
        limit_bytes: of all blocks together. in_use: whether a block belongs to a fetch that is under way.
    """

    def __init__(self, store: BlockStore, limit_bytes: int, in_use: Callable[[str], bool]) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        self._in_use = in_use
        self._seen_bytes: int | None = None
        self._written_then = 0
        self._looking = asyncio.Lock()

    async def tidy(self, *, pinned: Iterable[str], spared: Iterable[str] = ()) -> None:
        """Drop what `swarm.retention` chooses, if the store has grown beyond its limit.

        Args:
            pinned: roots of files that are never dropped. spared: of those that are dropped last.

        Raises:
            HocketError: STATE_UNREADABLE, BLOCK_DAMAGED.
        """
        async with self._looking:
            if self._seen_bytes is not None:
                grown = self._store.written_bytes - self._written_then
                if self._seen_bytes + grown <= self._limit_bytes:
                    return
            await asyncio.to_thread(self._look, list(pinned), list(spared))

    def _look(self, pinned: list[str], spared: list[str]) -> None:
        written = self._store.written_bytes
        kept = {cid for root in pinned for cid in self._store.below(root)}
        last = {cid for root in spared for cid in self._store.below(root)}
        blocks = self._store.blocks()
        kept.update(block.cid for block in blocks if self._in_use(block.cid))
        choice = choose_blocks(blocks, limit_bytes=self._limit_bytes, pinned=kept, spared=last)
        for cid in choice.drop:
            self._store.remove(cid)
        if choice.drop:
            logger.info("block store: %s", choice.reason)
        if choice.left_bytes > self._limit_bytes:
            logger.warning("block store: %s", choice.reason)
        self._seen_bytes, self._written_then = choice.left_bytes, written
