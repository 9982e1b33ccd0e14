"""Files of the sizes at which names are compared with those of other IPFS software."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from protocol.content import CHUNK_BYTES, MAX_LINKS

SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 7 * CHUNK_BYTES + 13)
# One chunk more than a node has links: the tree gets another level.
DEEP = MAX_LINKS * CHUNK_BYTES + 1


def pieces(size: int) -> Iterator[bytes]:
    """Bytes of which no two chunks are the same."""
    for start in range(0, size, CHUNK_BYTES):
        yield hashlib.shake_128(f"{size} {start}".encode()).digest(min(CHUNK_BYTES, size - start))


def write(folder: Path, sizes: tuple[int, ...]) -> dict[str, Path]:
    """Files of these sizes; by path as text."""
    folder.mkdir(exist_ok=True)
    found = {}
    for size in sizes:
        path = folder / str(size)
        with path.open("wb") as stream:
            stream.writelines(pieces(size))
        found[str(path)] = path
    return found


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
