"""Content identifiers and the blocks behind them: the IPFS profile `unixfs-v1-2025`, written by hand.

A file is cut into chunks of 1 MiB, each a raw block; a file of one chunk is that block. Larger files get a balanced tree
of dag-pb nodes with at most 1024 links, each node a UnixFS file entry with the sizes below it. Every block is named by
a CIDv1 in base32 with the SHA-256 of its bytes, so any IPFS node that follows the profile gives the same file the same
name.

Decoding is strict: a node is accepted only when it is spelled the one way in which `encode_node` spells it.

Sources: the multiformats CID, dag-pb and UnixFS v1 specifications; IPIP-499 for the profile.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from common.errors import Code, HocketError
from protocol.wire import WireError, iter_fields, put_bytes_field, put_uint_field, put_varint, read_varint

RAW = 0x55
DAG_PB = 0x70
CHUNK_BYTES = 2**20
MAX_LINKS = 1024
# A node of 1024 links to files of up to 2**63 bytes stays well below a chunk, so one bound serves both kinds of block.
MAX_BLOCK_BYTES = CHUNK_BYTES
MAX_DEPTH = 7

_SHA2_256 = b"\x12\x20"
_UNIXFS_FILE = 2
_MAX_CID_CHARACTERS = 128


@dataclass(frozen=True)
class ParsedCid:
    """What a CID says: how the block is encoded (`RAW` or `DAG_PB`) and the SHA-256 of its bytes."""

    codec: int
    digest: bytes


@dataclass(frozen=True)
class Link:
    """A child in a file's tree.

    Args:
        cid: of the child's block.
        size: bytes of the file that lie below it.
        dag_bytes: of all blocks below it, its own included (dag-pb's Tsize).
    """

    cid: str
    size: int
    dag_bytes: int


def _damaged(cid: str, reason: str) -> HocketError:
    return HocketError(Code.BLOCK_DAMAGED, f"{cid}: {reason}")


def _cid_bytes(codec: int, digest: bytes) -> bytes:
    return b"\x01" + put_varint(codec) + _SHA2_256 + digest


def _cid_text(data: bytes) -> str:
    return "b" + base64.b32encode(data).decode("ascii").rstrip("=").lower()


def block_cid(codec: int, data: bytes | memoryview) -> str:
    """The CID of one block."""
    return _cid_text(_cid_bytes(codec, hashlib.sha256(data).digest()))


def _parse_cid_bytes(data: bytes) -> ParsedCid:
    """WireError unless it is a CIDv1 of a raw or dag-pb block with sha2-256."""
    if data[:1] != b"\x01":
        raise WireError("it is not a CIDv1")
    codec, position = read_varint(data, 1)
    if codec not in (RAW, DAG_PB):
        raise WireError(f"its codec {codec:#x} is neither raw nor dag-pb")
    if data[position : position + 2] != _SHA2_256 or len(data) != position + 34:
        raise WireError("its hash is not sha2-256")
    return ParsedCid(codec, data[position + 2 :])


def parse_cid(cid: str) -> ParsedCid:
    """Read a CID in base32.

    Raises:
        HocketError: CID_INVALID for anything but the canonical text of a CIDv1, raw or dag-pb, with sha2-256.
    """
    try:
        if not cid.startswith("b") or len(cid) > _MAX_CID_CHARACTERS:
            raise WireError("it is not in base32")
        data = base64.b32decode(cid[1:].upper().encode("ascii") + b"=" * (-len(cid[1:]) % 8))
        if _cid_text(data) != cid:
            raise WireError("it is not in canonical form")
        return _parse_cid_bytes(data)
    except (WireError, binascii.Error, UnicodeEncodeError) as error:
        reason = str(error) if isinstance(error, WireError) else "it is not in base32"
        raise HocketError(Code.CID_INVALID, f"{cid[:_MAX_CID_CHARACTERS]!r}: {reason}") from error


def cid_to_bytes(cid: str) -> bytes:
    """A CID in binary, 36 bytes, as it stands in dag-pb and in CAR streams; CID_INVALID as of `parse_cid`."""
    parsed = parse_cid(cid)
    return _cid_bytes(parsed.codec, parsed.digest)


def cid_from_bytes(data: bytes) -> str:
    """The text of a CID in binary; CID_INVALID unless it is a CIDv1 of a raw or dag-pb block with sha2-256, and nothing more."""
    try:
        _parse_cid_bytes(data)
    except WireError as error:
        raise HocketError(Code.CID_INVALID, f"{data[:40].hex()}: {error}") from error
    return _cid_text(data)


def verify_block(cid: str, data: bytes | memoryview) -> None:
    """Check that `data` is the block that `cid` names; BLOCK_DAMAGED, CID_INVALID or MESSAGE_TOO_LARGE otherwise."""
    parsed = parse_cid(cid)
    if len(data) > MAX_BLOCK_BYTES:
        raise HocketError(Code.MESSAGE_TOO_LARGE, f"block {cid} of {len(data)} bytes")
    if hashlib.sha256(data).digest() != parsed.digest:
        raise _damaged(cid, "its bytes have another hash")


def encode_node(links: list[Link]) -> bytes:
    """The dag-pb block of an inner node over `links`: links first, then the UnixFS entry, as dag-pb's canonical form has it."""
    out = bytearray()
    for link in links:
        parsed = parse_cid(link.cid)
        target = put_bytes_field(1, _cid_bytes(parsed.codec, parsed.digest))
        out += put_bytes_field(2, target + put_bytes_field(2, b"") + put_uint_field(3, link.dag_bytes))
    unixfs = put_uint_field(1, _UNIXFS_FILE) + put_uint_field(3, sum(link.size for link in links))
    unixfs += b"".join(put_uint_field(4, link.size) for link in links)
    out += put_bytes_field(1, unixfs)
    return bytes(out)


def _decode_link(data: bytes) -> tuple[str, int]:
    fields = list(iter_fields(data))
    if [number for number, _ in fields] != [1, 2, 3]:
        raise WireError("a link is not hash, name and size")
    target, name, dag_bytes = (value for _, value in fields)
    if not isinstance(target, bytes) or name != b"" or not isinstance(dag_bytes, int):
        raise WireError("a link of a file has a name, or a field of the wrong kind")
    _parse_cid_bytes(target)
    return _cid_text(target), dag_bytes


def _decode_node(data: bytes | memoryview, max_links: int) -> list[Link]:
    targets: list[tuple[str, int]] = []
    sizes: list[int] = []
    for number, value in iter_fields(data):
        if not isinstance(value, bytes) or number not in (1, 2):
            raise WireError("it is not a dag-pb node")
        if number == 2:
            if len(targets) == max_links:
                raise WireError(f"it has more than {max_links} links")
            targets.append(_decode_link(value))
        else:
            sizes = [size for field, size in iter_fields(value) if field == 4 and isinstance(size, int)]
    if not targets or len(sizes) != len(targets):
        raise WireError(f"it has {len(targets)} links with {len(sizes)} sizes")
    links = [Link(cid, size, dag_bytes) for (cid, dag_bytes), size in zip(targets, sizes, strict=True)]
    if sum(sizes) >= 2**63:
        raise WireError("its sizes are too large")
    # Everything that was skipped above, the order of fields included, is caught here.
    if encode_node(links) != data:
        raise WireError("it is not in canonical form")
    return links


def links(cid: str, block: bytes | memoryview, *, max_links: int = MAX_LINKS) -> list[Link]:
    """The children of a block, in the order of the file; none for a raw block.

    Raises:
        HocketError: BLOCK_DAMAGED for a node that is not exactly of this profile.
    """
    if parse_cid(cid).codec == RAW:
        return []
    try:
        found = _decode_node(block, max_links)
    except WireError as error:
        raise _damaged(cid, str(error)) from error
    for link in found:
        if link.size == 0 or link.dag_bytes < link.size:
            raise _damaged(cid, "a link is empty or smaller than what lies below it")
        if parse_cid(link.cid).codec == RAW and not (link.size == link.dag_bytes <= MAX_BLOCK_BYTES):
            raise _damaged(cid, "a link to a chunk says a size that no chunk has")
    return found


def file_size(cid: str, block: bytes | memoryview) -> int:
    """Bytes of the file whose root (or sub-tree) this block is."""
    if parse_cid(cid).codec == RAW:
        return len(block)
    return sum(link.size for link in links(cid, block))


class _TreeBuilder:
    """Collects links level by level; a level is closed into a node only when another link follows it, or at the end."""

    def __init__(self, max_links: int) -> None:
        self._max_links = max_links
        self._levels: list[list[Link]] = [[]]

    def add(self, link: Link, level: int = 0) -> Iterator[tuple[str, bytes]]:
        if level == len(self._levels):
            self._levels.append([])
        if len(self._levels[level]) == self._max_links:
            yield from self._close(level)
        self._levels[level].append(link)

    def _close(self, level: int) -> Iterator[tuple[str, bytes]]:
        children = self._levels[level]
        self._levels[level] = []
        block = encode_node(children)
        cid = block_cid(DAG_PB, block)
        yield cid, block
        node = Link(cid, sum(child.size for child in children), len(block) + sum(child.dag_bytes for child in children))
        yield from self.add(node, level + 1)

    def finish(self) -> Iterator[tuple[str, bytes]]:
        level = 0
        while level < len(self._levels) - 1 or len(self._levels[level]) > 1:
            yield from self._close(level)
            level += 1


def _chunks(stream: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    """Chunks of exactly `chunk_bytes` but for the last; an empty stream is one empty chunk."""
    first = True
    while True:
        pieces: list[bytes] = []
        missing = chunk_bytes
        while missing and (piece := stream.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
        chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if chunk or first:
            yield chunk
        if missing:
            return
        first = False


def iter_blocks(
    source: bytes | memoryview | BinaryIO, *, chunk_bytes: int = CHUNK_BYTES, max_links: int = MAX_LINKS
) -> Iterator[tuple[str, bytes]]:
    """The blocks of a file as (CID, bytes), children before parents, the root last; memory stays at one chunk.

    Args:
        source: bytes, or a binary stream read to its end.
        chunk_bytes, max_links: of the profile; other values give other names and serve tests of deep trees.
    """
    if chunk_bytes < 1 or max_links < 2:
        raise ValueError("chunks have at least 1 byte, nodes at least 2 links")
    stream = BytesIO(source) if isinstance(source, bytes | memoryview) else source
    tree = _TreeBuilder(max_links)
    for chunk in _chunks(stream, chunk_bytes):
        cid = block_cid(RAW, chunk)
        yield cid, chunk
        yield from tree.add(Link(cid, len(chunk), len(chunk)))
    yield from tree.finish()


def _root(blocks: Iterator[tuple[str, bytes]]) -> str:
    root = ""
    for cid, _ in blocks:
        root = cid
    return root


def cid_of(data: bytes | memoryview) -> str:
    """The CID of a file with these bytes; for at most 1 MiB that is its raw block's, `bafk...`."""
    return _root(iter_blocks(data))


def iter_file_blocks(path: Path) -> Iterator[tuple[str, bytes]]:
    """The blocks of a file on disk, the root last; STATE_UNREADABLE when it cannot be read."""
    try:
        with path.open("rb") as stream:
            yield from iter_blocks(stream)
    except OSError as error:
        raise HocketError(Code.STATE_UNREADABLE, f"{path} ({error.strerror})") from error


def file_cid(path: Path) -> str:
    """The CID of a file on disk, read chunk by chunk."""
    return _root(iter_file_blocks(path))


def read_file(root: str, get: Callable[[str], bytes], *, max_bytes: int, max_links: int = MAX_LINKS) -> Iterator[bytes]:
    """The bytes of a file, chunk by chunk, from blocks that are each checked against their CID.

    Args:
        root: CID of the file.
        get: gives the bytes of a block; called in the order of the file.
        max_bytes: refuse a file that is larger, or that says so.

    Raises:
        HocketError: BLOCK_DAMAGED, MESSAGE_TOO_LARGE, CID_INVALID, and what `get` raises.
    """
    size: int | None = None
    pending: list[tuple[str, int | None, int]] = [(root, None, 0)]
    while pending:
        cid, said, depth = pending.pop()
        block = get(cid)
        verify_block(cid, block)
        children = links(cid, block, max_links=max_links)
        found = sum(child.size for child in children) if children else len(block)
        if said is not None and found != said:
            raise _damaged(cid, f"it holds {found} bytes where its parent says {said}")
        if size is None:
            size = found
            if size > max_bytes:
                raise HocketError(Code.MESSAGE_TOO_LARGE, f"file {root} of {size} bytes; at most {max_bytes} are allowed")
        if not children:
            yield block
        elif depth == MAX_DEPTH:
            raise _damaged(root, f"its tree is deeper than {MAX_DEPTH} levels")
        else:
            pending.extend((child.cid, child.size, depth + 1) for child in reversed(children))
