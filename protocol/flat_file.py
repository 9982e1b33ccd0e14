"""A checked file of float32 tensors, read piece by piece as one long vector, from several threads if need be.

Reading into a buffer that is used again keeps the memory of a pass over many large files at the size of the buffers: maps would
count every page that was ever touched.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from common.errors import Code, HocketError
from common.files import disk_error
from protocol.tensor_files import Layout, TensorInfo


class FlatFile:
    """The tensors of a safetensors file one after the other, in the order in which they are given.

    Args:
        tensors: all that the file must hold, float32. code: of the error for a file that does not fit.

    Raises:
        HocketError: `code` for a file that is missing or does not fit; DISK_FULL or STATE_UNREADABLE where this machine cannot
            read it, which is no fault of the file's maker.

    Attributes:
        size: values of the whole vector.
    """

    def __init__(self, path: Path, tensors: Sequence[TensorInfo], code: Code) -> None:
        self._path, self._code = path, code
        self._starts: list[int] = []
        self._places: list[int] = []
        self.size = 0
        try:
            self._stream = path.open("rb")
        except OSError as error:
            raise self._unread(error) from error
        try:
            layout = Layout(self._stream, path, code)
            layout.check(tensors)
        except (HocketError, OSError) as error:
            self._stream.close()
            if isinstance(error, OSError):
                raise self._unread(error) from error
            raise
        for info in tensors:
            if info.dtype != "float32":
                raise ValueError(f"{info.name} is {info.dtype}")
            place = layout.tensors[info.name][1]
            # Tensors that lie one behind the other, as they do in files of our own writing, are one piece.
            if info.size_bytes and (not self._starts or self._places[-1] + 4 * (self.size - self._starts[-1]) != place):
                self._starts.append(self.size)
                self._places.append(place)
            self.size += info.size_bytes // 4

    def read(self, start: int, into: np.ndarray) -> None:
        """Values from `start` on, as many as `into`, contiguous float32 [m], has room for.

        Raises:
            HocketError: the file's code when it became shorter; STATE_UNREADABLE when it cannot be read.
        """
        if start < 0 or start + into.size > self.size:
            raise ValueError(f"{into.size} values from {start} of {self.size}")
        piece = bisect_right(self._starts, start) - 1
        done = 0
        while done < into.size:
            end = self._starts[piece + 1] if piece + 1 < len(self._starts) else self.size
            part = into[done : done + end - start]
            self._fill(self._places[piece] + 4 * (start - self._starts[piece]), part)
            done += part.size
            start += part.size
            piece += 1

    def _fill(self, position: int, part: np.ndarray) -> None:
        wanted = part.view(np.uint8).data
        while len(wanted):
            try:
                got = os.preadv(self._stream.fileno(), [wanted], position)
            except OSError as error:
                raise self._unread(error) from error
            if got == 0:
                raise HocketError(self._code, f"{self._path}: it became shorter while it was read")
            wanted = wanted[got:]
            position += got
        if part.dtype.newbyteorder("<") != part.dtype:
            part.byteswap(inplace=True)

    def _unread(self, error: OSError) -> HocketError:
        if isinstance(error, FileNotFoundError):
            return HocketError(self._code, f"{self._path} ({error.strerror})")
        return disk_error(error, self._path)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> FlatFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
