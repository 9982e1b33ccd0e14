"""What a Parquet file says of its columns, read from its footer with every size checked. Pure but for reading the footer.

pyarrow tells the same, but where a footer is damaged (a histogram of the wrong size, say) its column accessors end the process
instead of raising, and no caller can catch that. Reading rows through it is safe: there the library catches its own exceptions.

Sources: the Parquet format (`parquet.thrift`: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData) and Thrift's compact protocol.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"PAR1"
MAX_FOOTER_BYTES = 16 * 2**20
MAX_VALUES = 1_000_000  # of a footer: one of 256 row groups of a shard has some 130,000
MAX_DEPTH = 16
DICTIONARY_ENCODINGS = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a row group.

    Args:
        path: its place in the schema, joined by points. n_values: how many it holds.
        uncompressed_bytes: of its pages. has_dictionary: whether its values may be places in a dictionary.
    """

    path: str
    n_values: int
    uncompressed_bytes: int
    has_dictionary: bool


def read_footer(source: bytes | memoryview | Path) -> list[list[ColumnFacts]]:
    """The columns of each row group of a file.

    Args:
        source: the bytes of a file, or its path, of which only the end is read.

    Raises:
        ValueError: where it is no footer of a Parquet file. OSError: where the file cannot be read.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            length = _footer_length(file.read(8), size)
            file.seek(size - 8 - length)
            return parse_footer(file.read(length))
    length = _footer_length(bytes(source[-8:]), len(source))
    return parse_footer(bytes(source[len(source) - 8 - length : len(source) - 8]))


def _footer_length(tail: bytes, size: int) -> int:
    length = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != MAGIC or length > min(MAX_FOOTER_BYTES, size - 8):
        raise ValueError("it does not end as a Parquet file does")
    return length


def parse_footer(footer: bytes) -> list[list[ColumnFacts]]:
    """The columns of each row group, of a file's metadata; ValueError where it is none."""
    try:
        groups = _Reader(footer).struct(0).get(4, [])
        return [[_column(chunk[3]) for chunk in group[1]] for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer lacks what every footer has") from error


def _column(about: dict[int, Any]) -> ColumnFacts:
    counts = (about[5], about[6])
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError("a column of its footer has a size below 0")
    return ColumnFacts(
        path=b".".join(about[3]).decode("utf-8"),
        n_values=counts[0],
        uncompressed_bytes=counts[1],
        has_dictionary=11 in about or any(encoding in DICTIONARY_ENCODINGS for encoding in about[2]),
    )


class _Reader:
    """Values of Thrift's compact protocol, out of bytes that anyone may have written; IndexError beyond their end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._left = data, 0, MAX_VALUES

    def struct(self, depth: int) -> dict[int, Any]:
        """Fields by their ids."""
        fields: dict[int, Any] = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise ValueError("its footer has too many values")
        if kind in (_TRUE, _FALSE, _BYTE):  # a truth value in a list is a byte of its own
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _UUID:
            return self._bytes(16)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            head = self._byte()
            count = self._unsigned() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(count)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"its footer has a value of the unknown type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) != count:
            raise IndexError("beyond the end")
        self._at += count
        return found

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("its footer has a number without an end")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
