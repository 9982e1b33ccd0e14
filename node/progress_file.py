"""A replica's inner progress as one file: weights and moments, and beside them what they were trained on.

A safetensors file of the worker's own, never a peer's: `weights.NAME`, the moments under the optimizer's names after
`moments.`, `about` (JSON), and last `sha256`, the digest of all bytes before it. A file that was cut, damaged or made for
another stage is told by that, and no tensor of it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import Code, HocketError
from common.writer import SEAL_BYTES
from node.microbatches import Settled
from node.wire import Losses
from protocol.tensor_files import TensorInfo, all_finite, file_parts, info_of, read_tensors

FORMAT = "hocket-progress/1"
MOST_ABOUT_BYTES = 64 << 20

Count = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FinishedLease(_Part):
    """A lease of the round that was finished by then."""

    lease_id: Count
    frames: Count
    microbatches: Count


class SettledMicrobatch(_Part):
    """A microbatch that was counted, or thrown away; `digest` of its input, in hex."""

    id: Count
    frames: Count
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    counted: bool


class Progress(_Part):
    """What weights and moments were trained on.

    Args:
        run_id, member_id: whose they are. stage: of `stages`.
        round, base_cid: of the round. weights_sha256: of the base's stage file, in hex.
        generation: of the assignment. resumed: earlier generations whose work of this round is included.
        frames, inner_steps: of this round. ce, count: sums over its microbatches per codebook. auxiliary: (sum, count) by name.
        microbatches: of this round. duplicates, dropped: of this round's ledger.
        leases: finished in this round.
        steps_taken: by the optimizer since its moments were zero.
        chain_link: by which this state was committed to, in hex; empty: it was not.
    """

    format: str = FORMAT
    run_id: str
    member_id: str
    stage: Count
    stages: Count
    round: Count
    base_cid: str
    weights_sha256: str
    generation: Count
    resumed: tuple[Count, ...] = ()
    frames: Count
    inner_steps: Count
    ce: tuple[Finite, ...] = ()
    count: tuple[Count, ...] = ()
    auxiliary: dict[str, tuple[Finite, Count]] = {}
    microbatches: tuple[SettledMicrobatch, ...] = ()
    duplicates: Count = 0
    dropped: Count = 0
    leases: tuple[FinishedLease, ...] = ()
    steps_taken: Count
    chain_link: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")

    @property
    def losses(self) -> Losses:
        return Losses(self.ce, self.count, dict(self.auxiliary))

    def settled(self) -> list[Settled]:
        """For the ledger."""
        return [Settled(one.id, bytes.fromhex(one.digest), one.frames, one.counted) for one in self.microbatches]


def progress_tensors(progress: Progress, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the file holds; the digest is filled in by a writer that seals it.

    Args:
        tensors: of `LocalStage.live_tensors`.
    """
    about = np.frombuffer(progress.model_dump_json().encode(), np.uint8)
    return {**tensors, "about": about, "sha256": np.zeros(SEAL_BYTES, np.uint8)}


def progress_parts(progress: Progress, tensors: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """The bytes of the file, the last 32 of them to be replaced by the SHA-256 of the others."""
    return list(file_parts(progress_tensors(progress, tensors)))


def tensors_of(shapes: Mapping[str, tuple[int, ...]]) -> list[TensorInfo]:
    """The weights and moments that a file of a stage with these parameters holds."""
    found: list[TensorInfo] = []
    for name, shape in shapes.items():
        found.append(TensorInfo(f"weights.{name}", "float32", shape))
        found += [TensorInfo(f"moments.{name}.{key}", "float32", shape) for key in ("exp_avg", "exp_avg_sq")]
        found.append(TensorInfo(f"moments.{name}.step", "float32", ()))
    return found


def read_progress(path: Path, expected: list[TensorInfo]) -> tuple[Progress, dict[str, np.ndarray]]:
    """Read a file that `progress_parts` made and a writer sealed.

    Args:
        expected: of `tensors_of`; compared with the file's size before anything is read.

    Raises:
        HocketError: STATE_UNREADABLE, CHECKPOINT_INVALID or NOT_FINITE for what is damaged or of another stage.
    """
    try:
        size_bytes = path.stat().st_size
        most_bytes = sum(info.size_bytes for info in expected) + MOST_ABOUT_BYTES
        if not SEAL_BYTES <= size_bytes <= most_bytes:
            raise HocketError(Code.CHECKPOINT_INVALID, f"{path}: {size_bytes} bytes, at most {most_bytes} are expected")
        if _digest(path, size_bytes - SEAL_BYTES) != _seal(path, size_bytes):
            raise HocketError(Code.CHECKPOINT_INVALID, f"{path}: its bytes are not those that were written")
    except OSError as error:
        raise HocketError(Code.STATE_UNREADABLE, f"{path} ({error.strerror})") from error
    tensors = read_tensors(path)
    about = tensors.pop("about", None)
    tensors.pop("sha256", None)
    wanted = sorted(expected, key=lambda info: info.name)
    if about is None or about.dtype != np.uint8 or info_of(tensors) != wanted:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{path}: its tensors are not those of this stage")
    for name, array in tensors.items():
        if not all_finite(array):
            raise HocketError(Code.NOT_FINITE, f"{name!r} in {path}")
    try:
        progress = Progress.model_validate_json(about.tobytes())
    except ValidationError as error:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{path}: {error.errors()[0]['msg']}") from error
    if progress.format != FORMAT:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{path}: of format {progress.format[:40]!r}, not {FORMAT}")
    return progress, tensors


def _digest(path: Path, length_bytes: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while length_bytes and (piece := stream.read(min(length_bytes, 8 << 20))):
            digest.update(piece)
            length_bytes -= len(piece)
    return digest.digest()


def _seal(path: Path, size_bytes: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(size_bytes - SEAL_BYTES)
        return stream.read()
