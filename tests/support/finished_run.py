"""The folder of a run that is over, for benchmarks that compare something with it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from simulations.simulate import SimulationSettings, run_file


def finished_run(folder: Path, heldout_loss: float | None) -> Path:
    """Write a dataset of random utterances, a run file and a report of two rounds; its last held-out loss is as given."""
    work = Workload("test", microbatches=2, microbatch_size=2, steps=3)
    data = write_dataset(work, folder / "data", heldout=3)
    settings = SimulationSettings(
        preset="test", rounds=2, inner_steps=2, frames_per_inner_step=work.frames_per_step, microbatches_per_inner_step=2
    )
    rounds = [{"frames": 2 * 2 * work.frames_per_step, "seconds": 1.0, "heldout_loss": heldout_loss} for _ in range(2)]
    (folder / "report.json").write_text(json.dumps({"rounds": rounds, "config": {"run_toml": run_file(settings, data)}}))
    return folder
