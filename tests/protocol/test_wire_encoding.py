"""Varints and protobuf fields: one spelling each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import WireError, iter_fields, put_bytes_field, put_uint_field, put_varint, read_varint


@given(value=st.integers(0, 2**64 - 1), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_varints_go_both_ways(value: int, before: bytes, after: bytes) -> None:
    data = put_varint(value)
    assert read_varint(before + data + after, len(before)) == (value, len(before) + len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x00", b"\xff\x80\x00", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_cut_long_and_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read_varint(data, 0)


def test_numbers_that_do_not_fit_are_a_fault_of_the_caller() -> None:
    for value in (-1, 2**64):
        with pytest.raises(ValueError, match="64"):
            put_varint(value)


@given(fields=st.lists(st.tuples(st.integers(1, 2**20), st.integers(0, 2**64 - 1) | st.binary(max_size=20)), max_size=5))
def test_messages_go_both_ways(fields: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(
        put_bytes_field(number, value) if isinstance(value, bytes) else put_uint_field(number, value) for number, value in fields
    )
    assert list(iter_fields(data)) == fields


@pytest.mark.parametrize("data", [b"\x0d\0\0\0\0", b"\x12\x05abcd", b"\x12", b"\x09" + bytes(8)])
def test_other_wire_types_and_cut_messages_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(iter_fields(data))
