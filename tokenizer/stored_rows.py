"""The rows of a dataset whose shards lie in a store on this machine, by position of an epoch. No event loop, no network."""

from __future__ import annotations

from collections.abc import Callable

from protocol.manifest import DatasetManifest
from tokenizer.reader import DEFAULT_CACHE_BYTES, CheckedShards
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
        self._shards = CheckedShards(manifest, cache_bytes)
        self._get_bytes = get_bytes

    def __len__(self) -> int:
        """Training utterances: positions of an epoch run from 0 to this."""
        return len(self._shards)

    def utterances(self, epoch: int, start: int, stop: int, seed: int) -> list[Utterance]:
        """The utterances at positions [start, stop) of an epoch, in that order.

        Raises:
            HocketError: SHARD_DAMAGED, and what `get_bytes` raises.
            ValueError: a position beyond the epoch.
        """
        places = self._shards.places(epoch, start, stop, seed)
        rows = {shard: self._load(shard) for shard in sorted({shard for shard, _ in places})}
        return [rows[shard][row] for shard, row in places]

    def _load(self, shard: int) -> list[Utterance]:
        entry = self._shards.manifest.shards[shard]
        rows = self._shards.kept(entry)
        return rows if rows is not None else self._shards.keep(entry, self._get_bytes(entry.cid))
