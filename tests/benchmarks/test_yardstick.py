"""A run's voice beside one process: the same frames in larger steps, and an export that can be listened to."""

from __future__ import annotations

from pathlib import Path

import pytest
from finished_run import finished_run
from untrained_export import untrained

from benchmarks.run_again import read_run, train_again
from benchmarks.yardstick import export_beside, measure
from common.errors import Code, HocketError
from tts.export import load_export


def test_the_process_takes_all_replicas_frames_in_as_many_steps(tmp_path: Path) -> None:
    report, config, data = read_run(finished_run(tmp_path, 5.0))
    trained = train_again(config, data, leases_a_step=2, threads=1, say=lambda line: None, what="one process")
    assert trained.facts["inner_steps"] == config.rounds.count * config.rounds.inner_steps
    assert trained.facts["frames"] == sum(entry["frames"] for entry in report["rounds"])


def test_what_was_trained_becomes_an_export_with_the_runs_card(tmp_path: Path) -> None:
    _, config, data = read_run(finished_run(tmp_path / "run", 5.0))
    trained = train_again(config, data, leases_a_step=2, threads=1, say=lambda line: None, what="one process")
    model = trained.trainer.config
    changes = {name: getattr(model, name) for name in ("n_codebooks", "codebook_size", "n_phonemes", "tempo_share")}
    run = untrained(tmp_path / "checkpoint", changes, phonemes=tuple(f"p{number}" for number in range(model.n_phonemes)))
    export_beside(run, trained, tmp_path / "yardstick")
    export = load_export(tmp_path / "yardstick")
    weights = dict(trained.trainer.stages[0].named_parameters())
    assert all(bool((value == weights[name]).all()) for name, value in export.stage.named_parameters())


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HocketError) as caught:
        measure(finished_run(tmp_path, 5.0), corpus=None, threads=1, say=print)
    assert caught.value.code is Code.OPTION_INVALID and "checkpoint" in caught.value.detail
