"""One worker alone: it takes the run's inner steps on its own share of the frames, and is measured on the same held-out set."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from finished_run import finished_run

from benchmarks.alone import measure
from benchmarks.workload import CODEBOOK_SIZE
from common.errors import Code, HocketError


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
