"""A run of real processes whose versions are listened to beside the training: sound, pictures, watch and alarms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from spoken_dataset import utterances, write_dataset

from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_simulation, run_to_the_end

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_every_round_is_heard_while_the_run_goes_on(tmp_path: Path) -> None:
    """Two rounds; the second is the last, so it is heard however far the listener was behind."""
    data = write_dataset(tmp_path / "data", utterances(24), utterances(6, seed=1, speakers=("ann", "bob")))
    out = tmp_path / "run"
    out.mkdir()
    settings = SimulationSettings(
        stages=2, replicas=1, rounds=2, inner_steps=3, frames_per_inner_step=300, microbatches_per_inner_step=2, data=data,
        time_limit_s=240.0, extra={"previews": {"every": 1, "sentences": ["Good morning.", "Good night."]}},
    )  # fmt: skip
    report = run_to_the_end(run_simulation(settings, out, Quiet()))
    assert [entry["round"] for entry in report["rounds"]] == [1, 2] and report["unexpected_ends"] == []
    for entry in report["rounds"]:
        assert len(entry["accuracy_by_codebook"]) == 2 and all(0 <= share <= 1 for share in entry["accuracy_by_codebook"])
        assert 0 < entry["duration_error"] < 3
    assert report["watch"], "no round was listened to"
    last = report["watch"][-1]
    assert (last["round"], last["cid"], last["errors"]) == (2, report["final_version"]["cid"], [])
    assert [group["name"] for group in last["watch"]["groups"]] == ["all", "ann", "bob", "en-US"]
    # The watch's loss of the whole held-out set is the one that the workers measured through the chain.
    assert last["watch"]["groups"][0]["loss"] == pytest.approx(report["rounds"][-1]["heldout_loss"], rel=1e-4)
    assert {alarm["round"] for alarm in report["alarms"]} <= {entry["round"] for entry in report["watch"]}
    assert all(alarm["reason"].startswith(f"after round {alarm['round']}: ") for alarm in report["alarms"])
    for entry in report["watch"]:
        folder = out / "coordinator" / "previews" / f"round-{entry['round']}"
        told = json.loads((folder / "watch.json").read_text(encoding="utf-8"))
        assert told["watch"] == entry["watch"] and [one["text"] for one in told["previews"]] == ["Good morning.", "Good night."]
        for preview in told["previews"]:
            samples, rate = soundfile.read(folder / preview["file"])
            assert len(samples) / rate == pytest.approx(preview["seconds"])
            assert np.sqrt(np.mean(samples**2)) > 1e-3, "silence"
            assert (folder / preview["picture"]).stat().st_size > 10_000
    # What reached the run is also in the coordinator's own report.
    own = json.loads((out / "coordinator" / "report.json").read_text(encoding="utf-8"))
    assert own["watch"] == report["watch"] and own["alarms"] == report["alarms"]
