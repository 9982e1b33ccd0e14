"""One worker alone: it takes the run's inner steps on its own share of the frames, and is measured on the same held-out set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.alone import measure
from benchmarks.cluster_row import write_dataset
from benchmarks.workload import CODEBOOK_SIZE, Workload
from common.errors import Code, HocketError
from simulations.simulate import SimulationSettings, run_file


def finished_run(folder: Path, heldout_loss: float | None) -> Path:
    work = Workload("test", microbatches=2, microbatch_size=2, steps=3)
    data = write_dataset(work, folder / "data", heldout=3)
    settings = SimulationSettings(
        preset="test", rounds=2, inner_steps=2, frames_per_inner_step=work.frames_per_step, microbatches_per_inner_step=2
    )
    rounds = [{"frames": 2 * 2 * work.frames_per_step, "seconds": 1.0, "heldout_loss": heldout_loss} for _ in range(2)]
    (folder / "report.json").write_text(json.dumps({"rounds": rounds, "config": {"run_toml": run_file(settings, data)}}))
    return folder


def test_the_worker_alone_takes_as_many_inner_steps_on_its_share(tmp_path: Path) -> None:
    lines: list[str] = []
    result = measure(finished_run(tmp_path, 5.0), threads=1, say=lines.append)
    run, alone = result.rows
    assert (run["inner_steps"], alone["inner_steps"]) == (4, 4) and 2 * alone["frames"] == run["frames"]
    assert alone["heldout_loss"] == pytest.approx(math.log(CODEBOOK_SIZE), abs=0.3)  # random codes cannot be foretold
    assert result.ratios["heldout_loss_run_vs_alone"] == 5.0 / alone["heldout_loss"] and len(lines) == 2


def test_a_folder_without_a_measured_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, finished_run(tmp_path / "run", None)):
        with pytest.raises(HocketError) as caught:
            measure(folder, threads=1, say=print)
        assert caught.value.code is Code.OPTION_INVALID
