"""Files read as one long vector, whatever the order in which their tensors lie."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.flat_file import FlatFile
from protocol.tensor_files import TensorInfo, info_of, write_tensors


def write_in_order(path: Path, tensors: dict[str, np.ndarray], order: list[str], pad: int = 0) -> None:
    """A valid file whose tensors lie in the given order."""
    header, position = {}, 0
    for name in order:
        array = tensors[name]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors[name].tobytes() for name in order))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.randoms(), st.data())
def test_any_piece_of_any_file_is_what_lies_there(sizes: list[int], random: object, data: st.DataObject) -> None:
    draw = np.random.default_rng(1)
    tensors = {f"t{index}": draw.standard_normal(size).astype(np.float32) for index, size in enumerate(sizes)}
    order = list(tensors)
    random.shuffle(order)
    whole = np.concatenate([tensors[name] for name in sorted(tensors)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        write_in_order(path, tensors, order, data.draw(st.integers(0, 3)))
        with FlatFile(path, info_of(tensors), Code.UPDATE_REFUSED) as flat:
            assert flat.size == whole.size
            start = data.draw(st.integers(0, whole.size))
            stop = data.draw(st.integers(start, whole.size))
            into = np.empty(stop - start, np.float32)
            flat.read(start, into)
            np.testing.assert_array_equal(into, whole[start:stop])
            with pytest.raises(ValueError, match="values from"):
                flat.read(start, np.empty(whole.size - start + 1, np.float32))


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": np.zeros(3, np.float32)})
    for expected in ([TensorInfo("a", "float32", (4,))], [TensorInfo("b", "float32", (3,))], []):
        with pytest.raises(HocketError) as caught:
            FlatFile(path, expected, Code.UPDATE_REFUSED)
        assert caught.value.code is Code.UPDATE_REFUSED
    with pytest.raises(HocketError):
        FlatFile(tmp_path / "none", [], Code.UPDATE_REFUSED)


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": np.arange(100, dtype=np.float32)}
    write_tensors(path, tensors)
    with FlatFile(path, info_of(tensors), Code.UPDATE_REFUSED) as flat:
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(HocketError, match="shorter"):
            flat.read(0, np.empty(100, np.float32))
