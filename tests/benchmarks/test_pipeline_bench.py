"""The pipeline benchmark: its competitor trains the same model to the same losses, and its arithmetic is right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.children import ask_child, run_children
from benchmarks.pipeline import (
    PipelineBench,
    Timing,
    measure,
    ratios_of,
    summarise,
    time_single,
    time_torch_pipelining,
)
from benchmarks.result import BenchResult, machine_facts, write_result
from benchmarks.workload import CODEBOOK_SIZE, INVENTORY, N_FRAMES, Workload, inner_step, utterance
from common.errors import Code, HocketError
from tts.reference import InnerSettings, train_single

WORK = Workload("test", microbatches=3, microbatch_size=2, steps=3)


def test_an_utterance_is_a_function_of_its_number() -> None:
    first, again, other = utterance(1, 5), utterance(1, 5), utterance(1, 6)
    assert np.array_equal(first.codes, again.codes) and not np.array_equal(first.codes, other.codes)
    assert int(first.durations.sum()) == N_FRAMES and int(first.durations.min()) >= 1
    assert int(first.phonemes.max()) < INVENTORY and int(first.phonemes.min()) >= 1 and int(first.codes.max()) < CODEBOOK_SIZE


def test_steps_do_not_share_utterances() -> None:
    batches = [batch for step in range(2) for _, batch in inner_step(WORK, step)]
    assert len({batch.codes.numpy().tobytes() for batch in batches}) == 6
    assert sum(batch.frames for batch in batches) == 2 * WORK.frames_per_step


def reference_losses(*, clip_stages: int | None = None, peak_lr: float = InnerSettings().peak_lr) -> list[float]:
    losses: list[float] = []
    steps = [inner_step(WORK, step) for step in range(WORK.steps)]
    settings = InnerSettings(peak_lr=peak_lr, seed=WORK.seed)
    train_single(
        WORK.config(), 1, steps, settings, clip_stages=clip_stages, progress=lambda _, result: losses.append(result.loss)
    )
    return losses


@pytest.mark.parametrize(("stages", "schedule"), [(2, "1f1b"), (3, "gpipe")])
def test_torch_pipelining_trains_the_same_model(stages: int, schedule: str) -> None:
    """So the rows compare equal work: losses after three steps agree with the reference that clips per stage as they do."""
    losses = reference_losses(clip_stages=stages)
    timing = time_torch_pipelining(WORK, stages, schedule)
    assert timing.losses == pytest.approx(losses, abs=1e-5)
    assert abs(losses[-1] - reference_losses(peak_lr=0.0)[-1]) > 1e-3  # training shows in the losses compared
    assert len(timing.seconds) == WORK.steps


def test_the_single_process_row_trains_the_same_model() -> None:
    assert time_single(WORK, 1).losses == pytest.approx(reference_losses(), abs=1e-5)


def test_a_row_is_the_median_of_its_repeats_after_the_warm_up() -> None:
    timings = [Timing([100.0, *[second] * 4], [5.0, 4.0], {}) for second in (1.0, 4.0, 2.0)]
    row = summarise("x", "what", WORK, 1, timings)
    assert row["frames_per_second"] == WORK.frames_per_step / 2.0
    assert (row["slowest"], row["fastest"]) == (WORK.frames_per_step / 4.0, WORK.frames_per_step / 1.0)
    assert row["step_median_s"] == 2.0 and (row["first_loss"], row["last_loss"]) == (5.0, 4.0)


def test_ratios_are_speed_of_the_first_over_the_second_and_need_both_rows() -> None:
    rows = [
        {"row": name, "frames_per_second": speed} for name, speed in (("single", 100.0), ("pipeline4", 80.0), ("torch4", 40.0))
    ]
    found = ratios_of(rows)
    assert found["pipeline4_vs_single"] == 0.8 and found["pipeline4_vs_torch_pipelining"] == 2.0
    assert "pipeline2_vs_single" not in found


def test_an_unknown_row_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(HocketError) as caught:
        measure(PipelineBench(), rows=["pipeline7"], say=print)
    assert caught.value.code is Code.OPTION_INVALID


def test_a_measured_process_that_fails_ends_the_others() -> None:
    with pytest.raises(HocketError) as caught:
        run_children([("benchmarks.single_process", {"workload": {"preset": "none"}}), ("http.server", {})], limit_s=60)
    assert caught.value.code is Code.CHILD_FAILED and "single_process ended with 1" in caught.value.detail


def test_a_failed_process_is_named_as_its_caller_names_it() -> None:
    with pytest.raises(HocketError) as caught:
        ask_child("the median of Flower", "benchmarks.aggregation_row", {}, limit_s=60)
    assert caught.value.code is Code.CHILD_FAILED and "the median of Flower ended with 1" in caught.value.detail
    assert "KeyError: 'folder'" in caught.value.detail


def test_results_are_written_with_machine_rows_and_ratios(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pipeline.json"
    write_result(path, BenchResult("pipeline", machine_facts([0, 1]), [{"row": "single"}], {"a_vs_b": 0.5}))
    written = json.loads(path.read_text())
    assert set(written) == {"name", "machine", "rows", "ratios"} and written["machine"]["cores_used"] == [0, 1]
