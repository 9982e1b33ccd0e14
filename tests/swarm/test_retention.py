"""A store within its size: what the round needs stays, what was not used for longest goes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import content
from swarm.block_plan import FetchPlan
from swarm.blocks import BlockStore
from swarm.incoming import Incoming
from swarm.retention import StoredBlock, choose_blocks
from swarm.store_keeper import StoreKeeper

blocks = st.lists(
    st.builds(StoredBlock, st.uuids().map(str), st.integers(0, 100), st.floats(0, 1000)), unique_by=lambda block: block.cid
)


@given(blocks, st.integers(0, 2000), st.data())
def test_what_goes_is_unpinned_and_the_least_used_and_no_more_than_must(
    known: list[StoredBlock], limit: int, data: st.DataObject
) -> None:
    names = [block.cid for block in known]
    some = st.sets(st.sampled_from(names)) if names else st.just(set())
    pinned, spared = data.draw(some), data.draw(some)
    choice = choose_blocks(known, limit_bytes=limit, pinned=pinned, spared=spared)
    sizes = {block.cid: block.size_bytes for block in known}
    dropped = set(choice.drop)
    assert len(dropped) == len(choice.drop) and not dropped & pinned
    assert choice.left_bytes == sum(sizes.values()) - sum(sizes[cid] for cid in dropped)
    if sum(sizes.values()) <= limit:
        assert not dropped
    elif choice.left_bytes > limit:
        assert dropped | pinned == set(names), "only what is pinned is too much"
    else:
        *_, last = choice.drop
        assert choice.left_bytes + sizes[last] > int(limit * 0.9), "one less would not have done"
    stay = [block for block in known if block.cid not in dropped | pinned]
    for one in (block for block in known if block.cid in dropped):
        for other in stay:
            assert (one.cid in spared, one.used_s) <= (other.cid in spared, other.used_s)


def filled(folder: Path, count: int, size: int) -> tuple[BlockStore, list[str]]:
    """A store of `count` files of one block each, the first used longest ago."""
    store, roots = BlockStore(folder), []
    for number in range(count):
        roots.append(store.add_bytes(hashlib.shake_128(bytes([number])).digest(size)))
        os.utime(folder / roots[-1][-2:] / roots[-1], (1000.0 + number, 1000.0 + number))
    return store, roots


def test_the_keeper_drops_what_was_used_least_and_never_what_is_pinned(tmp_path: Path) -> None:
    store, roots = filled(tmp_path, 10, 100_000)
    version = store.add_bytes(hashlib.shake_128(b"version").digest(3 * content.CHUNK_BYTES))
    os.utime(tmp_path / version[-2:] / version, (1.0, 1.0))
    store.touch(roots[0])
    keeper = StoreKeeper(store, 4_100_000, lambda cid: False)
    asyncio.run(keeper.tidy(pinned=[version]))
    assert store.read_file(version)
    assert store.has(roots[0]), "it was used just now"
    assert not store.has(roots[1]) and store.has(roots[9])
    assert sum(block.size_bytes for block in store.blocks()) <= 4_100_000


def test_the_keeper_looks_only_when_enough_was_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, roots = filled(tmp_path, 4, 1000)
    keeper = StoreKeeper(store, 4500, lambda cid: False)

    async def work() -> None:
        await keeper.tidy(pinned=[])
        (tmp_path / roots[0][-2:] / roots[0]).unlink()  # behind its back: a look would count it
        store.add_bytes(b"x" * 400)
        await keeper.tidy(pinned=[])
        store.add_bytes(b"y" * 200)
        store.add_bytes(b"z" * 1000)
        await keeper.tidy(pinned=[])

    with caplog.at_level(logging.INFO):
        asyncio.run(work())
    assert not store.has(roots[1]) and store.has(roots[3])
    assert len([record for record in caplog.records if "block store" in record.getMessage()]) == 1


def test_blocks_of_a_running_fetch_stay(tmp_path: Path) -> None:
    store, roots = filled(tmp_path, 4, 1000)
    incoming = Incoming()
    keeper = StoreKeeper(store, 1500, incoming.in_use)
    with incoming.running(FetchPlan(roots[0], (), max_bytes=1000)):
        asyncio.run(keeper.tidy(pinned=[]))
    assert [store.has(root) for root in roots] == [True, False, False, False]


def test_a_limit_below_what_must_be_kept_is_said_and_nothing_breaks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, roots = filled(tmp_path, 3, 1000)
    keeper = StoreKeeper(store, 500, lambda cid: False)
    with caplog.at_level(logging.WARNING):
        asyncio.run(keeper.tidy(pinned=roots[:2]))
    assert [store.has(root) for root in roots] == [True, True, False]
    assert "what must be kept has 2000 bytes" in caplog.text
