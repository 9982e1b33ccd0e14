"""One rule over the files of one number of updates, in a process of its own.

    python -m benchmarks.aggregation_row '{"rule": "median", "n": 16, "values": 10000000, "folder": F}'

Prints one JSON line: the seconds from the files to the aggregate in memory, what the process's memory grew by, some values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.competitors import answer_beside_flower
from common.errors import Code
from coordinator.aggregate import FileUpdates
from coordinator.rules.pipeline import Aggregation
from coordinator.rules.plan import Plan
from coordinator.stage_writer import StageWriter
from protocol.flat_file import FlatFile
from protocol.tensor_files import TensorInfo
from simulations.usage import peak_bytes

TENSORS = 32
SHARE = 0.2
SAMPLED = 1000
Read = Callable[[], np.ndarray]


def tensors_of(values: int) -> list[TensorInfo]:
    """Tensors of one size, and what is left over."""
    each = values // TENSORS
    return [
        TensorInfo(f"layer.{index:02}.weight", "float32", (each + (values % TENSORS if index == TENSORS - 1 else 0),))
        for index in range(TENSORS)
    ]


def path_of(folder: Path, index: int) -> Path:
    return folder / f"update-{index:02}.safetensors"


def write_updates(folder: Path, n: int, values: int) -> None:
    """Files of normal values, another draw for each."""
    tensors = tensors_of(values)
    for index in range(n):
        draw = np.random.default_rng(index)
        with StageWriter(path_of(folder, index), tensors) as writer:
            for info in tensors:
                writer.write(draw.standard_normal(info.shape[0], np.float32))
            writer.finish()


def opened(folder: Path, index: int, values: int) -> FlatFile:
    """The file of one update, checked."""
    return FlatFile(path_of(folder, index), tensors_of(values), Code.UPDATE_REFUSED)


def ours(rule: str, folder: Path, n: int, values: int) -> Read:
    """One of our rules, without the clip that comes before it in a run, so that both do the same work."""
    f = int(SHARE * n)
    plan = Plan(rule, n, (n - 1) // 2 if rule == "median" else f, f)

    def read() -> np.ndarray:
        out = np.empty(values, np.float32)
        with ExitStack() as stack:
            files = [stack.enter_context(opened(folder, index, values)) for index in range(n)]
            position = 0
            for part in Aggregation(FileUpdates(files), plan, [1.0] * n, b"").chunks():
                out[position : position + part.size] = part
                position += part.size
        return out

    return read


def plain_pass(folder: Path, n: int, values: int) -> Read:
    """The same bytes, read as we read them in as many threads, and added up: what no rule can do without."""
    plan = Plan("mean", n, 0, 0)

    def read() -> np.ndarray:
        with ExitStack() as stack:
            files = [stack.enter_context(opened(folder, index, values)) for index in range(n)]
            total = 0.0
            for part in Aggregation(FileUpdates(files), plan, [1.0] * n, b"").chunks():
                total += float(part[0])
        return np.full(SAMPLED, total, np.float32)

    return read


def flower(rule: str, folder: Path, n: int) -> Read:
    """Flower's function of the name, on arrays that are loaded from the files by the safetensors library."""
    from flwr.server.strategy.aggregate import aggregate, aggregate_krum, aggregate_median, aggregate_trimmed_avg
    from safetensors.numpy import load_file

    functions: dict[str, Callable[[list[tuple[list[np.ndarray], int]]], Any]] = {
        "flower_mean": aggregate,
        "flower_median": aggregate_median,
        "flower_trimmed": lambda results: aggregate_trimmed_avg(results, SHARE),
        "flower_krum": lambda results: aggregate_krum(results, int(SHARE * n), 0),
    }

    def read() -> np.ndarray:
        results: list[tuple[list[np.ndarray], int]] = []
        for index in range(n):
            tensors = load_file(path_of(folder, index))
            results.append(([tensors[name] for name in sorted(tensors)], 1))
        return np.concatenate([np.ravel(layer) for layer in functions[rule](results)])

    return read


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Measure what the order says."""
    folder, n, values, rule = Path(order["folder"]), int(order["n"]), int(order["values"]), str(order["rule"])
    if rule.startswith("flower"):
        read = flower(rule, folder, n)
    else:
        read = plain_pass(folder, n, values) if rule == "pass" else ours(rule, folder, n, values)
    before = peak_bytes()
    started = time.perf_counter()
    found = read()
    seconds = time.perf_counter() - started
    grown = peak_bytes() - before
    sample = found[:: max(1, found.size // SAMPLED)]
    return {"seconds": seconds, "grown_bytes": grown, "sample": [float(value) for value in sample]}


if __name__ == "__main__":
    answer_beside_flower(run)
