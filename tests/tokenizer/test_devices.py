"""Devices, their memory, and batches that fit it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.devices import (
    UNLIMITED,
    _group_free_bytes,
    available_devices,
    batch_size_for,
    check_device,
    free_bytes,
    is_out_of_memory,
    run_in_halves,
)


@given(st.integers(0, 200), st.integers(1, 64))
def test_batches_that_do_not_fit_are_halved_and_nothing_is_lost(items: int, fits: int) -> None:
    tried: list[int] = []

    def run(part: list[int]) -> list[int]:
        tried.append(len(part))
        if len(part) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [2 * item for item in part]

    assert run_in_halves(list(range(items)), run, is_out_of_memory=is_out_of_memory) == [2 * n for n in range(items)]
    failed = [size for size in tried if size > fits]
    assert failed == tried[: len(failed)]  # what did not fit once is not tried again


def test_one_item_that_does_not_fit_and_other_errors_go_through() -> None:
    def run(part: list[int]) -> list[int]:
        raise torch.OutOfMemoryError("out of memory") if 3 in part else ValueError("bad")

    with pytest.raises(torch.OutOfMemoryError):
        run_in_halves([3, 4], run, is_out_of_memory=is_out_of_memory)
    with pytest.raises(ValueError, match="bad"):
        run_in_halves([1], run, is_out_of_memory=is_out_of_memory)


def test_ways_to_say_that_memory_ran_out() -> None:
    for error in (
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        torch.OutOfMemoryError(),
    ):
        assert is_out_of_memory(error)
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied")) and not is_out_of_memory(ValueError("out of memory"))


def test_torch_says_so_on_this_machine() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 45), st.integers(1, 5000))
def test_batches_fit_a_share_of_the_memory(item: int, free: int, at_most: int) -> None:
    size = batch_size_for(item, free, share=0.5, at_most=at_most)
    assert 1 <= size <= at_most
    assert size == 1 or size * item <= free // 2
    assert size == at_most or (size + 1) * item > free / 2 - 1


def test_devices_here() -> None:
    devices = available_devices()
    assert devices[-1] == "cpu" and check_device("cpu") == "cpu"
    assert all(free_bytes(device) > 1 << 20 for device in devices)
    with pytest.raises(HocketError) as caught:
        check_device("cuda:99")
    assert caught.value.code is Code.OPTION_INVALID and "cpu" in str(caught.value)


def test_control_groups_bound_the_memory(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    assert _group_free_bytes(tmp_path, own) == [UNLIMITED]
    (inner / "memory.max").write_text("max\n")
    for name, text in (
        ("memory.max", "1000000\n"),
        ("memory.current", "300000\n"),
        ("memory.stat", "anon 5\ninactive_file 1000\n"),
    ):
        (tmp_path / "a" / name).write_text(text)
    assert min(_group_free_bytes(tmp_path, own)) == 701000
