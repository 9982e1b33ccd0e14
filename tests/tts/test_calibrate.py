"""`hocket calibrate`: what it measures is small, its limits hold for what they were not set by, and lies are beyond them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cli.calibrate_commands import facts, tell
from cli.main import app
from common.errors import Code, HocketError
from protocol.calibration import Calibration, shipped_calibration
from tts.calibrate import REFEREE, Look, Measured, Result, calibrate, make_table, pairs, row_of, score, within
from tts.calibration_cases import Work, travelled, works
from tts.calibration_lies import A19, DIRECTIONS, IN_DTYPES, ON_ARRAYS, WITH_WEIGHTS, Lie, lies
from tts.calibration_processors import PROCESSORS, OtherProcessor
from tts.calibration_rates import roc_area, roc_pairs, upper_bound
from tts.calibration_ways import AS_IT_COMES, DTYPES, ways
from tts.config import preset

CONFIG = preset("test", n_codebooks=2, codebook_size=32, n_phonemes=20, d_model=32, text_dim=16, n_layers=4)
HALF = ("cpu", "bfloat16")
Told = dict[tuple[str, str], list[tuple[Work, Lie]]]


@pytest.fixture(scope="module")
def passes() -> list[Work]:
    """A pass of each stage of microbatch 2, whose masks are switched off, and of 4 and 8, which are of one kind."""
    torch.set_num_threads(1)
    return list(works(CONFIG, 3, (2, 4, 8), rows=2, train_steps=1))


@pytest.fixture(scope="module")
def told(passes: list[Work]) -> Told:
    """All lies about the passes, by name and direction."""
    found: Told = defaultdict(list)
    for work in passes:
        for lie in lies(work):
            found[lie.name, lie.direction].append((work, lie))
    return found


@pytest.mark.parametrize("dtype", DTYPES["cpu"])
def test_honest_ways_are_within_the_shipped_limits(passes: list[Work], dtype: str) -> None:
    row = shipped_calibration().row_for("cpu-a-float32", f"cpu-b-{dtype}", "bf16")
    seen = 0
    for work in passes[:6]:
        for name, way in ways(dtype).items():
            made, gradients = way(work)
            assert bool(made) == (name != "one utterance at a time" or work.calm)
            found = travelled(work.ours, made, "bf16")
            assert all(within(found, row).values()), (name, work.stage.spec.index, found)
            assert set(gradients) == set(work.gradients) or not made
            seen += len(found)
    assert seen > 30


def test_each_lie_about_a_pass_is_found_in_each_direction(told: Told) -> None:
    table = shipped_calibration()
    for pair in pairs():
        row = row_of(table, pair, "int8")  # the widest
        for name in A19:
            for direction in ("forward", "backward"):
                assert told[name, direction], (name, direction)
                for work, lie in told[name, direction]:
                    found = score(travelled(work.ours, lie.arrays, "int8"), row)
                    assert found > 1, (name, direction, pair, work.stage.spec.index)
    assert {name for name, _ in told} >= {*ON_ARRAYS, *WITH_WEIGHTS, *IN_DTYPES}
    assert {direction for _, direction in told} == set(DIRECTIONS.values())


def test_who_computes_in_half_the_precision_and_says_float32_is_found_out(told: Told) -> None:
    plain, half = (row_of(shipped_calibration(), (REFEREE, kind), "fp32") for kind in (REFEREE, HALF))
    for direction in ("forward", "backward"):
        for work, lie in told["computed in bfloat16", direction]:
            found = travelled(work.ours, lie.arrays, "fp32")
            assert score(found, plain) > 1 >= score(found, half), (direction, found)


def test_what_is_not_finite_has_no_score_that_any_limit_lets_pass(passes: list[Work]) -> None:
    row = row_of(shipped_calibration(), (REFEREE, HALF), "int8")
    for value in (np.nan, np.inf):
        for tensor, array in passes[1].ours.items():
            lie = array.copy()
            lie.reshape(-1)[3] = value
            assert score(travelled(passes[1].ours, {tensor: lie}, "int8"), row) == math.inf


def test_a_score_is_above_one_for_just_what_is_not_within(told: Told) -> None:
    verdicts = set()
    for pair in pairs()[:2]:
        row = row_of(shipped_calibration(), pair, "fp32")
        for told_so in told.values():
            for work, lie in told_so:
                found = travelled(work.ours, lie.arrays, "fp32")
                good = all(within(found, row).values())
                assert (score(found, row) <= 1) == good
                verdicts.add(good)
    assert verdicts == {True, False}


def test_a_table_is_set_by_what_is_measured(passes: list[Work], capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measured()
    look = Look("cpu", {}, measured)
    for work in passes[:6]:
        look.widen(work)
    plain, mixed, half = pairs()
    assert (plain, mixed, half) == ((REFEREE, REFEREE), (REFEREE, HALF), (HALF, HALF)) and set(measured.step) == set(pairs())
    assert measured.step[plain]["tensor"] < 1e-4 < measured.step[mixed]["tensor"]
    assert measured.drift[plain, "fp32", "hidden"]["maximum"] < 1e-5
    assert 1e-4 < measured.drift[mixed, "fp32", "hidden"]["maximum"] < 0.05
    table = make_table(measured, CONFIG, 3)
    assert [row.classes for row in table.rows[::3]] == [("cpu-*-" + a[1], "cpu-*-" + b[1]) for a, b in pairs()]
    for pair in pairs():
        for wire in ("fp32", "bf16", "int8"):
            limit, seen = row_of(table, pair, wire).hidden, measured.drift[pair, wire, "hidden"]
            assert limit.maximum >= 3 * seen["maximum"] and limit.projection >= 3 * seen["projection"]
    look.count(passes[1], table, tell=True)
    ways_seen = {way for _, _, way in measured.honest}
    assert ways_seen == {*ways("float32"), AS_IT_COMES} and (plain, "fp32", AS_IT_COMES) not in measured.honest
    assert max(score for scores in measured.honest.values() for score in scores) <= 1
    result = Result(table, measured)
    tell(result)
    printed = capsys.readouterr().out
    assert "sign flip" in printed and "cpu-float32 / cpu-bfloat16" in printed
    found = json.loads(json.dumps(facts(result), allow_nan=False))
    assert Calibration.model_validate(found["table"]) == table
    assert {(one["told"], one["caught"], one["area"]) for one in found["lies"] if one["lie"] == "sign flip"} == {(1, 1, 1.0)}
    assert sum(one["passes"] for one in found["honest"]) == sum(one["passes"] for one in found["honest_by_classes"]) == 48
    assert [one["area"] for one in found["roc"]] == [1.0] * 9
    at_one = [point for one in found["roc"] for point in one["pairs"] if point["scale"] == 1]
    assert all(point["false_positives"] == 0 and point["true_positives"] == 1 for point in at_one)


def test_another_processor_computes_the_same_in_another_order(passes: list[Work], tmp_path: Path) -> None:
    name, environment = list(PROCESSORS.items())[-1]
    child = OtherProcessor(environment, tmp_path)
    try:
        for work in (passes[1], passes[3]):
            made, gradients = child.run(work, "float32")
            assert set(made) == set(work.ours) and set(gradients) == set(work.gradients)
            for wire in ("fp32", "int8"):
                found = travelled(work.ours, made, wire)
                assert score(found, row_of(shipped_calibration(), (REFEREE, REFEREE), wire)) <= 1, (name, found)
    finally:
        child.close()


def test_one_utterance_at_a_time_is_the_same_work(passes: list[Work]) -> None:
    calm = next(work for work in passes if work.calm and work.stage.spec.index == 1)
    made, gradients = ways("float32")["one utterance at a time"](calm)
    assert np.allclose(made["hidden"], calm.ours["hidden"], atol=1e-5)
    assert all(torch.allclose(gradients[name], value, atol=1e-3, rtol=1e-3) for name, value in calm.gradients.items())


def test_each_dtype_of_a_device_is_compared_with_the_referee_and_with_each_other() -> None:
    found = pairs("cuda")
    assert len(found) == len(set(found)) == 10
    assert {(REFEREE, ("cuda", dtype)) for dtype in ("float32", "tf32", "bfloat16")} < set(found)


def test_too_few_microbatches_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        calibrate(CONFIG, 2, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(HocketError) as caught:
        calibrate(CONFIG, 2, 8, device="cuda")
    assert caught.value.code is Code.DEVICE_FAILED
    assert CliRunner().invoke(app, ["calibrate", "--device", "abacus"]).exit_code == 2


# ---- rates ----------------------------------------------------------------------------------------------------------


def test_the_upper_bound_of_a_rate() -> None:
    assert upper_bound(0, 3000) == pytest.approx(1 - 0.05 ** (1 / 3000), rel=1e-6)  # nearly three over the number
    assert upper_bound(0, 3000) < 1e-3
    assert upper_bound(1, 10) == pytest.approx(0.394, abs=1e-3)
    assert upper_bound(5, 100) == pytest.approx(0.1023, abs=1e-3)
    assert upper_bound(7, 7) == 1.0 and upper_bound(0, 0) == 1.0


def test_the_area_under_the_curve() -> None:
    assert roc_area([0.1, 0.2], [3.0, math.inf]) == 1.0
    assert roc_area([3.0], [0.1]) == 0.0
    assert roc_area([1.0, 2.0], [1.0, 2.0]) == 0.5
    assert roc_area([1.0, 3.0], [2.0]) == 0.5


def test_rates_at_scaled_limits() -> None:
    found = {point["scale"]: point for point in roc_pairs([0.2, 0.02], [2.0, 200.0])}
    assert (found[0.1]["false_positives"], found[0.1]["true_positives"]) == (0.5, 1.0)
    assert (found[1.0]["false_positives"], found[1.0]["true_positives"]) == (0.0, 1.0)
    assert (found[3.0]["false_positives"], found[3.0]["true_positives"]) == (0.0, 0.5)
