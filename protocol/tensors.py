"""Tensors on the wire: a head that says what follows, and the bytes.

Encodings of a float32 array of shape [..., D]; everything is little-endian and in C order:

* `raw`: the array's bytes. Integers and bools always travel like this; for float32 it is the encoding named `fp32`.
* `bf16`: the upper 16 bits of each float32, rounded to nearest, ties to even. Relative error at most 2**-8 for normal
  numbers.
* `int8`: one float32 scale a row (absmax / 127, symmetric, over the last axis), all scales first, then the int8 values.
  Absolute error at most half a scale. A row of zeros comes back as zeros.

A head is checked in full, sizes before anything is allocated, digest before anything is decoded. Values that are not
finite are refused at both ends: they would turn every weight they meet into NaN.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.tensor_files import TensorInfo, read_checked, read_tensors, write_tensors

__all__ = [
    "ENCODINGS",
    "MAX_TENSOR_BYTES",
    "EncodedTensor",
    "TensorInfo",
    "decode",
    "decode_all",
    "digest_of",
    "encode",
    "encode_all",
    "read_checked",
    "read_tensors",
    "split_body",
    "write_tensors",
]

ENCODINGS = ("fp32", "bf16", "int8")
MAX_TENSOR_BYTES = 256 * 2**20
MAX_TENSORS = 64
MAX_DIMENSIONS = 8
MAX_NAME_CHARACTERS = 64

_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float32", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
}
_FLOAT32 = _DTYPES["float32"]
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT32_TINY = np.float32(np.finfo(np.float32).tiny)
# From here on, rounding to bfloat16 gives infinity.
_BF16_LIMIT = float(np.array(0x7F7F8000, np.uint32).view(np.float32))
# The largest scale with which even -128 decodes to a finite number.
_SCALE_LIMIT = np.float32(np.nextafter(np.float32(_FLOAT32_MAX / 128), np.float32(0)))
_INT8_LIMIT = 126.999 * float(_SCALE_LIMIT)


@dataclass(frozen=True)
class EncodedTensor:
    """A head and the bytes that follow it; `data` may be a view of the array that was encoded."""

    head: pb.TensorHead
    data: bytes | memoryview


def _invalid(name: str, reason: str) -> HocketError:
    return HocketError(Code.TENSOR_INVALID, f"{name[:MAX_NAME_CHARACTERS]!r} {reason}")


def _not_finite(name: str, reason: str = "has values that are not finite") -> HocketError:
    return HocketError(Code.NOT_FINITE, f"{name[:MAX_NAME_CHARACTERS]!r} {reason}")


def _bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy; memoryview.cast cannot do it for empty arrays."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _absmax(array: np.ndarray) -> float:
    """Largest magnitude; NaN if there is one. Two passes without a temporary beat one over `abs` or `isfinite`."""
    if not array.size:
        return 0.0
    low, high = float(array.min()), float(array.max())
    return high if math.isnan(high) else max(-low, high)


def _encode_bf16(array: np.ndarray) -> np.ndarray:
    """float32 [n] -> uint16 [n]."""
    bits = array.view(np.uint32)
    rounded = np.right_shift(bits, 16)
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    # The upper halves are every second uint16 of the little-endian words: a strided copy instead of a shift and a cast.
    return np.ascontiguousarray(rounded.view(np.uint16)[1::2])


def _decode_bf16(data: memoryview, count: int) -> np.ndarray:
    """uint16 [count] in bytes -> float32 [count], owned."""
    bits = np.frombuffer(data, "<u2", count).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _rows_of(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and row length of an array seen as a table over its last axis; a scalar is one row of one."""
    length = shape[-1] if shape else 1
    return math.prod(shape[:-1]) if length else 0, length


def _encode_int8(array: np.ndarray, rows: int, length: int) -> np.ndarray:
    """float32 [n] -> uint8 [4 * rows + n]: scales, then values."""
    table = array.reshape(rows, length)
    out = np.empty(4 * rows + array.size, np.uint8)
    if not array.size:
        return out
    scales = np.maximum(table.max(axis=1), -table.min(axis=1))  # [rows]
    scales /= np.float32(127)
    # The smallest normal number keeps zero rows, and rows of subnormals, clear of division by zero and lost precision.
    np.maximum(scales, _FLOAT32_TINY, out=scales)
    out[: 4 * rows].view("<f4")[:] = scales
    steps = table * np.reciprocal(scales)[:, None]
    np.rint(steps, out=steps)
    np.copyto(out[4 * rows :].view(np.int8).reshape(rows, length), steps, casting="unsafe")
    return out


def _decode_int8(name: str, data: memoryview, rows: int, length: int) -> np.ndarray:
    """Bytes of scales and values -> float32 [rows * length], owned."""
    scales = np.frombuffer(data, "<f4", rows).astype(np.float32)
    # Comparisons with NaN are false, so this also finds it.
    if not bool(np.all((scales >= 0) & (scales <= _SCALE_LIMIT))):
        raise _not_finite(name, "has a scale that is negative, too large or not a number")
    values = np.frombuffer(data, np.int8, rows * length, 4 * rows).astype(np.float32)
    table = values.reshape(rows, length)
    table *= scales[:, None]
    return values


def encode(name: str, array: npt.ArrayLike, encoding: str) -> EncodedTensor:
    """Prepare an array for the wire.

    Args:
        name: of the tensor in its message.
        array: float32, bool or an integer type, of any shape up to 8 dimensions. The bytes of a C-contiguous raw array
            are not copied: it must not be changed until they are sent.
        encoding: one of `ENCODINGS`; only float32 arrays are affected by it.

    Raises:
        HocketError: NOT_FINITE for NaN, infinity, or values too large for the encoding.
        ValueError: for a dtype, size or encoding that is not of this format (a fault of the caller's code).
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"{encoding!r} is none of {ENCODINGS}")
    source = np.asarray(array)
    shape = source.shape
    dtype = _DTYPES.get(source.dtype.name)
    if dtype is None or len(shape) > MAX_DIMENSIONS or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise ValueError(f"{name!r} of dtype {source.dtype} and shape {shape} cannot travel")
    flat = np.ascontiguousarray(source, dtype).reshape(-1)
    if flat.nbytes > MAX_TENSOR_BYTES:
        raise ValueError(f"{name!r} has {flat.nbytes} bytes; at most {MAX_TENSOR_BYTES} may travel")
    wire_encoding = "raw"
    encoded = flat
    if dtype == _FLOAT32:
        absmax = _absmax(flat)
        if not absmax <= _FLOAT32_MAX:
            raise _not_finite(name)
        if encoding == "bf16":
            if absmax >= _BF16_LIMIT:
                raise _not_finite(name, "has values too large for bf16")
            wire_encoding, encoded = "bf16", _encode_bf16(flat)
        elif encoding == "int8":
            if absmax > _INT8_LIMIT:
                raise _not_finite(name, "has values too large for int8")
            wire_encoding, encoded = "int8", _encode_int8(flat, *_rows_of(shape))
    data = _bytes_of(encoded)
    head = pb.TensorHead(
        name=name,
        dtype=source.dtype.name,
        shape=shape,
        encoding=wire_encoding,
        size_bytes=data.nbytes,
        sha256=hashlib.sha256(data).digest(),
    )
    return EncodedTensor(head, data)


def encode_all(arrays: Mapping[str, npt.ArrayLike], encoding: str) -> tuple[list[pb.TensorHead], list[bytes | memoryview]]:
    """Heads and body parts of several arrays, in the mapping's order."""
    encoded = [encode(name, array, encoding) for name, array in arrays.items()]
    return [tensor.head for tensor in encoded], [tensor.data for tensor in encoded]


def digest_of(heads: Iterable[pb.TensorHead]) -> bytes:
    """SHA-256 that names what travelled: over every tensor's name, dtype, shape, encoding and digest."""
    digest = hashlib.sha256()
    for head in sorted(heads, key=lambda head: head.name):
        digest.update(f"{head.name}|{head.dtype}|{list(head.shape)}|{head.encoding}|".encode())
        digest.update(head.sha256)
    return digest.digest()


def _checked_shape(head: pb.TensorHead) -> tuple[int, ...]:
    """The shape of a head whose dtype, encoding and sizes fit together; TENSOR_INVALID or MESSAGE_TOO_LARGE otherwise."""
    name = head.name
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise _invalid(name, "has no usable name")
    dtype = _DTYPES.get(head.dtype)
    if dtype is None:
        raise _invalid(name, f"has the unknown dtype {head.dtype[:20]!r}")
    if head.encoding not in ("raw", "bf16", "int8") or (head.encoding != "raw" and dtype != _FLOAT32):
        raise _invalid(name, f"has the encoding {head.encoding[:20]!r} with dtype {head.dtype}")
    if len(head.shape) > MAX_DIMENSIONS:
        raise _invalid(name, f"has {len(head.shape)} dimensions")
    shape = tuple(head.shape)
    # Every dimension is bounded too: numpy multiplies the others even where one of them is 0.
    if max(shape, default=0) > MAX_TENSOR_BYTES or math.prod(max(side, 1) for side in shape) * dtype.itemsize > MAX_TENSOR_BYTES:
        raise HocketError(Code.MESSAGE_TOO_LARGE, f"tensor {name!r} of shape {shape}")
    count = math.prod(shape)
    size = {"raw": count * dtype.itemsize, "bf16": 2 * count, "int8": 4 * _rows_of(shape)[0] + count}[head.encoding]
    if head.size_bytes != size:
        raise _invalid(name, f"of shape {shape} says {head.size_bytes} bytes on the wire instead of {size}")
    return shape


def split_body(heads: Sequence[pb.TensorHead], body: bytes | memoryview) -> list[memoryview]:
    """The body cut into the bytes of each head, without a copy.

    Raises:
        HocketError: TENSOR_INVALID unless the sizes add up to the body exactly and no name comes twice.
    """
    if len(heads) > MAX_TENSORS:
        raise _invalid(heads[0].name, f"is one of {len(heads)} tensors; at most {MAX_TENSORS} may come")
    if len({head.name for head in heads}) != len(heads):
        raise _invalid(heads[0].name, "comes with a name that is given twice")
    view = memoryview(body).cast("B")
    if sum(head.size_bytes for head in heads) != view.nbytes:
        raise HocketError(Code.TENSOR_INVALID, f"{view.nbytes} bytes came for {sum(head.size_bytes for head in heads)}")
    parts: list[memoryview] = []
    start = 0
    for head in heads:
        parts.append(view[start : start + head.size_bytes])
        start += head.size_bytes
    return parts


def decode(head: pb.TensorHead, data: bytes | memoryview, *, own: bool = False) -> np.ndarray:
    """Check a tensor from the wire and give it back as an array of native byte order.

    Args:
        data: exactly the tensor's bytes.
        own: always return writable memory of its own.

    Returns:
        For bf16 and int8, and for raw data that is not aligned: a new, writable array that owns aligned memory. For
        aligned raw data: a read-only view of `data`, unless `own`.

    Raises:
        HocketError: TENSOR_INVALID (sizes, dtype, digest), MESSAGE_TOO_LARGE, NOT_FINITE.
    """
    shape = _checked_shape(head)
    view = memoryview(data).cast("B")
    if view.nbytes != head.size_bytes:
        raise _invalid(head.name, f"came with {view.nbytes} bytes instead of {head.size_bytes}")
    if hashlib.sha256(view).digest() != head.sha256:
        raise _invalid(head.name, "has another digest than its head says")
    if head.encoding == "int8":
        return _decode_int8(head.name, view, *_rows_of(shape)).reshape(shape)
    if head.encoding == "bf16":
        array = _decode_bf16(view, math.prod(shape))
    else:
        array = np.frombuffer(view, _DTYPES[head.dtype])
        if head.dtype == "bool" and array.size and int(array.view(np.uint8).max()) > 1:
            raise _invalid(head.name, "has a bool that is neither 0 nor 1")
        if own or not array.flags.aligned:
            array = array.astype(head.dtype)
        else:
            array.flags.writeable = False
    if head.dtype == "float32" and not _absmax(array) <= _FLOAT32_MAX:
        raise _not_finite(head.name)
    return array.reshape(shape)


def decode_all(heads: Iterable[pb.TensorHead], body: bytes | memoryview, *, own: bool = False) -> dict[str, np.ndarray]:
    """All tensors of a message, by name."""
    listed = list(heads)
    return {head.name: decode(head, part, own=own) for head, part in zip(listed, split_body(listed, body), strict=True)}
