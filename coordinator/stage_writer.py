"""Writes a stage file piece by piece, so that a stage larger than memory can be made; the bytes are those of `write_tensors`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from common.errors import HocketError
from common.files import discard, disk_error, sync_directory
from protocol.tensor_files import TensorInfo


class StageWriter:
    """A safetensors file of float32 tensors, written in order of their names, beside its place and moved there by `finish`.

    Args:
        path: where the whole file will stand.
        tensors: every tensor of the file.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE; nothing is left beside the target.
    """

    def __init__(self, path: Path, tensors: Sequence[TensorInfo]) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        self._left = 0
        self.size_bytes = 0
        header: dict[str, object] = {}
        for info in sorted(tensors, key=lambda one: one.name):
            if info.dtype != "float32":
                raise ValueError(f"{info.name} is {info.dtype}; stage files hold float32")
            header[info.name] = {
                "dtype": "F32", "shape": list(info.shape), "data_offsets": [self._left, self._left + info.size_bytes],
            }  # fmt: skip
            self._left += info.size_bytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, as the pieces are large: a full disk is met where it is reported, not again on closing.
            self._stream = self._part.open("wb", buffering=0)
        except OSError as error:
            raise disk_error(error, path) from error
        self._left += 8 + len(text)
        try:
            self._put(len(text).to_bytes(8, "little") + text)
        except HocketError:
            self._discard()
            raise

    def write(self, values: np.ndarray) -> None:
        """Append the next values: float32 [m]."""
        self._put(values.astype("<f4", copy=False).view(np.uint8).data)

    def finish(self) -> str:
        """Sync the file, move it to its place and return its SHA-256 in hex."""
        if self._left:
            raise ValueError(f"{self._left} bytes of {self._path} are missing")
        try:
            os.fsync(self._stream.fileno())
            self._stream.close()
            os.replace(self._part, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise disk_error(error, self._path) from error
        return self._hash.hexdigest()

    def _put(self, data: bytes | memoryview) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"more bytes than {self._path} has room for")
        try:
            left = memoryview(data)
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            raise disk_error(error, self._path) from error
        self._hash.update(data)
        self.size_bytes += len(data)

    def __enter__(self) -> StageWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Leave nothing behind unless `finish` was reached."""
        self._discard()

    def _discard(self) -> None:
        self._stream.close()
        discard(self._part)
