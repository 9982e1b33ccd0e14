"""A dataset on disk: one row group a sample, checked once, kept within bounds, and shared by any number of readers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_dataset import made_up_row, write_dataset

from common.errors import Code, HocketError
from protocol.manifest import DatasetManifest
from tokenizer import shards as shard_module
from tokenizer.epoch_share import EpochState
from tokenizer.local_dataset import LocalDataset
from tokenizer.order import EpochOrder, sample_at
from tokenizer.reader import DatasetReader


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few rows, so that a shard has several."""
    monkeypatch.setattr(shard_module, "ROW_GROUP_BYTES", 4000)


def dataset(folder: Path, sizes: list[int]) -> DatasetManifest:
    numbers = iter(range(sum(sizes)))
    shards = [[made_up_row(next(numbers)) for _ in range(size)] for size in sizes]
    return write_dataset(folder, shards, [[made_up_row(9999)]])


@pytest.mark.usefixtures("small_groups")
def test_a_sample_reads_at_most_one_row_group(tmp_path: Path) -> None:
    dataset(tmp_path, [30, 30, 25])
    with LocalDataset(tmp_path, cache_bytes=1) as found:
        assert len(found) == 85
        for position in (0, 84, 17, 40, 41):
            before = found.groups_read
            row = found.sample(5, 0, position)
            assert row.id == f"clip-{sample_at(5, 0, position, 85)}"
            assert found.groups_read - before <= 1


@pytest.mark.usefixtures("small_groups")
def test_a_small_dataset_never_touches_the_disk_after_the_first_epoch(tmp_path: Path) -> None:
    dataset(tmp_path, [30, 30])
    with LocalDataset(tmp_path) as found:
        first = [row.id for row in found.samples(1, 0)]
        groups = found.groups_read
        for path in (tmp_path / "shards").iterdir():
            os.truncate(path, 0)
        second = [row.id for row in found.samples(1, 1)]
        assert found.groups_read == groups and sorted(first) == sorted(second) and first != second


def test_both_readers_give_the_same_order(tmp_path: Path) -> None:
    manifest = dataset(tmp_path, [7, 9, 4])

    async def get(cid: str) -> bytes:
        return (tmp_path / "shards" / f"{cid}.parquet").read_bytes()

    remote = asyncio.run(DatasetReader(manifest, get).utterances(3, 2, 19, 8))
    with LocalDataset(tmp_path) as found:
        assert [row.id for row in found.samples(8, 3, 2, 19)] == [row.id for row in remote]


@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_shard_is_refused_when_its_turn_comes(tmp_path: Path, how: str) -> None:
    manifest = dataset(tmp_path, [5, 5])
    path = tmp_path / "shards" / f"{manifest.shards[1].cid}.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(data[:-9] if how == "cut" else data))
    with LocalDataset(tmp_path) as found:
        good = 0
        with pytest.raises(HocketError) as caught:
            for row in found.samples(0, 0):
                assert int(row.id[5:]) < 5
                good += 1
        assert caught.value.code is Code.SHARD_DAMAGED and good < 6


@pytest.mark.usefixtures("small_groups")
def test_a_fault_of_reading_ahead_reaches_the_reader(tmp_path: Path) -> None:
    dataset(tmp_path, [60])
    with LocalDataset(tmp_path, cache_bytes=1) as found:
        with pytest.raises(HocketError) as caught:
            for number, _ in enumerate(found.samples(0, 0)):
                if number == 0:  # the shard has been checked; now it goes
                    for path in (tmp_path / "shards").iterdir():
                        path.unlink()
        assert caught.value.code is Code.SHARD_DAMAGED


@pytest.mark.usefixtures("small_groups")
def test_a_reader_that_stops_early_leaves_nothing_waiting(tmp_path: Path) -> None:
    dataset(tmp_path, [60])
    with LocalDataset(tmp_path, cache_bytes=1) as found:
        found.sample(0, 0, 0)  # the shard has been checked, so that its row groups are read ahead
        rows = found.samples(0, 0)
        next(rows)
        assert found._waiting
        rows.close()
        assert not found._waiting
        assert len(list(found.samples(0, 0))) == 60


@pytest.mark.usefixtures("small_groups")
def test_the_cache_is_bounded(tmp_path: Path) -> None:
    dataset(tmp_path, [40, 40])
    with LocalDataset(tmp_path, cache_bytes=20_000) as found:
        list(found.samples(0, 0))
        assert found._groups.held_bytes <= 20_000 + 6000


def test_rows_of_another_number_of_codebooks_are_refused(tmp_path: Path) -> None:
    row = made_up_row(1)
    write_dataset(tmp_path, [[replace(row, codes=row.codes[:3].copy())]], [[made_up_row(9999)]])
    with LocalDataset(tmp_path) as found, pytest.raises(HocketError, match="codebooks") as caught:
        found.sample(0, 0, 0)
    assert caught.value.code is Code.SHARD_DAMAGED


def test_positions_beyond_the_epoch_are_refused(tmp_path: Path) -> None:
    dataset(tmp_path, [3])
    with LocalDataset(tmp_path) as found:
        with pytest.raises(ValueError, match="position"):
            found.sample(0, 0, 3)
        with pytest.raises(ValueError, match="positions"):
            next(found.samples(0, 0, 2, 4))


ROWS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(st.integers(), st.integers(0, 5), ROWS, st.integers(1, 100))
def test_an_epoch_is_a_permutation_of_the_rows_of_all_shards(seed: int, epoch: int, rows: list[int], block_rows: int) -> None:
    order = EpochOrder(seed, epoch, rows, block_rows=block_rows)
    places = [order.place(position) for position in range(len(order))]
    assert sorted(places) == [(shard, row) for shard, size in enumerate(rows) for row in range(size)]


@given(st.integers(), st.integers(0, 5), ROWS)
def test_one_block_has_the_plain_order(seed: int, epoch: int, rows: list[int]) -> None:
    order, total = EpochOrder(seed, epoch, rows, block_rows=sum(rows)), sum(rows)
    plain = [(shard, row) for shard, size in enumerate(rows) for row in range(size)]
    assert [order.place(position) for position in range(total)] == [plain[sample_at(seed, epoch, i, total)] for i in range(total)]


def test_few_shards_are_needed_at_once_and_epochs_differ() -> None:
    rows = [50] * 200
    order = EpochOrder(1, 0, rows, block_rows=500)
    shards = [order.place(position)[0] for position in range(10_000)]
    windows = [set(shards[start : start + 500]) for start in range(0, 10_000, 500)]
    assert all(len(window) == 10 for window in windows)
    assert windows[0] != set(range(10)), "the shards of a block lie anywhere"
    other = EpochOrder(1, 1, rows, block_rows=500)
    same = sum(order.place(position) == other.place(position) for position in range(10_000))
    assert same < 20


SPANS = st.lists(st.tuples(st.integers(-5, 120), st.integers(-5, 120)), max_size=6)


LIVES = st.lists(st.tuples(st.integers(1, 7), st.lists(st.integers(0, 40), min_size=7, max_size=7)), max_size=5)


@given(st.integers(0, 100), LIVES)
def test_any_stops_and_numbers_of_readers_cover_an_epoch_once(n: int, lives: list[tuple[int, list[int]]]) -> None:
    state, read = EpochState.whole(0, n), list[int]()
    for readers, stops in [*lives, (3, [1000] * 7)]:
        shares = state.shares(readers)
        sizes = [sum(stop - start for start, stop in share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        done = []
        for share, limit in zip(shares, stops, strict=False):  # each reader stops somewhere of its own
            for start, stop in share:
                taken = min(limit, stop - start)
                limit -= taken
                done.append((start, start + taken))
                read += range(start, start + taken)
        state = state.without(done)
    assert sorted(read) == list(range(n)) and len(state) == 0


@given(st.integers(0, 100), SPANS)
def test_what_is_left_is_what_was_not_read(n: int, done: list[tuple[int, int]]) -> None:
    state = EpochState.whole(3, n).without(done)
    positions = [position for start, stop in state.left for position in range(start, stop)]
    gone = {position for start, stop in done for position in range(start, stop)}
    assert positions == [position for position in range(n) if position not in gone]
    assert len(state) == len(positions)
