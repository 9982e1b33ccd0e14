"""CAR streams: what is written is read again, whatever the pieces; what is not ours, cut or changed is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol import content
from protocol.car import MAX_SECTION_BYTES, CarReader, car_header, car_section, walk, write_car
from protocol.wire import put_varint

TREES = st.tuples(st.binary(max_size=60), st.integers(1, 9), st.integers(2, 5))


def tree(data: bytes, chunk_bytes: int, max_links: int) -> tuple[str, dict[str, bytes]]:
    blocks = list(content.iter_blocks(data, chunk_bytes=chunk_bytes, max_links=max_links))
    return blocks[-1][0], dict(blocks)


def pieces_of(stream: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return (stream[a:b] for a, b in pairwise(edges))


def read(stream: bytes, cuts: list[int]) -> tuple[CarReader, list[tuple[str, bytes]]]:
    reader = CarReader()
    blocks = [block for piece in pieces_of(stream, cuts) for block in reader.feed(piece)]
    reader.finish()
    return reader, blocks


@settings(max_examples=150, deadline=None)
@given(tree_of=TREES, cuts=st.lists(st.integers(0, 5000), max_size=12))
def test_a_file_comes_back_whatever_the_pieces(tree_of: tuple[bytes, int, int], cuts: list[int]) -> None:
    root, blocks = tree(*tree_of)
    stream = b"".join(write_car(root, blocks.__getitem__))
    reader, found = read(stream, cuts)
    assert reader.roots == (root,)
    assert found[0][0] == root
    assert dict(found) == blocks and len(found) == len(blocks), "each block once"
    assert b"".join(content.read_file(root, dict(found).__getitem__, max_bytes=100, max_links=9)) == tree_of[0]
    # A parent always comes before its children: whoever reads the stream knows what may follow.
    known = {root}
    for cid, block in found:
        assert cid in known
        known |= {link.cid for link in content.links(cid, block)}


@settings(max_examples=150, deadline=None)
@given(tree_of=TREES, at=st.integers(0, 10**6), change=st.integers(1, 255))
def test_no_changed_byte_passes(tree_of: tuple[bytes, int, int], at: int, change: int) -> None:
    root, blocks = tree(*tree_of)
    stream = bytearray(b"".join(write_car(root, blocks.__getitem__)))
    stream[at % len(stream)] ^= change
    try:
        reader, found = read(bytes(stream), [])
    except HocketError as error:
        assert error.code in (Code.BLOCK_DAMAGED, Code.CID_INVALID, Code.MESSAGE_TOO_LARGE)
        return
    # A header may name another root; blocks are what their names say in any case, or it would not have come here.
    assert reader.roots != (root,) or dict(found) != blocks
    for cid, block in found:
        content.verify_block(cid, block)


@given(tree_of=TREES, data=st.data())
def test_a_cut_stream_is_told_from_a_whole_one(tree_of: tuple[bytes, int, int], data: st.DataObject) -> None:
    root, blocks = tree(*tree_of)
    sections = list(write_car(root, blocks.__getitem__))
    stream = b"".join(sections)
    edges = {sum(map(len, sections[:n])) for n in range(1, len(sections) + 1)}
    length = data.draw(st.integers(0, len(stream) - 1).filter(lambda n: n not in edges))
    with pytest.raises(HocketError) as caught:
        read(stream[:length], [])
    assert caught.value.code is Code.BLOCK_DAMAGED and "too early" in caught.value.detail


@given(st.binary(max_size=200))
def test_noise_raises_only_numbered_errors(noise: bytes) -> None:
    try:
        read(noise, [])
    except HocketError as error:
        assert error.code in (Code.BLOCK_DAMAGED, Code.CID_INVALID, Code.MESSAGE_TOO_LARGE)
    else:
        pytest.fail("noise was taken for a CAR stream")


def test_a_well_known_header() -> None:
    # By hand from the specification: map(2), "roots", array(1), tag 42 with a 37-byte string, "version", 1.
    cid = content.cid_of(b"hello world")
    digest = hashlib.sha256(b"hello world").digest()
    expected = (
        bytes.fromhex("3a a2 65 726f6f7473 81 d8 2a 58 25 00 01 55 12 20") + digest + bytes.fromhex("67 76657273696f6e 01")
    )
    assert car_header([cid]) == expected


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"\x0a\xa1\x67version\x02", Code.BLOCK_DAMAGED),  # the pragma of version 2
        (put_varint(MAX_SECTION_BYTES + 1), Code.MESSAGE_TOO_LARGE),
        (b"\xff" * 10, Code.BLOCK_DAMAGED),
        (b"\x00", Code.BLOCK_DAMAGED),
        (car_header([]) + b"\x00", Code.BLOCK_DAMAGED),
        (car_header([]) + put_varint(34) + b"\x12\x20" + bytes(32), Code.CID_INVALID),  # a CIDv0
        (car_header([]) + put_varint(36) + b"\x01\x71\x12\x20" + bytes(32), Code.CID_INVALID),  # dag-cbor
        (car_header([]) + put_varint(5) + b"\x01\x55\x00\x01a", Code.CID_INVALID),  # an identity hash
        (car_header([]) + put_varint(36) + b"\x01\x55\x12\x20" + bytes(32), Code.BLOCK_DAMAGED),  # not its hash
    ],
)  # fmt: skip
def test_what_is_refused(stream: bytes, code: Code) -> None:
    with pytest.raises(HocketError) as caught:
        read(stream, [])
    assert caught.value.code is code


def test_a_long_section_is_refused_before_it_is_kept() -> None:
    reader = CarReader()
    list(reader.feed(car_header([])))
    with pytest.raises(HocketError) as caught:
        list(reader.feed(put_varint(2**40)))
    assert caught.value.code is Code.MESSAGE_TOO_LARGE


def test_memory_stays_at_a_section() -> None:
    root, blocks = tree(bytes(5 * content.CHUNK_BYTES + 3), content.CHUNK_BYTES, 1024)
    assert next(walk(root, blocks.__getitem__))[0] == root
    assert len(blocks) == 3, "a chunk that comes five times is one block"
    data = hashlib.shake_128(b"x").digest(3 * content.CHUNK_BYTES)
    root, blocks = tree(data, content.CHUNK_BYTES, 1024)
    reader = CarReader()
    longest = 0
    for piece in write_car(root, blocks.__getitem__):
        for start in range(0, len(piece), 1 << 16):
            list(reader.feed(piece[start : start + (1 << 16)]))
            longest = max(longest, len(reader._kept))
    reader.finish()
    assert longest <= MAX_SECTION_BYTES + 8


def test_a_section_that_is_not_its_block_is_not_written() -> None:
    with pytest.raises(HocketError) as caught:
        car_section(content.cid_of(b"a"), b"b")
    assert caught.value.code is Code.BLOCK_DAMAGED


def test_a_missing_block_stops_the_stream() -> None:
    root, blocks = tree(b"0123456789", 3, 4)
    del blocks[content.cid_of(b"345")]

    def get(cid: str) -> bytes:
        if cid not in blocks:
            raise HocketError(Code.BLOCK_NOT_FOUND, cid)
        return blocks[cid]

    with pytest.raises(HocketError) as caught:
        b"".join(write_car(root, get))
    assert caught.value.code is Code.BLOCK_NOT_FOUND
