"""What a replica commits to after each inner step: a hash chain over its weights, its optimizer's state and its microbatches.

    link(0) = H(begin | run, round, stage, member, generation, part, base, previous | update(0), moments(0))
    link(i) = H(step  | link(i-1), i, frames, lr | update(i), moments(i) | Merkle root of the records)

`update(i)` is the digest of base minus weights after step i, so that the last one is that of the update itself, bit for bit: the
subtraction of float32 is the same on every machine. Hashes bind bytes; whether the floats behind them are right is for a
recomputation to say.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from protocol.generated import hocket_pb2 as pb
from protocol.merkle import merkle_root

DIGEST_BYTES = 32
WEIGHTS, MOMENTS = "weights.", "moments."
"""What the names of a state's tensors begin with."""
MOMENTS_ROUNDS = 2
"""A chain begins without moments of the optimizer, or with some that its member has committed to, so many rounds ago at most."""


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> bytes:
    """SHA-256 over named tensors, whatever the order of the mapping: names, dtypes, shapes and little-endian bytes."""
    digest = TensorsDigest()
    for name in sorted(tensors):
        array = tensors[name]
        digest.begin(name, array.dtype.name, array.shape)
        digest.add(array)
    return digest.digest()


class TensorsDigest:
    """`tensors_digest` piece by piece, for files that do not fit into memory. Tensors come in the order of their names."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"hocket-tensors/1")

    def begin(self, name: str, dtype: str, shape: Iterable[int]) -> None:
        """The next tensor; its values follow by `add`."""
        head = f"{name}|{dtype}|{','.join(map(str, shape))}".encode()
        self._hash.update(struct.pack("<Q", len(head)) + head)

    def add(self, values: np.ndarray) -> None:
        """The next values of the tensor, in C order."""
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        self._hash.update(np.ascontiguousarray(little).data.cast("B") if little.size else b"")

    def digest(self) -> bytes:
        return self._hash.digest()


NO_MOMENTS = tensors_digest({})
"""The digest of an optimizer's moments before its first step."""


def state_digests(base: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
    """The digests by which a commit names a state: of base minus weights, and of the optimizer's moments.

    Args:
        base: float32 by parameter name. state: `weights.NAME` like each of the base, and `moments.NAME.KEY`.
    """
    update = TensorsDigest()
    # Values that are not finite may overflow here: their digest is another one, and that is all that is asked.
    with np.errstate(invalid="ignore", over="ignore"):
        for name in sorted(base):
            update.begin(name, "float32", base[name].shape)
            update.add(base[name] - state[f"{WEIGHTS}{name}"])
    return update.digest(), tensors_digest({name: value for name, value in state.items() if name.startswith(MOMENTS)})


@dataclass(frozen=True)
class ChainStart:
    """What a chain belongs to.

    Args:
        base_cid: of the version. previous: the last link of the progress that was resumed; empty for a new beginning.
        part: how many chains were begun before under this generation.
    """

    run_id: str
    round: int
    stage: int
    member_id: str
    generation: int
    base_cid: str
    previous: bytes = b""
    part: int = 0


def records_root(records: Iterable[pb.MicrobatchRecord]) -> bytes:
    """Merkle root over the records, by microbatch id."""
    return merkle_root([record_bytes(one) for one in sorted(records, key=lambda one: one.id)])


def record_bytes(record: pb.MicrobatchRecord) -> bytes:
    """A record as the Merkle tree takes it."""
    return record.SerializeToString(deterministic=True)


def first_link(start: ChainStart, update_digest: bytes, moments_digest: bytes) -> bytes:
    """Link 0."""
    return _hash(
        b"begin", start.run_id.encode(), _number(start.round), _number(start.stage), start.member_id.encode(),
        _number(start.generation), _number(start.part), start.base_cid.encode(), start.previous, update_digest, moments_digest,
    )  # fmt: skip


def next_link(
    previous: bytes, step: int, frames: int, lr: float, update_digest: bytes, moments_digest: bytes, root: bytes
) -> bytes:
    """Link `step`, 1 or later.

    Args:
        frames: by which the step divided its gradients. lr: its learning rate. root: of `records_root`.
    """
    return _hash(b"step", previous, _number(step), _number(frames), struct.pack("<d", lr), update_digest, moments_digest, root)


def link_of(commit: pb.StepCommit, start: ChainStart) -> bytes:
    """The link that a commit must name."""
    if commit.step == 0:
        return first_link(start, commit.update_digest, commit.moments_digest)
    return next_link(
        commit.previous, commit.step, commit.frames, commit.lr, commit.update_digest, commit.moments_digest,
        records_root(commit.records),
    )  # fmt: skip


def _number(value: int) -> bytes:
    return struct.pack("<Q", value)


def _hash(*parts: bytes) -> bytes:
    """Each part is preceded by its length, so that no two lists of parts are one string of bytes."""
    digest = hashlib.sha256(b"hocket-chain/1")
    for part in parts:
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.digest()
