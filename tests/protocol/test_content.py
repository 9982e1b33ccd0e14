"""Content identifiers: the same names as other IPFS software gives, and nothing but the blocks that they name."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.content import (
    CHUNK_BYTES,
    DAG_PB,
    MAX_DEPTH,
    RAW,
    Link,
    block_cid,
    cid_of,
    encode_node,
    file_cid,
    file_size,
    iter_blocks,
    links,
    parse_cid,
    read_file,
    verify_block,
)
from protocol.wire import put_bytes_field, put_uint_field

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden_cids.json").read_text())["files"]


def content(size: int) -> bytes:
    index = np.arange(size, dtype=np.int64)
    return ((131 * index + 17 * (index >> 8) + 29 * (index >> 16)) & 255).astype(np.uint8).tobytes()


def code_of(call: Any, *arguments: Any, **keywords: Any) -> Code:
    with pytest.raises(HocketError) as caught:
        call(*arguments, **keywords)
    return caught.value.code


def tree(data: bytes, chunk_bytes: int = 4, max_links: int = 3) -> tuple[str, dict[str, bytes]]:
    blocks = list(iter_blocks(data, chunk_bytes=chunk_bytes, max_links=max_links))
    return blocks[-1][0], dict(blocks)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['bytes']}-{row['chunk_bytes']}-{row['max_links']}")
def test_names_are_those_of_another_implementation(row: dict[str, Any]) -> None:
    data = content(row["bytes"])
    blocks = list(iter_blocks(data, chunk_bytes=row["chunk_bytes"], max_links=row["max_links"]))
    assert blocks[-1][0] == row["cid"]
    if row["chunk_bytes"] == CHUNK_BYTES:
        assert cid_of(data) == row["cid"]


def test_well_known_names() -> None:
    # The name of the empty raw block and the SHA-256 of "hello world", as printed in many places.
    assert cid_of(b"") == "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
    digest = parse_cid(cid_of(b"hello world")).digest
    assert digest.hex() == "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"


class Dribble(BytesIO):
    """A stream whose reads come short, as those of pipes and sockets do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 3) if size and size > 0 else size)


@settings(max_examples=200)
@given(data=st.binary(max_size=300), chunk_bytes=st.integers(1, 9), max_links=st.integers(2, 5))
def test_every_file_comes_back_whatever_the_tree(data: bytes, chunk_bytes: int, max_links: int) -> None:
    root, blocks = tree(data, chunk_bytes, max_links)
    for cid, block in blocks.items():
        verify_block(cid, block)
        assert len(links(cid, block)) <= max_links
    assert file_size(root, blocks[root]) == len(data)
    if len(data) <= chunk_bytes * max_links**5:
        chunks = list(read_file(root, blocks.__getitem__, max_bytes=len(data), max_links=max_links))
        assert b"".join(chunks) == data
        assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
    streamed = list(iter_blocks(Dribble(data), chunk_bytes=chunk_bytes, max_links=max_links))
    assert streamed[-1][0] == root and dict(streamed) == blocks


@given(n_chunks=st.integers(2, 200), max_links=st.integers(2, 6))
def test_trees_are_balanced_and_as_low_as_can_be(n_chunks: int, max_links: int) -> None:
    root, blocks = tree(bytes(range(200))[:n_chunks], 1, max_links)
    depths: set[int] = set()

    def walk(cid: str, depth: int) -> int:
        children = links(cid, blocks[cid])
        if not children:
            depths.add(depth)
            return len(blocks[cid])
        total = len(blocks[cid])
        for child in children:
            below = walk(child.cid, depth + 1)
            assert below == child.dag_bytes
            total += below
        return total

    walk(root, 0)
    (depth,) = depths
    assert max_links ** (depth - 1) < n_chunks <= max_links**depth


def test_files_on_disk_have_the_names_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = content(2 * CHUNK_BYTES + 5)
    path.write_bytes(data)
    assert file_cid(path) == cid_of(data)
    assert code_of(file_cid, tmp_path / "absent") is Code.STATE_UNREADABLE


def test_what_a_cid_says() -> None:
    parsed = parse_cid(cid_of(b"x"))
    assert parsed.codec == RAW and len(parsed.digest) == 32
    assert parse_cid(block_cid(DAG_PB, b"x")).codec == DAG_PB
    assert block_cid(DAG_PB, b"x").startswith("bafybei") and cid_of(b"x").startswith("bafkrei")


@pytest.mark.parametrize(
    "cid",
    [
        "",
        "b",
        "bafkrei",
        "QmXhpxZDYQrWKZ1v34sTuFCaHVqFkwELevZcze9SjYcGCd",
        "BAFKREIHDWDCEFGH4DQKJV67UZCMW7OJEE6XEDZDETOJUZJEVTENXQUVYKU",
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvykv",  # padding bits set
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyk",
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku ",
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku======",
        "bafyreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",  # dag-cbor
        "bafkrgihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",  # another hash
        "bé",
        "b" * 10_000,
    ],
)
def test_other_cids_are_refused(cid: str) -> None:
    assert code_of(parse_cid, cid) is Code.CID_INVALID


@given(text=st.text(max_size=80))
def test_any_text_is_refused_in_order(text: str) -> None:
    assert code_of(parse_cid, "b" + text) is Code.CID_INVALID


@given(data=st.binary(min_size=1, max_size=100), bit=st.integers(0, 799))
def test_one_wrong_bit_is_noticed(data: bytes, bit: int) -> None:
    bent = bytearray(data)
    bent[bit // 8 % len(data)] ^= 1 << bit % 8
    assert code_of(verify_block, cid_of(data), bytes(bent)) is Code.BLOCK_DAMAGED


def test_a_block_larger_than_any_is_refused() -> None:
    data = bytes(CHUNK_BYTES + 1)
    assert code_of(verify_block, block_cid(RAW, data), data) is Code.MESSAGE_TOO_LARGE
    verify_block(cid_of(data[1:]), data[1:])


LEAF = Link(cid_of(b"abcd"), 4, 4)


def node(*children: Link, order: tuple[int, ...] = (), unixfs: bytes | None = None, name: bytes = b"") -> bytes:
    """A node written field by field, to be wrong in ways that `encode_node` is not."""
    out = b""
    for child in children:
        cid = b"\1" + bytes([parse_cid(child.cid).codec]) + b"\x12\x20" + parse_cid(child.cid).digest
        parts = {1: put_bytes_field(1, cid), 2: put_bytes_field(2, name), 3: put_uint_field(3, child.dag_bytes)}
        out += put_bytes_field(2, b"".join(parts[field] for field in order or (1, 2, 3)))
    if unixfs is None:
        unixfs = put_uint_field(1, 2) + put_uint_field(3, sum(child.size for child in children))
        unixfs += b"".join(put_uint_field(4, child.size) for child in children)
    return out + put_bytes_field(1, unixfs)


def sizes(*values: int, kind: int = 2, total: int | None = None, extra: bytes = b"") -> bytes:
    unixfs = put_uint_field(1, kind) + put_uint_field(3, sum(values) if total is None else total)
    return unixfs + b"".join(put_uint_field(4, value) for value in values) + extra


def test_the_hand_written_node_is_the_encoded_one() -> None:
    assert node(LEAF, LEAF) == encode_node([LEAF, LEAF])
    assert links(block_cid(DAG_PB, node(LEAF, LEAF)), node(LEAF, LEAF)) == [LEAF, LEAF]


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff" * 40,
        node(),
        node(LEAF)[:-1],
        node(LEAF) + b"\0",
        node(LEAF, order=(2, 1, 3)),
        node(LEAF, order=(1, 3)),
        node(LEAF, order=(1, 2, 3, 3)),
        node(LEAF, name=b"passwd"),
        node(LEAF, unixfs=sizes(4, 4)),
        node(LEAF, LEAF, unixfs=sizes(4)),
        node(LEAF, LEAF, unixfs=sizes(4, 4, total=9)),
        node(LEAF, unixfs=sizes(4, kind=1)),
        node(LEAF, unixfs=sizes(4, extra=put_bytes_field(2, b"inline"))),
        node(LEAF, unixfs=sizes(4, extra=put_uint_field(7, 1))),
        node(LEAF, unixfs=b"\x08\x82\x00\x18\x04\x20\x04"),
        node(Link(LEAF.cid, 4, 5)),
        node(Link(LEAF.cid, 5, 5), Link(LEAF.cid, 0, 0)),
        node(Link(LEAF.cid, CHUNK_BYTES + 1, CHUNK_BYTES + 1)),
        node(Link(block_cid(DAG_PB, node(LEAF)), 100, 99)),
        node(*[Link(block_cid(DAG_PB, node(LEAF)), 2**62, 2**62)] * 2),
        node(*[LEAF] * 1025),
        put_bytes_field(1, sizes(4)) + node(LEAF)[: -len(put_bytes_field(1, sizes(4)))],
        node(LEAF)[: -len(put_bytes_field(1, sizes(4)))],
    ],
)
def test_nodes_that_are_not_of_the_profile_are_refused(block: bytes) -> None:
    assert code_of(links, block_cid(DAG_PB, block), block) is Code.BLOCK_DAMAGED


@settings(max_examples=300)
@given(data=st.data())
def test_a_node_with_one_other_byte_is_refused_or_means_something_else(data: st.DataObject) -> None:
    block = bytearray(node(LEAF, Link(block_cid(DAG_PB, node(LEAF, LEAF)), 8, 120)))
    place = data.draw(st.integers(0, len(block) - 1))
    block[place] ^= data.draw(st.integers(1, 255))
    try:
        children = links(block_cid(DAG_PB, bytes(block)), bytes(block))
    except HocketError as error:
        assert error.code is Code.BLOCK_DAMAGED
    else:
        assert encode_node(children) == block


@given(block=st.binary(max_size=200))
def test_any_bytes_are_refused_in_order(block: bytes) -> None:
    assert code_of(links, block_cid(DAG_PB, block), block) is Code.BLOCK_DAMAGED


def read(root: str, blocks: dict[str, bytes], **keywords: Any) -> bytes:
    return b"".join(read_file(root, blocks.__getitem__, **{"max_bytes": 10_000, **keywords}))


def test_reading_checks_every_block_and_size() -> None:
    root, blocks = tree(content(100))
    assert read(root, blocks) == content(100)
    assert code_of(read, root, blocks, max_bytes=99) is Code.MESSAGE_TOO_LARGE
    for cid in blocks:
        assert code_of(read, root, {**blocks, cid: blocks[cid] + b"x"}) is Code.BLOCK_DAMAGED
    lie = node(Link(LEAF.cid, 3, 3))
    assert code_of(read, block_cid(DAG_PB, lie), {block_cid(DAG_PB, lie): lie, LEAF.cid: b"abcd"}) is Code.BLOCK_DAMAGED


def test_a_file_that_says_it_is_too_large_is_refused_before_its_parts_are_fetched() -> None:
    root, blocks = tree(content(100))
    fetched: list[str] = []

    def get(cid: str) -> bytes:
        fetched.append(cid)
        return blocks[cid]

    assert code_of(lambda: list(read_file(root, get, max_bytes=50))) is Code.MESSAGE_TOO_LARGE
    assert fetched == [root]


def test_a_bottomless_tree_is_refused() -> None:
    blocks = {LEAF.cid: b"abcd"}
    link = LEAF
    for _ in range(MAX_DEPTH + 1):
        block = encode_node([link])
        link = Link(block_cid(DAG_PB, block), 4, link.dag_bytes + len(block))
        blocks[link.cid] = block
    assert code_of(read, link.cid, blocks) is Code.BLOCK_DAMAGED


def test_trees_of_no_width_are_a_fault_of_the_caller() -> None:
    for keywords in ({"chunk_bytes": 0}, {"max_links": 1}):
        with pytest.raises(ValueError, match="at least"):
            list(iter_blocks(b"", **keywords))
