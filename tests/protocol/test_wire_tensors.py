"""Tensors on the wire: exact or within their bound, and every lie of a head refused."""

from __future__ import annotations

import hashlib
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.tensors import ENCODINGS, MAX_TENSOR_BYTES, MAX_TENSORS, decode, decode_all, encode, encode_all, split_body

FLOAT_MAX = float(np.finfo(np.float32).max)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
INTEGERS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


def floats(largest: float) -> st.SearchStrategy[np.ndarray]:
    bound = float(np.float32(largest))
    return hnp.arrays(np.float32, SHAPES, elements=st.floats(-bound, bound, width=32))


def head_of(**changes: Any) -> tuple[pb.TensorHead, bytes]:
    """A valid head of float32 [2, 3] with some fields changed."""
    data = np.arange(6, dtype=np.float32).tobytes()
    fields: dict[str, Any] = {
        "name": "hidden",
        "dtype": "float32",
        "shape": [2, 3],
        "encoding": "raw",
        "size_bytes": 24,
        "sha256": hashlib.sha256(data).digest(),
    }
    return pb.TensorHead(**{**fields, **changes}), data


def refused(head: pb.TensorHead, data: bytes) -> Code:
    with pytest.raises(HocketError) as caught:
        decode(head, data)
    return caught.value.code


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32)


@given(array=floats(FLOAT_MAX))
def test_fp32_comes_back_bit_for_bit(array: np.ndarray) -> None:
    encoded = encode("hidden", array, "fp32")
    back = decode(encoded.head, bytes(encoded.data))
    assert back.dtype == np.float32 and back.shape == array.shape
    assert np.array_equal(bits(back), bits(array))


@given(array=floats(3.38e38))
def test_bf16_is_the_nearest_bfloat16(array: np.ndarray) -> None:
    encoded = encode("hidden", array, "bf16")
    assert encoded.head.size_bytes == 2 * array.size
    back = decode(encoded.head, encoded.data)
    assert back.shape == array.shape and np.all(bits(back) & 0xFFFF == 0)
    error = np.abs(back.astype(np.float64) - array)
    assert np.all(error <= np.maximum(np.abs(array).astype(np.float64) * 2.0**-8, 2.0**-134))
    # Nearest: neither neighbour in bfloat16 is closer, and a tie went to the even one.
    for step in (-0x10000, 0x10000):
        neighbour = (bits(back).astype(np.int64) + step).clip(0, 2**32 - 1).astype(np.uint32).view(np.float32)
        other = np.abs(neighbour.astype(np.float64) - array)
        usable = np.isfinite(neighbour)
        assert np.all((error < other) | ~usable | ((error == other) & (bits(back) & 0x10000 == 0)))


def test_bf16_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    words = np.random.default_rng(5).integers(0, 2**32, 200_000, dtype=np.uint32)
    array = words.view(np.float32)
    array = array[np.isfinite(array) & (np.abs(array) < 3.38e38)]
    encoded = encode("hidden", array, "bf16")
    ours = decode(encoded.head, encoded.data)
    theirs = torch.from_numpy(array).to(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(bits(ours), bits(theirs))


@given(array=floats(3.0e38))
def test_int8_errs_by_at_most_half_a_scale(array: np.ndarray) -> None:
    encoded = encode("hidden", array, "int8")
    back = decode(encoded.head, encoded.data)
    assert back.shape == array.shape
    if not array.size:
        return
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1).astype(np.float64)
    scale = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / 127, float(np.finfo(np.float32).tiny))
    error = np.abs(back.reshape(rows.shape).astype(np.float64) - rows)
    # The slack is the rounding of scale, quotient and product to float32, relative to up to 127 scales.
    assert np.all(error <= scale * (0.5 + 127 * 2.0**-22))
    assert encoded.head.size_bytes == 4 * len(rows) + array.size


def test_the_bytes_of_each_encoding_are_pinned() -> None:
    """Two versions of the software must read each other's tensors; the values are worked out by hand."""
    array = np.array([[1.0, -2.0, 0.3984375], [0.0, 0.0, 0.0]], np.float32)
    tiny = "00008000"
    wanted = {
        "fp32": "0000803f000000c00000cc3e" + "00000000" * 3,
        "bf16": "803f00c0cc3e" + "0000" * 3,
        # 2 / 127 = 0x3c810204; 1, -2 and 0.3984375 are 63.5 -> 64, -127 and 25.3 -> 25 scales.
        "int8": "0402813c" + tiny + "408119" + "000000",
    }
    for encoding, text in wanted.items():
        encoded = encode("hidden", array, encoding)
        assert bytes(encoded.data).hex() == text
        assert encoded.head.sha256 == hashlib.sha256(bytes.fromhex(text)).digest()
        assert (encoded.head.dtype, list(encoded.head.shape)) == ("float32", [2, 3])
        assert encoded.head.encoding == {"fp32": "raw"}.get(encoding, encoding)


def test_int8_keeps_zero_rows_zero_and_rows_apart() -> None:
    array = np.array([[0, 0, 0], [1e-30, 0, -1e-30], [1e30, 1, -1e30], [1e-45, 0, 0]], np.float32)
    encoded = encode("hidden", array, "int8")
    back = decode(encoded.head, encoded.data)
    assert np.array_equal(back[0], np.zeros(3, np.float32))
    np.testing.assert_allclose(back[1:3], array[1:3], rtol=1e-6, atol=1)
    np.testing.assert_allclose(back[1], array[1], rtol=1e-6)
    assert back[3, 0] < 1e-40
    # Laid out as the module says: scales, then values.
    assert np.array_equal(np.frombuffer(encoded.data, np.int8, 12, 16).reshape(4, 3)[1:3], [[127, 0, -127], [127, 0, -127]])


@given(data=st.data(), encoding=st.sampled_from(ENCODINGS), own=st.booleans())
def test_integers_are_exact_whatever_the_encoding(data: st.DataObject, encoding: str, own: bool) -> None:
    array = data.draw(hnp.arrays(data.draw(st.sampled_from(INTEGERS)), SHAPES))
    encoded = encode("codes", array, encoding)
    assert encoded.head.encoding == "raw"
    back = decode(encoded.head, encoded.data, own=own)
    assert back.dtype == array.dtype and back.shape == array.shape and np.array_equal(back, array)
    assert back.flags.writeable is own or not back.size


def test_big_endian_and_strided_arrays_travel_as_their_values() -> None:
    array = np.arange(24, dtype=">f4").reshape(4, 6)[::2, ::3]
    for encoding in ENCODINGS:
        encoded = encode("hidden", array, encoding)
        np.testing.assert_allclose(decode(encoded.head, encoded.data), array, atol=0.1)


def test_raw_is_not_copied_on_either_side() -> None:
    array = np.arange(1024, dtype=np.float32)
    encoded = encode("hidden", array, "fp32")
    assert np.shares_memory(np.frombuffer(encoded.data, np.uint8), array)
    body = bytearray(encoded.data)
    back = decode(encoded.head, body)
    assert np.shares_memory(back, np.frombuffer(body, np.uint8)) and not back.flags.writeable
    mine = decode(encoded.head, body, own=True)
    assert mine.flags.writeable and not np.shares_memory(mine, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_unaligned_bytes_give_aligned_memory(encoding: str) -> None:
    array = np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 6)
    encoded = encode("hidden", array, encoding)
    for offset in range(4):
        shifted = bytearray(offset) + bytes(encoded.data)
        back = decode(encoded.head, memoryview(shifted)[offset:])
        assert back.flags.aligned and back.ctypes.data % 4 == 0
        np.testing.assert_allclose(back, array, atol=0.01)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -np.nan])
def test_values_that_are_not_finite_are_refused_at_the_sender(encoding: str, value: float) -> None:
    array = np.zeros((3, 70), np.float32)
    array[1, 33] = value
    with pytest.raises(HocketError) as caught:
        encode("hidden", array, encoding)
    assert caught.value.code is Code.NOT_FINITE


def test_values_too_large_for_the_encoding_are_refused_and_the_largest_are_not() -> None:
    for encoding, fits in (("bf16", 3.396e38), ("int8", 3.37e38)):
        encoded = encode("hidden", np.array([fits, -fits, 1], np.float32), encoding)
        assert np.isfinite(decode(encoded.head, encoded.data)).all()
        with pytest.raises(HocketError) as caught:
            encode("hidden", np.array([FLOAT_MAX], np.float32), encoding)
        assert caught.value.code is Code.NOT_FINITE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_at_the_receiver(value: float) -> None:
    raw = np.array([[1, 2, 3], [4, value, 6]], np.float32)
    half = np.ascontiguousarray(raw.view(np.uint16).reshape(-1)[1::2])
    scales = np.array([1, value], np.float32)
    for encoding, data in (("raw", raw.tobytes()), ("bf16", half.tobytes()), ("int8", scales.tobytes() + b"\1" * 6)):
        head, _ = head_of(encoding=encoding, size_bytes=len(data), sha256=hashlib.sha256(data).digest())
        assert refused(head, data) is Code.NOT_FINITE


@pytest.mark.parametrize("scale", [-1.0, -1e-30, FLOAT_MAX])
def test_scales_that_no_sender_makes_are_refused(scale: float) -> None:
    data = np.array([1, scale], np.float32).tobytes() + b"\x80" * 6
    head, _ = head_of(encoding="int8", size_bytes=len(data), sha256=hashlib.sha256(data).digest())
    assert refused(head, data) is Code.NOT_FINITE


@given(scale=hnp.arrays(np.uint32, 2), values=st.binary(min_size=6, max_size=6))
def test_no_int8_bytes_decode_to_anything_that_is_not_finite(scale: np.ndarray, values: bytes) -> None:
    data = scale.tobytes() + values
    head, _ = head_of(encoding="int8", size_bytes=len(data), sha256=hashlib.sha256(data).digest())
    try:
        assert np.isfinite(decode(head, data)).all()
    except HocketError as error:
        assert error.code is Code.NOT_FINITE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"size_bytes": 23}, Code.TENSOR_INVALID),
        ({"size_bytes": 2**63}, Code.TENSOR_INVALID),
        ({"shape": [2, 4]}, Code.TENSOR_INVALID),
        ({"shape": [3, 3], "size_bytes": 36}, Code.TENSOR_INVALID),
        ({"shape": [2**32, 2**32]}, Code.MESSAGE_TOO_LARGE),
        ({"shape": [2**63, 2]}, Code.MESSAGE_TOO_LARGE),
        ({"shape": [0, 2**40]}, Code.MESSAGE_TOO_LARGE),
        ({"shape": [0, 2**27, 2**27], "size_bytes": 0}, Code.MESSAGE_TOO_LARGE),
        ({"shape": [MAX_TENSOR_BYTES // 4 + 1], "size_bytes": MAX_TENSOR_BYTES + 4}, Code.MESSAGE_TOO_LARGE),
        ({"shape": [1] * 7 + [2, 3]}, Code.TENSOR_INVALID),
        ({"dtype": "float64"}, Code.TENSOR_INVALID),
        ({"dtype": "object"}, Code.TENSOR_INVALID),
        ({"dtype": ""}, Code.TENSOR_INVALID),
        ({"dtype": "int32", "encoding": "bf16"}, Code.TENSOR_INVALID),
        ({"encoding": "fp32"}, Code.TENSOR_INVALID),
        ({"encoding": "zstd"}, Code.TENSOR_INVALID),
        ({"encoding": "bf16"}, Code.TENSOR_INVALID),
        ({"encoding": "int8"}, Code.TENSOR_INVALID),
        ({"sha256": b"\0" * 32}, Code.TENSOR_INVALID),
        ({"sha256": b""}, Code.TENSOR_INVALID),
        ({"name": ""}, Code.TENSOR_INVALID),
        ({"name": "x" * 65}, Code.TENSOR_INVALID),
    ],
)
def test_each_lie_of_a_head_is_refused(changes: dict[str, Any], code: Code) -> None:
    assert decode(*head_of()).shape == (2, 3)
    assert refused(*head_of(**changes)) is code


def test_a_bool_that_is_neither_is_refused() -> None:
    data = b"\0\1\2"
    head, _ = head_of(dtype="bool", shape=[3], size_bytes=3, sha256=hashlib.sha256(data).digest())
    assert refused(head, data) is Code.TENSOR_INVALID


def test_cut_and_long_data_are_refused() -> None:
    head, data = head_of()
    assert refused(head, data[:-1]) is Code.TENSOR_INVALID
    assert refused(head, data + b"\0") is Code.TENSOR_INVALID
    assert refused(head, b"") is Code.TENSOR_INVALID


@settings(max_examples=300)
@given(
    shape=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 100), max_size=10),
    size_bytes=st.integers(0, 2**64 - 1) | st.integers(0, 10_000),
    dtype=st.sampled_from(["float32", "bool", "int64", "complex64", "V8"]),
    encoding=st.sampled_from(["raw", "bf16", "int8", ""]),
    data=st.binary(max_size=64),
)
def test_no_head_makes_the_receiver_allocate_more_than_came(
    shape: list[int], size_bytes: int, dtype: str, encoding: str, data: bytes
) -> None:
    head = pb.TensorHead(
        name="x", shape=shape, size_bytes=size_bytes, dtype=dtype, encoding=encoding, sha256=hashlib.sha256(data).digest()
    )
    tracemalloc.start()
    try:
        array = decode(head, data)
        assert array.shape == tuple(shape) and array.nbytes <= 4 * len(data)
    except HocketError as error:
        assert error.code in (Code.TENSOR_INVALID, Code.MESSAGE_TOO_LARGE, Code.NOT_FINITE)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 200_000


def test_a_message_of_several_tensors() -> None:
    arrays = {
        "hidden": np.ones((2, 5, 4), np.float32),
        "codes": np.arange(12, dtype=np.uint16).reshape(2, 2, 3),
        "none": np.empty(0, np.int32),
    }
    heads, parts = encode_all(arrays, "int8")
    assert [head.name for head in heads] == list(arrays)
    body = b"".join(parts)
    back = decode_all(heads, body)
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
    assert [len(part) for part in split_body(heads, memoryview(body))] == [head.size_bytes for head in heads]


def test_bodies_that_do_not_add_up_are_refused() -> None:
    heads, parts = encode_all({"a": np.ones(4, np.float32), "b": np.ones(4, np.uint8)}, "fp32")
    body = b"".join(parts)
    for wrong_heads, wrong_body in (
        (heads, body[:-1]),
        (heads, body + b"\0"),
        (heads[:1], body),
        ([heads[0], heads[0]], body[:16] * 2),
        ([], body),
        ([pb.TensorHead(name=str(number)) for number in range(MAX_TENSORS + 1)], b""),
    ):
        with pytest.raises(HocketError) as caught:
            split_body(wrong_heads, wrong_body)
        assert caught.value.code is Code.TENSOR_INVALID
    assert split_body([], b"") == []


@pytest.mark.parametrize(
    ("name", "array", "encoding"),
    [
        ("x", np.zeros(2, np.float64), "fp32"),
        ("x", np.zeros(2, np.complex64), "fp32"),
        ("x", np.array(["a"]), "fp32"),
        ("x", np.zeros((1,) * 9, np.float32), "fp32"),
        ("", np.zeros(2, np.float32), "fp32"),
        ("x", np.zeros(2, np.float32), "raw"),
    ],
)
def test_what_is_not_of_the_format_is_a_fault_of_the_caller(name: str, array: np.ndarray, encoding: str) -> None:
    with pytest.raises(ValueError):
        encode(name, array, encoding)
