"""Fetching by CID from nodes and gateways: whatever a source does, only the right bytes arrive, or an error with a number."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ipfs_server import Handler, Ipfs, put_varint, served

from common.errors import Code, HocketError
from protocol import content
from swarm.blocks import BlockStore
from swarm.ipfs_fetch import BlockSource, Gateway, fetch_from_ipfs
from swarm.ipfs_rpc import IpfsNode

pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
CHUNK = content.CHUNK_BYTES
DATA = hashlib.shake_128(b"a file").digest(3 * CHUNK + 5)
BLOCKS = dict(content.iter_blocks(DATA))
ROOT = content.cid_of(DATA)


@pytest.fixture
def servers() -> Iterator[list[Ipfs]]:
    with ExitStack() as stack:
        found = [stack.enter_context(served(Ipfs())) for _ in range(2)]
        for one in found:
            one.blocks = dict(BLOCKS)
        yield found


def fetch(store: BlockStore, *sources: tuple[type[Gateway] | type[IpfsNode], Ipfs], max_bytes: int = 1 << 30) -> None:
    async def run() -> None:
        opened = [kind(ipfs.url) for kind, ipfs in sources]
        found: list[BlockSource] = list(opened)
        try:
            await fetch_from_ipfs(store, ROOT, found, max_bytes=max_bytes)
        finally:
            for one in opened:
                await one.close()

    asyncio.run(run())


def no_streams(handler: Handler) -> bool:
    if "format=car" in handler.path or "dag/export" in handler.path:
        handler.give(404, b"no streams here")
        return True
    return False


@pytest.mark.parametrize("kind", [Gateway, IpfsNode])
def test_a_file_comes_as_one_stream(servers: list[Ipfs], tmp_path: Path, kind: type[Gateway] | type[IpfsNode]) -> None:
    store = BlockStore(tmp_path)
    fetch(store, (kind, servers[0]))
    assert store.read_file(ROOT) == DATA
    assert len(servers[0].asked) == 1
    fetch(store, (kind, servers[0]))
    assert len(servers[0].asked) == 1, "what is there is not asked for"


@pytest.mark.parametrize("kind", [Gateway, IpfsNode])
def test_or_block_by_block_from_several(servers: list[Ipfs], tmp_path: Path, kind: type[Gateway] | type[IpfsNode]) -> None:
    chunks = [cid for cid in BLOCKS if cid != ROOT]
    del servers[0].blocks[chunks[0]]
    del servers[1].blocks[chunks[1]]
    for one in servers:
        one.answer = no_streams
    store = BlockStore(tmp_path)
    fetch(store, (kind, servers[0]), (kind, servers[1]))
    assert store.read_file(ROOT) == DATA


def test_a_broken_stream_leaves_the_rest_to_single_blocks(servers: list[Ipfs], tmp_path: Path) -> None:
    ipfs = servers[0]

    def cut(handler: Handler) -> bool:
        if "format=car" not in handler.path:
            return False
        whole = ipfs.car(ROOT)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(whole)))
        handler.end_headers()
        handler.wfile.write(whole[: 2 * CHUNK])
        handler.close_connection = True
        return True

    ipfs.answer = cut
    store = BlockStore(tmp_path)
    fetch(store, (Gateway, ipfs))
    assert store.read_file(ROOT) == DATA
    raw = [one for one in ipfs.asked if one.startswith("GET")]
    assert len(raw) == 1 + 3, "the root and the first chunk came with the stream"


def other_block(handler: Handler) -> bool:
    handler.give(200, b"not what was asked for")
    return True


def other_car(ipfs: Ipfs) -> Callable[[Handler], bool]:
    """A proper stream of a proper file, with a block that is not of ours."""
    stranger = content.cid_of(b"stranger")

    def answer(handler: Handler) -> bool:
        extra = put_varint(36 + 8) + content.cid_to_bytes(stranger) + b"stranger"
        handler.give(200, ipfs.car(ROOT) + extra)
        return True

    return answer


def repeating(ipfs: Ipfs) -> Callable[[Handler], bool]:
    section = put_varint(36 + len(BLOCKS[ROOT])) + content.cid_to_bytes(ROOT) + BLOCKS[ROOT]

    def answer(handler: Handler) -> bool:
        handler.give(200, ipfs.car(ROOT) + section * (2 + (4 * CHUNK) // len(BLOCKS[ROOT])))
        return True

    return answer


@pytest.mark.parametrize("lie", [lambda ipfs: other_block, other_car])
def test_a_source_that_lies_is_left_out(servers: list[Ipfs], tmp_path: Path, lie: Callable[[Ipfs], Callable]) -> None:
    servers[0].answer = lie(servers[0])
    store = BlockStore(tmp_path)
    fetch(store, (Gateway, servers[0]), (Gateway, servers[1]))
    assert store.read_file(ROOT) == DATA
    assert len(servers[0].asked) == 1
    assert not store.has(content.cid_of(b"stranger"))


def test_a_stream_does_not_repeat_itself_for_ever(servers: list[Ipfs], tmp_path: Path) -> None:
    servers[0].answer = repeating(servers[0])
    store = BlockStore(tmp_path)
    fetch(store, (Gateway, servers[0]), max_bytes=len(DATA))
    assert store.read_file(ROOT) == DATA


def test_only_liars(servers: list[Ipfs], tmp_path: Path) -> None:
    servers[0].answer = other_block
    store = BlockStore(tmp_path)
    with pytest.raises(HocketError) as caught:
        fetch(store, (Gateway, servers[0]))
    assert caught.value.code is Code.BLOCK_DAMAGED
    assert list(tmp_path.rglob("baf*")) == []


def test_nobody_has_it(servers: list[Ipfs], tmp_path: Path) -> None:
    for one in servers:
        one.blocks.clear()
    with pytest.raises(HocketError) as caught:
        fetch(BlockStore(tmp_path), (Gateway, servers[0]), (IpfsNode, servers[1]))
    assert caught.value.code is Code.BLOCK_NOT_FOUND


def test_a_gateway_that_sends_elsewhere_is_not_followed(servers: list[Ipfs], tmp_path: Path) -> None:
    servers[0].answer = lambda handler: bool(handler.give(302, b"", Location=servers[1].url + handler.path)) or True
    with pytest.raises(HocketError) as caught:
        fetch(BlockStore(tmp_path), (Gateway, servers[0]))
    assert caught.value.code is Code.BLOCK_NOT_FOUND and "302" in caught.value.detail
    assert servers[1].asked == []


def test_a_file_larger_than_allowed_is_refused_at_its_root(servers: list[Ipfs], tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    with pytest.raises(HocketError) as caught:
        fetch(store, (Gateway, servers[0]), max_bytes=len(DATA) - 1)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    assert list(tmp_path.rglob("bafk*")) == []


def test_a_name_that_is_none(servers: list[Ipfs], tmp_path: Path) -> None:
    with pytest.raises(HocketError) as caught:
        asyncio.run(fetch_from_ipfs(BlockStore(tmp_path), "../../x", [], max_bytes=1))
    assert caught.value.code is Code.CID_INVALID
