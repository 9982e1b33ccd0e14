"""The block store: whole or absent, checked when read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from protocol import content
from swarm.blocks import BlockStore


def pattern(size: int) -> bytes:
    return hashlib.shake_128(str(size).encode()).digest(size)


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path / "blocks")


@pytest.mark.parametrize("size", [0, 1, content.CHUNK_BYTES, content.CHUNK_BYTES + 1, 3_500_000])
def test_files_come_back(store: BlockStore, tmp_path: Path, size: int) -> None:
    data = pattern(size)
    root = store.add_bytes(data)
    assert root == content.cid_of(data)
    assert store.has(root)
    assert store.read_file(root) == data
    source = tmp_path / "source"
    source.write_bytes(data)
    other = BlockStore(tmp_path / "other")
    assert other.add_file(source) == root
    other.export(root, tmp_path / "out" / "copy")
    assert (tmp_path / "out" / "copy").read_bytes() == data


def test_another_process_sees_what_is_added(store: BlockStore, tmp_path: Path) -> None:
    reader = BlockStore(tmp_path / "blocks")
    cid = content.cid_of(b"later")
    assert not reader.has(cid)
    store.add_bytes(b"later")
    assert reader.get(cid) == b"later"


def test_a_wrong_block_is_not_kept(store: BlockStore) -> None:
    cid = content.cid_of(b"right")
    with pytest.raises(HocketError) as caught:
        store.put(cid, b"wrong")
    assert caught.value.code is Code.BLOCK_DAMAGED
    assert not store.has(cid)


def test_a_block_damaged_on_disk_is_removed_and_can_be_put_again(store: BlockStore, tmp_path: Path) -> None:
    cid = store.add_bytes(b"precious")
    (file,) = (path for path in (tmp_path / "blocks").rglob("*") if path.is_file())
    file.write_bytes(b"preciouz")
    with pytest.raises(HocketError) as caught:
        store.get(cid)
    assert caught.value.code is Code.BLOCK_DAMAGED
    assert not store.has(cid)
    store.put(cid, b"precious")
    assert store.get(cid) == b"precious"


def test_a_missing_block_is_named(store: BlockStore) -> None:
    cid = content.cid_of(b"absent")
    with pytest.raises(HocketError, match=cid) as caught:
        store.get(cid)
    assert caught.value.code is Code.BLOCK_NOT_FOUND


CUT_CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52z"


@pytest.mark.parametrize("cid", ["", "../../etc/passwd", "b/../../x", CUT_CID])
def test_nothing_but_a_cid_becomes_a_path(store: BlockStore, cid: str) -> None:
    for use in (store.has, store.get, store.read_file):
        with pytest.raises(HocketError) as caught:
            use(cid)
        assert caught.value.code is Code.CID_INVALID


def test_an_export_that_fails_leaves_nothing(store: BlockStore, tmp_path: Path) -> None:
    data = pattern(3 * content.CHUNK_BYTES)
    root = store.add_bytes(data)
    chunk = content.cid_of(data[-content.CHUNK_BYTES :])
    (tmp_path / "blocks" / chunk[-2:] / chunk).unlink()
    with pytest.raises(HocketError) as caught:
        store.export(root, tmp_path / "out" / "copy")
    assert caught.value.code is Code.BLOCK_NOT_FOUND
    assert not list((tmp_path / "out").iterdir())


def test_the_size_of_a_file_is_bounded(store: BlockStore) -> None:
    root = store.add_bytes(pattern(content.CHUNK_BYTES + 1))
    with pytest.raises(HocketError) as caught:
        store.read_file(root, max_bytes=content.CHUNK_BYTES)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE


def test_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HocketError) as caught:
        BlockStore(tmp_path / "file" / "blocks")
    assert caught.value.code is Code.STATE_UNREADABLE
