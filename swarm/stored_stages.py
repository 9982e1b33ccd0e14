"""A version's stage files as they lie in the block store: every one is checked on the way out, whoever reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.errors import Code, HocketError
from common.files import disk_error
from protocol.manifest import StageFile
from protocol.tensor_files import TensorInfo, read_checked
from swarm.blocks import BlockStore


def read_stage_file(
    store: BlockStore, part: StageFile, expected: Sequence[TensorInfo], scratch: Path
) -> tuple[dict[str, np.ndarray], bytes]:
    """Read one stage of a version from the block store.

    Args:
        part: what the signed manifest says of the file. expected: the tensors that it must have.
        scratch: path that the file is laid under while it is read; gone afterwards.

    Returns: float32 arrays by name, and the file's SHA-256.

    Raises:
        HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED, MANIFEST_INVALID (another SHA-256), CHECKPOINT_INVALID, NOT_FINITE.
    """
    try:
        store.export(part.cid, scratch, max_bytes=part.size_bytes)
        with scratch.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").digest()
        if found.hex() != part.sha256:
            raise HocketError(
                Code.MANIFEST_INVALID, f"the file of stage {part.stage} does not have the SHA-256 that its manifest says"
            )
        return read_checked(scratch, expected), found
    except OSError as error:
        raise disk_error(error, scratch) from error
    finally:
        scratch.unlink(missing_ok=True)
