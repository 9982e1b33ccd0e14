"""The rows of a dataset whose shards lie in a store on this machine, by position of an epoch. No event loop, no network."""

from __future__ import annotations

from collections.abc import Callable

from protocol.manifest import DatasetManifest
from tokenizer.byte_cache import ByteCache
from tokenizer.order import EpochOrders
from tokenizer.reader import DEFAULT_CACHE_BYTES, check_readable, check_shard
from tokenizer.utterance import Utterance


class StoredRows:
    """As `tokenizer.reader.DatasetReader`, for one thread.

    Args:
        manifest: of the dataset, already verified.
        get_bytes: gives a shard's bytes by its CID; whatever it gives is checked here.
        cache_bytes: of decoded shards that are kept. The shard in use is kept whatever its size.

    Raises:
        HocketError: MANIFEST_INVALID if the manifest lacks what a reader needs.
    """

    def __init__(
        self, manifest: DatasetManifest, get_bytes: Callable[[str], bytes], *, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        check_readable(manifest)
        self._manifest = manifest
        self._get_bytes = get_bytes
        self._cache: ByteCache[str, list[Utterance]] = ByteCache(cache_bytes)
        self._orders = EpochOrders([entry.rows for entry in manifest.shards])

    def __len__(self) -> int:
        """Training utterances: positions of an epoch run from 0 to this."""
        return self._orders.rows

    def utterances(self, epoch: int, start: int, stop: int, seed: int) -> list[Utterance]:
        """The utterances at positions [start, stop) of an epoch, in that order.

        Raises:
            HocketError: SHARD_DAMAGED, and what `get_bytes` raises.
            ValueError: a position beyond the epoch.
        """
        order = self._orders.of(seed, epoch)
        places = [order.place(position) for position in range(start, stop)]
        rows = {shard: self._load(shard) for shard in sorted({shard for shard, _ in places})}
        return [rows[shard][row] for shard, row in places]

    def _load(self, shard: int) -> list[Utterance]:
        entry = self._manifest.shards[shard]
        rows = self._cache.get(entry.cid)
        if rows is None:
            rows = check_shard(entry, self._get_bytes(entry.cid), self._manifest)
            self._cache.put(entry.cid, rows, sum(row.size_bytes for row in rows))
        return rows
