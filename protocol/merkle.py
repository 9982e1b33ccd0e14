"""Merkle trees over byte strings: one root binds many records, and a short proof shows that one of them is below it.

Leaves and inner nodes are hashed under different prefixes, as in RFC 6962, so that neither passes for the other. A node without a
sibling goes up as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

EMPTY_ROOT = hashlib.sha256(b"").digest()


def _leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _above(level: Sequence[bytes]) -> list[bytes]:
    return [_node(*level[at : at + 2]) if at + 1 < len(level) else level[at] for at in range(0, len(level), 2)]


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root of the tree over `leaves` in their order, 32 bytes; `EMPTY_ROOT` without any."""
    level = [_leaf(one) for one in leaves]
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        level = _above(level)
    return level[0]


@dataclass(frozen=True)
class MerkleProof:
    """Shows that a leaf is below a root.

    Args:
        index: of the leaf. size: number of leaves. siblings: hashes beside the way up, lowest first.
    """

    index: int
    size: int
    siblings: tuple[bytes, ...]


def prove(leaves: Sequence[bytes], index: int) -> MerkleProof:
    """The proof for the leaf at `index`."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"leaf {index} of {len(leaves)}")
    level, at, siblings = [_leaf(one) for one in leaves], index, []
    while len(level) > 1:
        if at ^ 1 < len(level):
            siblings.append(level[at ^ 1])
        level, at = _above(level), at // 2
    return MerkleProof(index, len(leaves), tuple(siblings))


def proves(proof: MerkleProof, leaf: bytes, root: bytes) -> bool:
    """Whether `proof` shows that `leaf` is below `root`."""
    if not 0 <= proof.index < proof.size:
        return False
    found, at, size, left = _leaf(leaf), proof.index, proof.size, list(proof.siblings)
    while size > 1:
        if at ^ 1 < size:
            if not left:
                return False
            sibling = left.pop(0)
            found = _node(sibling, found) if at % 2 else _node(found, sibling)
        at, size = at // 2, (size + 1) // 2
    return not left and found == root
