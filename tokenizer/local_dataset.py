"""A dataset on disk, read sample by sample: at most one row group for each, and none twice while the cache holds it."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from types import TracebackType

from common.errors import Code, HocketError
from protocol.content import file_cid
from protocol.manifest import ShardEntry
from tokenizer.byte_cache import ByteCache
from tokenizer.dataset_folder import open_dataset
from tokenizer.order import EpochOrders
from tokenizer.reader import DEFAULT_CACHE_BYTES, check_codebooks
from tokenizer.shards import Utterance, group_rows, open_shard, read_group

LOOK_AHEAD = 64  # samples whose row groups are read before they are wanted
Group = tuple[int, int]
"""(shard, row group of it)."""


class LocalDataset:
    """Training utterances of a dataset folder, in the order of a run. A context manager: it holds a thread that reads ahead.

    A shard is checked against its CID before its first row is given out, once. Decoded row groups are kept, the least recently
    used one dropped first; a dataset that fits into the cache is read from the disk once.

    Args:
        folder: that the tokeniser wrote.
        cache_bytes: of decoded rows. The row group in use is kept whatever its size.

    Raises:
        HocketError: CORPUS_UNREADABLE, MANIFEST_INVALID.
    """

    def __init__(self, folder: Path, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._dataset = open_dataset(folder)
        self._entries: list[ShardEntry] = self._dataset.manifest.shards
        self._groups: ByteCache[Group, list[Utterance]] = ByteCache(cache_bytes)
        self._ends: dict[int, list[int]] = {}  # rows up to the end of each row group, of the shards that have been checked
        self._waiting: dict[Group, Future[list[Utterance]]] = {}
        self._orders = EpochOrders([entry.rows for entry in self._entries])
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self.groups_read = 0

    def __enter__(self) -> LocalDataset:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __len__(self) -> int:
        """Training utterances; positions of an epoch run from 0 to this."""
        return self._orders.rows

    def sample(self, seed: int, epoch: int, position: int) -> Utterance:
        """The utterance at a position of an epoch.

        Raises:
            HocketError: SHARD_DAMAGED.
            ValueError: a position beyond the epoch.
        """
        shard, row = self._orders.of(seed, epoch).place(position)
        return self._row(shard, row)

    def samples(self, seed: int, epoch: int, start: int = 0, stop: int | None = None) -> Generator[Utterance, None, None]:
        """The utterances at positions [start, stop) of an epoch, in that order; their row groups are read ahead.

        A fault of the reading ahead is raised here, when its sample's turn comes.

        Raises:
            HocketError: SHARD_DAMAGED.
            ValueError: positions beyond the epoch.
        """
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"positions {start}..{stop} are not in an epoch of {len(self)}")
        order = self._orders.of(seed, epoch)
        ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()
        following = start
        try:
            for position in range(start, stop):
                while following < stop and len(ahead) < LOOK_AHEAD:
                    ahead[following] = order.place(following)
                    self._look_ahead(*ahead[following])
                    following += 1
                yield self._row(*ahead.pop(position))
        finally:
            self._waiting.clear()  # what a reader that stopped early did not come to

    def _group_of(self, shard: int, row: int) -> tuple[Group, int]:
        """The row group that holds a row of a shard, and the row's place in it."""
        ends = self._ends.get(shard)
        if ends is None:
            ends = self._ends[shard] = self._check(shard)
        group = bisect_right(ends, row)
        return (shard, group), row - (ends[group - 1] if group else 0)

    def _check(self, shard: int) -> list[int]:
        """Check a shard's bytes against its CID, and its footer against the manifest."""
        entry = self._entries[shard]
        path = self._dataset.shard_path(entry)
        try:
            if path.stat().st_size != entry.size_bytes or file_cid(path) != entry.cid:
                raise HocketError(Code.SHARD_DAMAGED, f"{entry.cid}: its bytes are others")
        except OSError as error:
            raise HocketError(Code.SHARD_DAMAGED, f"{path.name} ({error.strerror})") from error
        with open_shard(path) as file:
            ends = list(accumulate(group_rows(file)))
        if not ends or ends[-1] != entry.rows:
            raise HocketError(Code.SHARD_DAMAGED, f"{entry.cid}: its rows are not as many as the manifest says")
        return ends

    def _row(self, shard: int, row: int) -> Utterance:
        key, place = self._group_of(shard, row)
        rows = self._groups.get(key)
        if rows is None:
            waiting = self._waiting.pop(key, None)
            rows = waiting.result() if waiting is not None else self._read(key)
            self._groups.put(key, rows, sum(row.size_bytes for row in rows))
        return rows[place]

    def _look_ahead(self, shard: int, row: int) -> None:
        if shard not in self._ends:
            return  # its first row checks it, where a fault belongs
        key, _ = self._group_of(shard, row)
        if key not in self._groups and key not in self._waiting and len(self._waiting) < 2:
            self._waiting[key] = self._pool.submit(self._read, key)

    def _read(self, key: Group) -> list[Utterance]:
        shard, group = key
        entry, codec = self._entries[shard], self._dataset.manifest.codec
        self.groups_read += 1
        with open_shard(self._dataset.shard_path(entry)) as file:
            rows = read_group(
                file, group, codebook_size=int(codec["codebook_size"]), n_symbols=len(self._dataset.manifest.phonemes)
            )
        check_codebooks(entry, rows, self._dataset.manifest)
        return rows
