"""safetensors files through numpy: written whole or not at all, and read only when they are what was expected.

The format (8 bytes of header length, a JSON header, the data) is written and read here rather than through the library
because a reader of a peer's file must compare names, dtypes and shapes with the manifest before it allocates anything,
and because equal tensors must give equal bytes, as files are named by their hash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from common.errors import Code, HocketError
from common.files import atomic_write

MAX_HEADER_BYTES = 16 * 2**20
_CHUNK_VALUES = 1 << 18

_NAME_OF_DTYPE = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_DTYPE_OF_NAME = {short: np.dtype(name).newbyteorder("<") for name, short in _NAME_OF_DTYPE.items()}


@dataclass(frozen=True)
class TensorInfo:
    """Name, numpy dtype name and shape of a tensor in a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def info_of(tensors: Mapping[str, np.ndarray]) -> list[TensorInfo]:
    """What `read_checked` must be told to accept a file of these tensors; by name."""
    return [TensorInfo(name, tensors[name].dtype.name, tuple(tensors[name].shape)) for name in sorted(tensors)]


def json_tensor(value: Any) -> np.ndarray:
    """JSON as a tensor of its bytes, uint8 [N]: what a file of our own says beside its tensors, read back by `json_of`."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_of(tensor: np.ndarray) -> Any:
    """The value of a `json_tensor`."""
    return json.loads(tensor.tobytes())


def file_parts(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, in order; equal tensors give equal bytes. Contiguous arrays are not copied."""
    # Larger items first, so that each tensor is aligned to its own item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    position = 0
    for name in names:
        array = tensors[name]
        if name == "__metadata__" or array.dtype.name not in _NAME_OF_DTYPE:
            raise ValueError(f"{name!r} of dtype {array.dtype} cannot be in a file")
        header[name] = {
            "dtype": _NAME_OF_DTYPE[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        flat = np.ascontiguousarray(tensors[name], tensors[name].dtype.newbyteorder("<")).reshape(-1)
        if flat.size:
            yield flat.view(np.uint8).data


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file, whole or not at all; DISK_FULL or STATE_UNREADABLE otherwise."""
    atomic_write(path, file_parts(tensors))


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} in JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


class Layout:
    """Where each tensor of an open file lies, checked against the size of the file; nothing is allocated for data."""

    def __init__(self, stream: BinaryIO, path: Path, code: Code) -> None:
        self._path = path
        self._code = code
        size_bytes = stream.seek(0, 2)
        stream.seek(0)
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
            raise self.fault("its header is cut or too long")
        try:
            text = stream.read(header_bytes).decode()
            header = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self.fault("its header is no JSON") from error
        self.start = 8 + header_bytes
        self.tensors: dict[str, tuple[TensorInfo, int]] = {}
        if not isinstance(header, dict):
            raise self.fault("its header is no table")
        header.pop("__metadata__", None)
        spans: list[tuple[int, int]] = []
        for name, entry in header.items():
            info, begin, end = self._entry(name, entry)
            self.tensors[name] = (info, self.start + begin)
            spans.append((begin, end))
        position = 0
        for begin, end in sorted(spans):
            if begin != position:
                raise self.fault("its tensors overlap or leave gaps")
            position = end
        if position != size_bytes - self.start:
            raise self.fault(f"it has {size_bytes - self.start} bytes of data for {position}")

    def fault(self, reason: str) -> HocketError:
        return HocketError(self._code, f"{self._path}: {reason}")

    def check(self, expected: Sequence[TensorInfo]) -> None:
        """The code's error unless the file holds exactly these tensors."""
        wanted = {info.name: info for info in expected}
        missing = sorted(wanted.keys() - self.tensors.keys())
        surplus = sorted(self.tensors.keys() - wanted.keys())
        if missing or surplus:
            raise self.fault(f"tensors missing: {missing[:3]}, surplus: {surplus[:3]}")
        for name, info in wanted.items():
            found = self.tensors[name][0]
            if found != info:
                raise self.fault(f"{name[:80]!r} is {found.dtype} {found.shape} instead of {info.dtype} {info.shape}")

    def _entry(self, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self.fault(f"{name[:80]!r} is not described in full")
        shape, offsets = entry["shape"], entry["data_offsets"]
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 else [None]
        # type() rather than isinstance(): bool is an int in Python, but not in this format.
        if not all(type(number) is int and 0 <= number < 2**48 for number in numbers) or len(numbers) > 34:
            raise self.fault(f"{name[:80]!r} has a bad shape or place")
        dtype = _DTYPE_OF_NAME.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            raise self.fault(f"{name[:80]!r} has a dtype that is not read here")
        info = TensorInfo(name, dtype.name, tuple(shape))
        if offsets[1] - offsets[0] != info.size_bytes:
            raise self.fault(f"{name[:80]!r} has {offsets[1] - offsets[0]} bytes instead of {info.size_bytes}")
        return info, offsets[0], offsets[1]


def all_finite(array: np.ndarray) -> bool:
    """Whether every value is finite, chunk by chunk, so that a mapped file need not be in memory at once."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[start : start + _CHUNK_VALUES]).all()) for start in range(0, flat.size, _CHUNK_VALUES))


def _read(path: Path, expected: Sequence[TensorInfo] | None, code: Code, finite: bool, mapped: bool) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as stream:
            layout = Layout(stream, path, code)
            if expected is not None:
                layout.check(expected)
            order = [info.name for info in expected] if expected is not None else list(layout.tensors)
            for name in order:
                info, position = layout.tensors[name]
                dtype = np.dtype(info.dtype)
                if mapped and info.size_bytes and position % dtype.itemsize == 0:
                    array: np.ndarray = np.memmap(stream, dtype.newbyteorder("<"), "r", position, info.shape)
                else:
                    raw = np.empty(info.shape, dtype.newbyteorder("<"))
                    stream.seek(position)
                    if info.size_bytes and stream.readinto(raw.reshape(-1).view(np.uint8).data) != info.size_bytes:
                        raise layout.fault("it became shorter while it was read")
                    array = raw.astype(dtype, copy=False)
                if finite and not all_finite(array):
                    raise HocketError(Code.NOT_FINITE, f"{name[:80]!r} in {path}")
                tensors[name] = array
    except OSError as error:
        raise HocketError(code, f"{path} ({error.strerror})") from error
    return tensors


def read_checked(
    path: Path,
    expected: Sequence[TensorInfo],
    *,
    code: Code = Code.CHECKPOINT_INVALID,
    finite: bool = True,
    mapped: bool = False,
) -> dict[str, np.ndarray]:
    """Read a safetensors file that must hold exactly the expected tensors; compared before anything is allocated.

    Args:
        expected: every tensor of the file; the result has their order.
        code: of the error for a file that does not fit.
        finite: also refuse float tensors with NaN or infinity.
        mapped: read-only memory maps instead of arrays of their own, for work chunk by chunk; the file must stay as
            it is while they live.

    Raises:
        HocketError: `code` for a damaged or other file, NOT_FINITE.
    """
    return _read(path, expected, code, finite, mapped)


def read_tensors(path: Path, *, code: Code = Code.CHECKPOINT_INVALID, mapped: bool = False) -> dict[str, np.ndarray]:
    """Read a safetensors file, whatever it holds, in the file's order; never more than the file's own size is allocated.

    Args:
        code: of the error for a damaged file. mapped: as in `read_checked`.
    """
    return _read(path, None, code, False, mapped)
