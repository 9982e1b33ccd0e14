"""`hocket model show` gives for each stage what it takes."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError

runner = CliRunner()


def test_every_stage_has_its_line_and_its_numbers() -> None:
    result = runner.invoke(app, ["model", "show", "base", "--stages", "8", "--json"])
    facts = json.loads(result.stdout)
    assert len(facts["stages"]) == 8 and facts["parameters"] == sum(stage["parameters"] for stage in facts["stages"])
    assert all(stage["flops_per_frame"] > 0 and stage["memory_bytes"] > stage["state_bytes"] > 0 for stage in facts["stages"])
    assert [stage["hop_bytes"] > 0 for stage in facts["stages"]] == [True] * 7 + [False]
    lines = runner.invoke(app, ["model", "show", "base", "--stages", "8"]).stdout.splitlines()
    assert len([line for line in lines if line.strip()[:1].isdigit() and "MiB" in line]) == 8


def test_a_cut_fits_the_cards_that_are_named() -> None:
    arguments = ["model", "show", "base", "--memory", "3GiB", "--memory", "24GiB", "--memory", "8GiB", "--json"]
    facts = json.loads(runner.invoke(app, arguments).stdout)
    sizes = [stage["memory_bytes"] / 2**30 for stage in facts["stages"]]
    assert all(size <= budget for size, budget in zip(sizes, (3, 24, 8), strict=True))
    assert facts["cuts"][-1] == 22


def test_microbatches_in_flight_count() -> None:
    def memory(*options: str) -> int:
        facts = json.loads(runner.invoke(app, ["model", "show", "demo", "--json", *options]).stdout)
        return int(facts["stages"][0]["memory_bytes"])

    plain = memory()
    assert memory("--in-flight", "8") > plain and memory("--utterances", "8") > plain and memory("--frames", "512") > plain
    assert memory("--codebooks", "4") < plain and memory("--codebook-size", "256") < plain and memory("--phonemes", "50") < plain


def test_an_unknown_preset_is_refused() -> None:
    result = runner.invoke(app, ["model", "show", "huge"])
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.MODEL_CONFIG_INVALID
