"""The few bits of protobuf encoding that have to be canonical to the byte: libp2p keys and UnixFS nodes.

Generated code does not promise field order or reject other spellings of the same message; where bytes are hashed, one
spelling must be the only one.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT = 0
_LENGTH_DELIMITED = 2
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """Bytes that are not what the reader was promised; each caller turns it into its own numbered error."""


def put_varint(value: int) -> bytes:
    """Unsigned LEB128 of `value`, 0 <= value < 2**64."""
    if not 0 <= value < 2**64:
        raise ValueError(f"{value} does not fit 64 unsigned bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The unsigned LEB128 at `position` and the position after it; WireError when cut, too long or not minimal."""
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if position >= len(data):
            raise WireError("it ends in the middle of a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * count)
        if not byte & 0x80:
            if (count and not byte) or value >= 2**64:
                raise WireError("a number is not written in its shortest form")
            return value, position
    raise WireError("a number is too long")


def put_uint_field(number: int, value: int) -> bytes:
    """A varint field of a protobuf message."""
    return put_varint(number << 3 | _VARINT) + put_varint(value)


def put_bytes_field(number: int, value: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    return put_varint(number << 3 | _LENGTH_DELIMITED) + put_varint(len(value)) + value


def iter_fields(data: bytes | memoryview) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message in wire order, as (number, value); WireError for anything but varints and bytes."""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = read_varint(data, position)
            yield number, value
        elif kind == _LENGTH_DELIMITED:
            size, position = read_varint(data, position)
            if size > len(data) - position:
                raise WireError("a field is longer than its message")
            yield number, bytes(data[position : position + size])
            position += size
        else:
            raise WireError(f"field {number} has an unknown wire type")
