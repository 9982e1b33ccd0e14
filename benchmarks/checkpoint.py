"""How long a training thread stands still for a checkpoint: the background writer, a plain save, torch's own asynchronous save.

One thread takes AdamW steps on a model and saves weights and moments every few steps, in the three ways in turn on one disk.
A way's pause is what its save keeps the training thread from the next step: the copy, and any wait for the save before.
Two further rows are a worker's own training loop, with and without saves of its inner progress (`benchmarks.inner_progress`).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import inner_progress
from benchmarks.result import BenchResult, machine_facts
from common.files import atomic_write, sync_directory
from common.writer import BackgroundWriter
from protocol.tensor_files import file_parts
from tts.config import preset
from tts.optimizer import StageOptimizer
from tts.stages import build_stage

Save = Callable[[int, dict[str, Tensor]], None]


@dataclass(frozen=True)
class CheckpointBench:
    """What is measured.

    Args:
        model: preset, as one stage. saves: of each way and repeat. steps: optimizer steps between two saves.
        repeats: of the three ways in turn; medians over them are reported. threads: of the training.
        buffer: how many whole checkpoints the writer's memory holds.
        inner_steps: of the worker's loop between two saves, each of a forward and a backward pass and an optimizer step.
    """

    model: str = "demo"
    saves: int = 6
    steps: int = 60
    repeats: int = 3
    threads: int = 1
    buffer: int = 2
    inner_steps: int = 5


def _arrays(state: dict[str, Tensor]) -> list[bytes | memoryview]:
    return list(file_parts({name: value.numpy() for name, value in state.items()}))


@contextmanager
def hocket_writer(folder: Path, size_bytes: int, buffer: int) -> Iterator[Save]:
    """Copied into the writer's memory; written by its thread."""
    with BackgroundWriter(buffer * (size_bytes + (2 << 20))) as writer:
        yield lambda number, state: _taken(writer, folder / f"{number % 2}.safetensors", state)


def _taken(writer: BackgroundWriter, path: Path, state: dict[str, Tensor]) -> None:
    writer.save_parts(path, _arrays(state))


@contextmanager
def plain_save(folder: Path, size_bytes: int, buffer: int) -> Iterator[Save]:
    """Written beside the target, synced and renamed by the training thread itself."""
    yield lambda number, state: atomic_write(folder / f"{number % 2}.safetensors", _arrays(state))


@contextmanager
def torch_async_save(folder: Path, size_bytes: int, buffer: int) -> Iterator[Save]:
    """`torch.distributed.checkpoint.async_save`; a save waits for the one before, as its documentation asks."""
    import torch.distributed as dist
    from torch.distributed import checkpoint

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    pending: list[Future[Any]] = []

    def save(number: int, state: dict[str, Tensor]) -> None:
        while pending:
            pending.pop().result()
        target = folder / f"{number % 2}"
        storage = checkpoint.FileSystemWriter(target, sync_files=True, overwrite=True)
        saving = checkpoint.async_save(state, storage_writer=storage)
        pending.append(saving if isinstance(saving, Future) else saving.upload_completion)

    try:
        with warnings.catch_warnings():
            # Writing over the older checkpoint is what the other ways do as well.
            warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
            yield save
        while pending:
            pending.pop().result()
        sync_directory(folder)
    finally:
        dist.destroy_process_group()


Way = Callable[[Path, int, int], AbstractContextManager[Save]]
WAYS: dict[str, Way] = {"writer": hocket_writer, "plain_save": plain_save, "async_save": torch_async_save}


class Training:
    """Weights, gradients and moments of one stage, and steps on them; the gradients are random, once."""

    def __init__(self, model: str) -> None:
        stage = build_stage(preset(model, n_codebooks=8, codebook_size=1024, n_phonemes=100), 0, 1)
        self._parameters = dict(stage.named_parameters())
        self._optimizer = StageOptimizer(stage, weight_decay=0.01, clip_norm=1.0)
        torch.manual_seed(0)
        self._gradients = {name: torch.randn_like(parameter) for name, parameter in self._parameters.items()}
        self.step()
        # The live tensors, as a loop has them: whoever saves must copy what the next step changes.
        self.state = {f"weights.{name}": parameter.detach() for name, parameter in self._parameters.items()}
        self.state |= {f"moments.{name}": value for name, value in self._optimizer.live_state().items()}

    @property
    def size_bytes(self) -> int:
        return sum(value.nbytes for value in self.state.values())

    def step(self) -> None:
        self._optimizer.step({name: gradient.clone() for name, gradient in self._gradients.items()}, 1, 1e-4)


def one_way(way: Way, training: Training, settings: CheckpointBench, folder: Path) -> tuple[list[float], list[float], float]:
    """Pauses and step times in seconds of one way, and the seconds of the whole with everything on disk."""
    pauses: list[float] = []
    steps: list[float] = []
    began = time.perf_counter()
    with way(folder, training.size_bytes, settings.buffer) as save:
        for number in range(settings.saves + 1):
            for _ in range(settings.steps):
                started = time.perf_counter()
                training.step()
                steps.append(time.perf_counter() - started)
            started = time.perf_counter()
            save(number, training.state)
            pauses.append(time.perf_counter() - started)
    # The first save makes buffers, threads and files; what a run meets for hours comes after it.
    return pauses[1:], steps, time.perf_counter() - began


def measure(settings: CheckpointBench, *, folder: Path | None = None, say: Callable[[str], None] = lambda _: None) -> BenchResult:
    """Measure the three ways in turn, `repeats` times.

    Args:
        folder: on the disk that is to be written to; a temporary one by default.
    """
    torch.set_num_threads(settings.threads)
    training = Training(settings.model)
    longest: dict[str, list[float]] = {name: [] for name in WAYS}
    pauses: dict[str, list[float]] = {name: [] for name in WAYS}
    steps: dict[str, list[float]] = {name: [] for name in WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(settings.repeats):
        for name, way in WAYS.items():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                found, taken, whole = one_way(way, training, settings, Path(scratch))
            longest[name].append(max(found))
            pauses[name] += found
            steps[name] += taken
            seconds[name].append(whole)
            say(f"repeat {repeat + 1}, {name}: longest pause {1000 * max(found):.1f} ms")
    result = BenchResult("checkpoint", machine_facts(sorted(os.sched_getaffinity(0))))
    for name in WAYS:
        result.rows.append({
            "row": name,
            "longest_pause_ms": 1000 * statistics.median(longest[name]),
            "median_pause_ms": 1000 * statistics.median(pauses[name]),
            "worst_pause_ms": 1000 * max(longest[name]),
            "median_step_ms": 1000 * statistics.median(steps[name]),
            "seconds": statistics.median(seconds[name]),
            "size_mib": training.size_bytes / 2**20,
        })  # fmt: skip
    result.rows += inner_progress.rows(settings.model, saves=settings.saves, every=settings.inner_steps, folder=folder)
    middle = {name: statistics.median(longest[name]) for name in WAYS}
    result.ratios = {
        "stall_vs_plain_save": middle["writer"] / middle["plain_save"],
        "stall_vs_async_save": middle["writer"] / middle["async_save"],
    }
    return result
