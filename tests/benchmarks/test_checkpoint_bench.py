"""The checkpoint benchmark: each way saves what the training had at that step, and the ratios are those of the rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.checkpoint import CheckpointBench, Training, Way, hocket_writer, measure, plain_save, torch_async_save
from protocol.tensor_files import read_tensors


@pytest.fixture(scope="module")
def training() -> Training:
    return Training("test")


@pytest.mark.parametrize("way", [hocket_writer, plain_save])
def test_a_saved_file_is_the_state_at_the_save(way: Way, training: Training, tmp_path: Path) -> None:
    with way(tmp_path, training.size_bytes, 2) as save:
        kept = {name: value.clone() for name, value in training.state.items()}
        save(0, training.state)
        training.step()
    saved = read_tensors(tmp_path / "0.safetensors")
    assert saved.keys() == kept.keys()
    assert all(torch.equal(torch.from_numpy(saved[name]), kept[name]) for name in kept)
    assert not all(torch.equal(kept[name], training.state[name]) for name in kept), "the step changed what was saved"


def test_the_other_way_writes_its_files(training: Training, tmp_path: Path) -> None:
    with torch_async_save(tmp_path, training.size_bytes, 2) as save:
        save(0, training.state)
        save(1, training.state)
    for name in ("0", "1"):
        assert sum(path.stat().st_size for path in (tmp_path / name).glob("*.distcp")) >= training.size_bytes


def test_ratios_are_those_of_the_rows() -> None:
    result = measure(CheckpointBench(model="test", saves=2, steps=1, repeats=1, inner_steps=1))
    longest = {row["row"]: row["longest_pause_ms"] for row in result.rows}
    assert longest.pop("worker_unsaved") == 0.0
    assert set(longest) == {"writer", "plain_save", "async_save", "worker"} and all(value > 0 for value in longest.values())
    worker = next(row for row in result.rows if row["row"] == "worker")
    assert worker["saves"] >= 1 and worker["median_step_ms"] > 0
    assert result.ratios["stall_vs_plain_save"] == pytest.approx(longest["writer"] / longest["plain_save"])
    assert result.ratios["stall_vs_async_save"] == pytest.approx(longest["writer"] / longest["async_save"])
