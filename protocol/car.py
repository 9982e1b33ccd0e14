"""Blocks of our files as a CAR stream (version 1), the form in which IPFS nodes and gateways hand over many blocks at once.

A stream is a header (how long it is, then DAG-CBOR of the roots and the version) and sections (how long, the CID in binary,
the bytes of the block). Only our own kind of block is taken: CIDv1, raw or dag-pb, sha2-256, at most 1 MiB.

Sources: the CARv1 specification of IPLD; RFC 8949 and the DAG-CBOR specification for the header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from common.errors import Code, HocketError
from protocol import content
from protocol.wire import WireError, put_varint, read_varint

MAX_ROOTS = 16
CID_BYTES = 36
# The header of the most roots has less than 1 KiB; a section is one block and its name.
MAX_SECTION_BYTES = content.MAX_BLOCK_BYTES + CID_BYTES
_VARINT_BYTES = 10
_MAP_OF_TWO = b"\xa2"
_ROOTS = b"\x65roots"
_VERSION_1 = b"\x67version\x01"
_LINK = b"\xd8\x2a\x58\x25\x00"  # tag 42, a byte string of 37 bytes, the zero that stands before each CID


def _damaged(reason: str) -> HocketError:
    return HocketError(Code.BLOCK_DAMAGED, f"a CAR stream: {reason}")


def _header(roots: Sequence[str]) -> bytes:
    links = b"".join(_LINK + content.cid_to_bytes(root) for root in roots)
    return _MAP_OF_TWO + _ROOTS + bytes([0x80 + len(roots)]) + links + _VERSION_1


def car_header(roots: Sequence[str]) -> bytes:
    """The beginning of a stream with these roots, at most 15; CID_INVALID for one that is no CID of ours."""
    if len(roots) >= MAX_ROOTS:
        raise ValueError(f"{len(roots)} roots, at most {MAX_ROOTS - 1}")
    body = _header(roots)
    return put_varint(len(body)) + body


def car_section(cid: str, block: bytes) -> bytes:
    """One block of a stream; BLOCK_DAMAGED, CID_INVALID or MESSAGE_TOO_LARGE if it is not the one that `cid` names."""
    content.verify_block(cid, block)
    name = content.cid_to_bytes(cid)
    return put_varint(len(name) + len(block)) + name + block


def walk(root: str, get: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
    """The blocks of a file, parents before children in the order of the file, each once, checked against its CID.

    Memory: one block, and the names of all blocks (about 130 bytes for each MiB of the file).

    Args:
        get: gives the bytes of a block.

    Raises:
        HocketError: BLOCK_DAMAGED, MESSAGE_TOO_LARGE, CID_INVALID, and what `get` raises.
    """
    seen: set[str] = set()
    pending = [(root, 0)]
    while pending:
        cid, depth = pending.pop()
        if cid in seen:
            continue
        seen.add(cid)
        block = get(cid)
        content.verify_block(cid, block)
        children = content.links(cid, block)
        if children and depth == content.MAX_DEPTH:
            raise HocketError(Code.BLOCK_DAMAGED, f"the tree of {root} is deeper than {content.MAX_DEPTH} levels")
        yield cid, block
        pending.extend((link.cid, depth + 1) for link in reversed(children) if link.cid not in seen)


def write_car(root: str, get: Callable[[str], bytes]) -> Iterator[bytes]:
    """A file as a CAR stream, piece by piece, its root first; raises as `walk` does."""
    yield car_header([root])
    for cid, block in walk(root, get):
        yield car_section(cid, block)


class CarReader:
    """Reads a CAR stream that comes in pieces of any length. Keeps at most one section and the piece given last.

    `roots` is what the header names, None before it is there.
    """

    def __init__(self) -> None:
        self.roots: tuple[str, ...] | None = None
        self._kept = bytearray()

    def feed(self, piece: bytes | memoryview) -> Iterator[tuple[str, bytes]]:
        """The blocks that `piece` completes, each checked against its CID. To be read to its end before the next `feed`.

        Raises:
            HocketError: BLOCK_DAMAGED for a stream that is not CARv1, or a block that its CID does not name; CID_INVALID for
                a block of another kind than ours; MESSAGE_TOO_LARGE for a section that is longer than any of ours.
        """
        self._kept += piece
        start = 0
        try:
            while (section := self._section(start)) is not None:
                first, start = section
                body = bytes(memoryview(self._kept)[first:start])
                if self.roots is None:
                    self.roots = _read_header(body)
                else:
                    cid = content.cid_from_bytes(body[:CID_BYTES])
                    content.verify_block(cid, body[CID_BYTES:])
                    yield cid, body[CID_BYTES:]
        finally:
            del self._kept[:start]

    def finish(self) -> None:
        """Say that nothing follows; BLOCK_DAMAGED if the stream was cut, or has not begun."""
        if self.roots is None or self._kept:
            raise _damaged("it ends too early")

    def _section(self, start: int) -> tuple[int, int] | None:
        """Where the section that begins at `start` has its body; None while it is not all there."""
        head = bytes(self._kept[start : start + _VARINT_BYTES])
        if not any(byte < 0x80 for byte in head) and len(head) < _VARINT_BYTES:
            return None
        try:
            length, used = read_varint(head, 0)
        except WireError as error:
            raise _damaged(str(error)) from error
        if length > MAX_SECTION_BYTES:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"a CAR stream has a section of {length} bytes")
        if length == 0:
            raise _damaged("it has an empty section")
        first = start + used
        return (first, first + length) if first + length <= len(self._kept) else None


def _read_header(body: bytes) -> tuple[str, ...]:
    """The roots; BLOCK_DAMAGED unless it is the one way to write a header of version 1 with at most 15 roots of our kind."""
    at = len(_MAP_OF_TWO + _ROOTS) + 1
    count = body[at - 1] - 0x80 if len(body) >= at else -1
    if not 0 <= count < MAX_ROOTS:
        raise _damaged("its header is not that of version 1")
    step = len(_LINK) + CID_BYTES
    try:
        roots = tuple(content.cid_from_bytes(body[at + n * step + len(_LINK) : at + (n + 1) * step]) for n in range(count))
    except HocketError as error:
        raise _damaged(f"a root in its header is no CID of ours ({error.detail})") from error
    if _header(roots) != body:
        raise _damaged("its header is not that of version 1")
    return roots
