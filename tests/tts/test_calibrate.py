"""`hocket calibrate`: what it measures is small, its limits hold for what they were not set by, and lies are beyond them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from cli.calibrate_commands import facts, tell
from protocol.calibration import Calibration, shipped_calibration
from tts.calibrate import PAIRS, Measured, Result, calibrate, look, within
from tts.calibration_cases import ON_ARRAYS, WITH_WEIGHTS, Work, lies, travelled, ways, works
from tts.config import preset

CONFIG = preset("test", n_codebooks=2, codebook_size=32, n_phonemes=20, d_model=32, text_dim=16, n_layers=4)


@pytest.fixture(scope="module")
def passes() -> list[Work]:
    """A pass of each stage of microbatch 2, whose masks are switched off, and of 4."""
    torch.set_num_threads(1)
    return list(works(CONFIG, 3, (2, 4), rows=2, train_steps=1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_honest_ways_are_within_the_shipped_limits(passes: list[Work], dtype: str) -> None:
    row = shipped_calibration().row_for("cpu-a-float32", f"cpu-b-{dtype}", "bf16")
    seen = 0
    for work in passes:
        for name, way in ways(dtype).items():
            made, gradients = way(work)
            assert bool(made) == (name != "one utterance at a time" or work.calm)
            found = travelled(work.ours, made, "bf16")
            assert all(within(found, row).values()), (name, work.stage.spec.index, found)
            assert set(gradients) == set(work.gradients) or not made
            seen += len(found)
    assert seen > 30


def test_lies_are_beyond_the_shipped_limits(passes: list[Work]) -> None:
    row = shipped_calibration().row_for("cpu-a-float32", "cpu-b-float32", "bf16")
    told = set()
    for work in passes:
        for lie, made in lies(work):
            assert not all(within(travelled(work.ours, made, "bf16"), row).values()), (lie, work.stage.spec.index)
            told.add(lie)
    assert told >= {*ON_ARRAYS, *WITH_WEIGHTS, "passed through", "passed back"}


def test_a_table_is_set_by_what_is_measured(passes: list[Work], capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measured()
    for work in passes[1:3]:
        look(work, measured, None)
    assert set(measured.step) == set(PAIRS)
    assert measured.step["float32", "float32"]["tensor"] < 1e-4 < measured.step["float32", "bfloat16"]["tensor"]
    assert measured.drift[("float32", "float32"), "fp32", "hidden"]["maximum"] < 1e-5
    assert 1e-4 < measured.drift[("float32", "bfloat16"), "fp32", "hidden"]["maximum"] < 0.05
    look(passes[1], measured, shipped_calibration())
    assert sum(count for count, _ in measured.compared.values()) > 0
    assert sum(failed for _, failed in measured.compared.values()) == 0
    result = Result(shipped_calibration(), measured, 90, 0)
    tell(result)
    printed = capsys.readouterr().out
    assert "0 of 90 honest results" in printed and "sign flip" in printed and "float32/bfloat16" in printed
    told = json.loads(json.dumps(facts(result)))
    assert Calibration.model_validate(told["table"]) == shipped_calibration()
    assert {(one["told"], one["caught"]) for one in told["lies"] if one["lie"] == "sign flip"} == {(1, 1)}


def test_too_few_microbatches_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        calibrate(CONFIG, 2, 4)


def test_one_utterance_at_a_time_is_the_same_work(passes: list[Work]) -> None:
    calm = next(work for work in passes if work.calm and work.stage.spec.index == 1)
    made, gradients = ways("float32")["one utterance at a time"](calm)
    assert np.allclose(made["hidden"], calm.ours["hidden"], atol=1e-5)
    assert all(torch.allclose(gradients[name], value, atol=1e-3, rtol=1e-3) for name, value in calm.gradients.items())
