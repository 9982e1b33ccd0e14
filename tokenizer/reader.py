"""The dataset as a worker sees it: utterances by position of an epoch, from shards that are checked before they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from common.errors import Code, HocketError
from protocol.content import cid_of
from protocol.manifest import DatasetManifest, ShardEntry
from tokenizer.byte_cache import ByteCache
from tokenizer.order import EpochOrders
from tokenizer.shards import MAX_SHARD_BYTES, Utterance, read_shard

DEFAULT_CACHE_BYTES = 256 * 2**20


def check_readable(manifest: DatasetManifest) -> None:
    """MANIFEST_INVALID if a manifest lacks what a reader needs, or names a shard that is too large to be read."""
    for name in ("n_codebooks", "codebook_size"):
        if not isinstance(manifest.codec.get(name), int):
            raise HocketError(Code.MANIFEST_INVALID, f"the codec of the dataset has no {name}")
    for entry in [*manifest.shards, *manifest.heldout]:
        if entry.size_bytes > MAX_SHARD_BYTES:
            raise HocketError(Code.MANIFEST_INVALID, f"shard {entry.cid} has {entry.size_bytes} bytes")


def check_shard(entry: ShardEntry, data: bytes, manifest: DatasetManifest) -> list[Utterance]:
    """The utterances of a shard whose bytes, rows and frames are those that the manifest names.

    Raises:
        HocketError: SHARD_DAMAGED with what does not fit.
    """
    if len(data) != entry.size_bytes or cid_of(data) != entry.cid:
        raise HocketError(Code.SHARD_DAMAGED, f"{entry.cid}: its bytes are others")
    codec = manifest.codec
    rows = read_shard(data, codebook_size=int(codec["codebook_size"]), n_symbols=len(manifest.phonemes))
    if len(rows) != entry.rows or sum(row.n_frames for row in rows) != entry.frames:
        raise HocketError(Code.SHARD_DAMAGED, f"{entry.cid}: its rows or frames are not as many as the manifest says")
    check_codebooks(entry, rows, manifest)
    return rows


def check_codebooks(entry: ShardEntry, rows: Iterable[Utterance], manifest: DatasetManifest) -> None:
    """SHARD_DAMAGED if a row of a shard has another number of codebooks than the manifest says."""
    wanted = int(manifest.codec["n_codebooks"])
    if any(row.codes.shape[0] != wanted for row in rows):
        raise HocketError(Code.SHARD_DAMAGED, f"{entry.cid}: a row has not {wanted} codebooks")


class CheckedShards:
    """What reading a dataset's shards takes, however their bytes come: the checks, the decoded shards that are kept, the orders.

    Args:
        manifest: of the dataset, already verified.
        cache_bytes: of decoded shards that are kept. The shard in use is kept whatever its size.

    Raises:
        HocketError: MANIFEST_INVALID if the manifest lacks what a reader needs.
    """

    def __init__(self, manifest: DatasetManifest, cache_bytes: int) -> None:
        check_readable(manifest)
        self.manifest = manifest
        self._cache: ByteCache[str, list[Utterance]] = ByteCache(cache_bytes)
        self._orders = EpochOrders([entry.rows for entry in manifest.shards])

    def __len__(self) -> int:
        """Training utterances, held-out ones not counted: positions of an epoch run from 0 to this."""
        return self._orders.rows

    def places(self, epoch: int, start: int, stop: int, seed: int) -> list[tuple[int, int]]:
        """(shard, row) of each of the positions [start, stop) of an epoch.

        Raises:
            ValueError: a position beyond the epoch.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"positions {start}..{stop} are not in an epoch of {len(self)}")
        order = self._orders.of(seed, epoch)
        return [order.place(position) for position in range(start, stop)]

    def kept(self, entry: ShardEntry) -> list[Utterance] | None:
        """The rows of a shard that is still decoded."""
        return self._cache.get(entry.cid)

    def keep(self, entry: ShardEntry, data: bytes) -> list[Utterance]:
        """Check a shard's bytes, keep its rows and return them; SHARD_DAMAGED as `check_shard` says."""
        rows = check_shard(entry, data, self.manifest)
        self._cache.put(entry.cid, rows, sum(row.size_bytes for row in rows))
        return rows


class DatasetReader:
    """Utterances of a dataset in the order of a run.

    Args:
        manifest: of the dataset, already verified.
        get_bytes: gives a shard's bytes by its CID; whatever it gives is checked here.
        cache_bytes: of decoded shards that are kept. The shard in use is kept whatever its size.

    Raises:
        HocketError: MANIFEST_INVALID if the manifest lacks what a reader needs.
    """

    def __init__(
        self,
        manifest: DatasetManifest,
        get_bytes: Callable[[str], Awaitable[bytes]],
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._shards = CheckedShards(manifest, cache_bytes)
        self._get_bytes = get_bytes
        self._loading: dict[str, asyncio.Task[list[Utterance]]] = {}

    def __len__(self) -> int:
        """Training utterances, held-out ones not counted: positions of an epoch run from 0 to this."""
        return len(self._shards)

    async def utterances(self, epoch: int, start: int, stop: int, seed: int) -> list[Utterance]:
        """The utterances at positions [start, stop) of an epoch, in that order.

        Raises:
            HocketError: SHARD_DAMAGED, and what `get_bytes` raises.
            ValueError: a position beyond the epoch.
        """
        places = self._shards.places(epoch, start, stop, seed)
        found: dict[tuple[int, int], Utterance] = {}
        for shard in sorted({shard for shard, _ in places}):
            rows = await self._load(self._shards.manifest.shards[shard])
            found.update({place: rows[place[1]] for place in places if place[0] == shard})
        return [found[place] for place in places]

    async def heldout(self) -> list[Utterance]:
        """The held-out utterances, in the order of the manifest: never trained on."""
        return await self._all(self._shards.manifest.heldout)

    async def everything(self) -> list[Utterance]:
        """All training utterances, in the order of the manifest."""
        return await self._all(self._shards.manifest.shards)

    async def _all(self, entries: Iterable[ShardEntry]) -> list[Utterance]:
        rows: list[Utterance] = []
        for entry in entries:
            rows += await self._load(entry)
        return rows

    async def _load(self, entry: ShardEntry) -> list[Utterance]:
        """The rows of a shard; several callers that want it at once share one fetch."""
        cached = self._shards.kept(entry)
        if cached is not None:
            return cached
        task = self._loading.get(entry.cid)
        if task is None:
            task = asyncio.ensure_future(self._fetch(entry))
            self._loading[entry.cid] = task
            task.add_done_callback(lambda _: self._loading.pop(entry.cid, None))
        return await asyncio.shield(task)

    async def _fetch(self, entry: ShardEntry) -> list[Utterance]:
        return self._shards.keep(entry, await self._get_bytes(entry.cid))
