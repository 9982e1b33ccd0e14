"""Run files: what is accepted, and how a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from coordinator.run_config import RunConfig, known_keys, nearest_key

GOOD = """
[run]
id = "r1"
[model]
preset = "demo"
stages = 3
[data]
manifest = "data/manifest.json"
[rounds]
count = 5
frames_per_inner_step = 2000
inner_steps = 10
inner_lr = 0.006
"""


def fault(text: str) -> HocketError:
    with pytest.raises(HocketError) as caught:
        RunConfig.parse(text, name="run.toml")
    assert "\n" not in caught.value.line()
    return caught.value


def test_defaults_are_those_of_the_design() -> None:
    config = RunConfig.parse(GOOD)
    assert (config.rounds.outer_lr, config.rounds.outer_momentum) == (0.7, 0.9)
    assert (config.aggregation.rule, config.network.listen, config.network.tls) == ("centred_clipping", "127.0.0.1:0", True)
    assert (config.network.host, config.network.port) == ("127.0.0.1", 0)


@pytest.mark.parametrize(("extra", "named", "nearest"), [
    ("outer_learning_rate = 1.0\n", "rounds.outer_learning_rate", "rounds.outer_lr"),
    ("inner_step = 1\n", "rounds.inner_step", "rounds.inner_steps"),
    ("[aggregation]\ntolerates = 1\n", "aggregation.tolerates", "aggregation.tolerate"),
    ("[agregation]\ntolerate = 1\n", "agregation", "aggregation"),
    ("[network]\nlisten_on = '127.0.0.1:1'\n", "network.listen_on", "network.listen"),
])  # fmt: skip
def test_an_unknown_key_is_named_with_the_nearest_known_one(extra: str, named: str, nearest: str) -> None:
    error = fault(GOOD + extra)
    assert error.code is Code.RUN_FILE_UNKNOWN_KEY
    assert error.detail.startswith(named + " ") and error.detail.endswith(nearest)


@given(st.sampled_from(known_keys()), st.data())
def test_a_slip_of_one_letter_finds_the_key(key: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(key.index(".") + 1, len(key) - 1))
    slip = key[:place] + key[place + 1 :]
    if len(key) - key.index(".") > 3 and slip not in known_keys():
        assert nearest_key(slip).split(".")[0] == key.split(".")[0] or nearest_key(slip).split(".")[1] == key.split(".")[1]


@pytest.mark.parametrize(("before", "after", "named"), [
    ("stages = 3", "stages = 0", "model.stages"),
    ("stages = 3", "stages = 'three'", "model.stages"),
    ("count = 5\n", "", "rounds.count"),
    ("inner_lr = 0.006", "inner_lr = nan", "rounds.inner_lr"),
    ('id = "r1"', 'id = "R 1"', "run.id"),
    ("[data]", "[aggregation]\nrule = 'bulyan'\n[data]", "aggregation.rule"),
    ("[data]", "[network]\nlisten = '0.0.0.0:80'\ntls = false\n[data]", "network"),
    ("[data]", "[network]\nlisten = '0.0.0.0:80'\n[data]", "network"),
    ("[data]", "[network]\nlisten = 'localhost:99999'\n[data]", "network"),
    ("[data]", "[membership]\nmode = 'vip'\n[data]", "membership.mode"),
    ("inner_steps = 10", "inner_steps = 10\ndeadline_floor_s = 50\ndeadline_ceiling_s = 40", "rounds"),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_named(before: str, after: str, named: str) -> None:
    assert before in GOOD
    error = fault(GOOD.replace(before, after))
    assert error.code is Code.RUN_FILE_INVALID and error.detail.startswith(named + " in run.toml")


def test_what_is_no_toml_or_no_file(tmp_path: Path) -> None:
    assert fault("[run\n").code is Code.RUN_FILE_UNREADABLE
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(HocketError) as caught:
            RunConfig.load(path)
        assert caught.value.code is Code.RUN_FILE_UNREADABLE
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(HocketError) as caught:
        RunConfig.load(tmp_path / "latin.toml")
    assert caught.value.code is Code.RUN_FILE_UNREADABLE


def test_the_documentation_has_every_key_with_its_default() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "run-file.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("`"): row[1] for row in rows}
    assert list(documented) == known_keys()
    for key, default in documented.items():
        section, _, name = key.partition(".")
        kind = RunConfig.model_fields[section].annotation
        assert kind is not None
        field = kind.model_fields[name]
        if field.is_required():
            assert default == ""
        elif field.default != ():
            written = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert default in (written, written.removesuffix(".0"))
