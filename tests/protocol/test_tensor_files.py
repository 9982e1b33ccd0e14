"""safetensors files: equal bytes for equal tensors, readable by the library, and nothing unexpected read."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.errors import Code, HocketError
from protocol.tensor_files import MAX_HEADER_BYTES, TensorInfo, file_parts, info_of, read_checked, read_tensors, write_tensors

TENSORS = {
    "b.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a.bias": np.array([1.5], np.float64),
    "codes": np.arange(5, dtype=np.uint16),
    "flag": np.array([True, False]),
    "empty": np.empty((0, 7), np.float32),
    "scalar": np.array(3, np.int64),
}
INFO = info_of(TENSORS)


def raw_file(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    tensors=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        hnp.arrays(
            st.sampled_from(["float32", "float64", "float16", "int8", "uint16", "int64", "bool"]),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        ),
        max_size=5,
    )
)
def test_files_go_both_ways_and_the_library_reads_the_same(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "file.safetensors"
    write_tensors(path, tensors)
    for back in (read_tensors(path), library.load_file(path), read_checked(path, info_of(tensors), finite=False)):
        assert back.keys() == tensors.keys()
        for name, array in tensors.items():
            assert back[name].dtype == array.dtype and back[name].shape == array.shape
            assert back[name].tobytes() == array.tobytes()


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "file.safetensors"
    library.save_file(TENSORS, path, metadata={"format": "np"})
    back = read_checked(path, INFO)
    assert all(np.array_equal(back[name], TENSORS[name]) for name in TENSORS)


def test_equal_tensors_give_equal_bytes_whatever_their_order_and_layout() -> None:
    shuffled = {name: np.array(TENSORS[name], order="F") for name in reversed(TENSORS)}
    assert b"".join(file_parts(TENSORS)) == b"".join(file_parts(shuffled))


def test_read_arrays_are_writable_and_in_the_order_asked_for(tmp_path: Path) -> None:
    write_tensors(tmp_path / "f", TENSORS)
    back = read_checked(tmp_path / "f", INFO[::-1])
    assert list(back) == [info.name for info in INFO[::-1]]
    back["b.weight"][0, 0] = 9


def test_mapped_arrays_are_read_only_and_take_no_memory(tmp_path: Path) -> None:
    write_tensors(tmp_path / "f", {"large": np.ones(2_000_000, np.float32), **TENSORS})
    expected = [*INFO, TensorInfo("large", "float32", (2_000_000,))]
    tracemalloc.start()
    back = read_checked(tmp_path / "f", expected, mapped=True)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_500_000
    assert float(back["large"].sum()) == 2_000_000 and not back["large"].flags.writeable
    assert np.array_equal(back["empty"], TENSORS["empty"]) and np.array_equal(back["b.weight"], TENSORS["b.weight"])


@pytest.mark.parametrize(
    "expected",
    [
        INFO[1:],
        [*INFO, TensorInfo("more", "float32", (1,))],
        [TensorInfo("b.weight", "float32", (4, 3)), *[info for info in INFO if info.name != "b.weight"]],
        [TensorInfo("b.weight", "int32", (3, 4)), *[info for info in INFO if info.name != "b.weight"]],
        [],
    ],
)
def test_another_file_than_the_expected_is_refused(expected: list[TensorInfo], tmp_path: Path) -> None:
    write_tensors(tmp_path / "f", TENSORS)
    with pytest.raises(HocketError) as caught:
        read_checked(tmp_path / "f", expected, code=Code.UPDATE_REFUSED)
    assert caught.value.code is Code.UPDATE_REFUSED


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float, mapped: bool, tmp_path: Path) -> None:
    array = np.zeros(600_000, np.float32)
    array[-1] = value
    write_tensors(tmp_path / "f", {"x": array})
    with pytest.raises(HocketError) as caught:
        read_checked(tmp_path / "f", [TensorInfo("x", "float32", (600_000,))], mapped=mapped)
    assert caught.value.code is Code.NOT_FINITE
    assert (
        read_checked(tmp_path / "f", [TensorInfo("x", "float32", (600_000,))], finite=False, mapped=mapped)["x"].size == 600_000
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        raw_file({"x": entry()}, bytes(8), length=2**63),
        raw_file({"x": entry()}, bytes(8), length=10_000),
        raw_file(b"{", bytes(8)),
        raw_file(b"[" * 100_000),
        raw_file([1]),
        raw_file({"x": entry()}, bytes(7)),
        raw_file({"x": entry()}, bytes(9)),
        raw_file({"x": entry(data_offsets=[0, 12])}, bytes(12)),
        raw_file({"x": entry(data_offsets=[8, 0])}, bytes(8)),
        raw_file({"x": entry(data_offsets=[4, 12])}, bytes(12)),
        raw_file({"x": entry(data_offsets=[0])}, bytes(8)),
        raw_file({"x": entry(), "y": entry()}, bytes(8)),
        raw_file({"x": entry(), "y": entry(data_offsets=[12, 20])}, bytes(20)),
        raw_file({"x": entry(shape=[-2])}, bytes(8)),
        raw_file({"x": entry(shape=[2**62, 4])}, bytes(8)),
        raw_file({"x": entry(shape=[True, 2])}, bytes(8)),
        raw_file({"x": entry(shape=[2.0])}, bytes(8)),
        raw_file({"x": entry(shape="2")}, bytes(8)),
        raw_file({"x": entry(shape=[1] * 40 + [2])}, bytes(8)),
        raw_file({"x": entry(dtype="BF16", shape=[4])}, bytes(8)),
        raw_file({"x": entry(dtype=["F32"])}, bytes(8)),
        raw_file({"x": entry(extra=1)}, bytes(8)),
        raw_file({"x": None}, bytes(8)),
        raw_file(
            b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            bytes(8),
        ),
        raw_file(b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)),
        raw_file(b"\xff\xfe{}", b""),
        raw_file(b"{" + b" " * MAX_HEADER_BYTES + b"}"),
    ],
)
def test_damaged_and_lying_files_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(raw_file({"x": entry()}, bytes(8)))
    assert read_tensors(path)["x"].shape == (2,)
    path.write_bytes(data)
    tracemalloc.start()
    for read in (read_tensors, lambda path: read_checked(path, [TensorInfo("x", "float32", (2,))])):
        with pytest.raises(HocketError) as caught:
            read(path)
        assert caught.value.code is Code.CHECKPOINT_INVALID
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 3_000_000


def test_a_missing_file_is_a_numbered_error_and_a_strange_dtype_a_fault_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(HocketError) as caught:
        read_tensors(tmp_path / "absent")
    assert caught.value.code is Code.CHECKPOINT_INVALID
    with pytest.raises(ValueError, match="cannot be in a file"):
        write_tensors(tmp_path / "f", {"x": np.zeros(2, np.complex64)})
    assert list(tmp_path.iterdir()) == []
