"""One row of the pipeline benchmark, run as a process of its own: single-process training.

    python -m benchmarks.single_process '{"workload": {...}, "threads": 2}'

Prints one JSON line {"seconds": [of each inner step], "losses": [...]}.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.workload import Workload, inner_step
from tts.reference import InnerSettings, ReferenceTrainer


def main() -> None:
    """Train, and time every inner step."""
    order = json.loads(sys.argv[1])
    work = Workload(**order["workload"])
    torch.set_num_threads(int(order["threads"]))
    steps = [inner_step(work, step) for step in range(work.steps)]
    trainer = ReferenceTrainer(work.config(), 1, InnerSettings(seed=work.seed), seed=work.seed)
    seconds, losses = [], []
    for microbatches in steps:
        started = time.perf_counter()
        result = trainer.inner_step(microbatches)
        seconds.append(time.perf_counter() - started)
        losses.append(result.loss)
    print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
