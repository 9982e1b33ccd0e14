"""`hocket checkpoint`: what a coordinator keeps is listed, checked block by block, and exported for `say`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spoken_dataset import dataset_manifest, publish, utterances
from typer.testing import CliRunner, Result

from cli.main import app
from common.errors import Code, HocketError
from common.files import atomic_write
from coordinator.retention import read_pins
from protocol.identity import MemberKey
from simulations.version_export import kept_versions
from swarm.blocks import BlockStore


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coordinator's state folder with versions 4 and 5."""
    folder = tmp_path_factory.mktemp("state")
    scratch = tmp_path_factory.mktemp("scratch")
    store, key = BlockStore(folder / "blocks"), MemberKey.generate()
    manifest, shards = dataset_manifest(utterances(4), utterances(2, seed=1))
    for number in (4, 5):
        cid = publish(store, scratch, key, manifest, shards, round=number)
        atomic_write(folder / "versions" / f"v{number}" / "manifest.json", store.read_file(cid))
    return folder


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def code_of(result: Result) -> Code:
    assert isinstance(result.exception, HocketError), result.output
    return result.exception.code


def test_versions_are_listed(state: Path) -> None:
    listed = json.loads(run("list", state, "--json").output)
    assert [row["version"] for row in listed] == [4, 5]
    assert [row["cid"] for row in listed] == [one.cid for one in kept_versions(state)]
    assert listed[1]["cid"] in run("list", state).output


def test_the_list_says_what_is_kept_and_why_and_a_pin_holds_until_it_is_removed(state: Path) -> None:
    cids = [one.cid for one in kept_versions(state)]
    versions = [{"version": 4, "cid": cids[0], "heldout_loss": 2.5, "kept": ["best"]}, {"cid": cids[1], "kept": ["newest"]}]
    atomic_write(state / "report.json", json.dumps({"versions": versions}).encode())
    try:
        assert cids[0] in run("pin", state, "4").output
        listed = json.loads(run("list", state, "--json").output)
        assert [(row["heldout_loss"], row["kept"]) for row in listed] == [(2.5, ["best", "pinned"]), (None, ["newest"])]
        assert "best pinned" in run("list", state).output and "2.5000" in run("list", state).output
        assert read_pins(state) == {cids[0]}
        assert "no longer" in run("pin", state, "4", "--remove").output
        assert json.loads(run("list", state, "--json").output)[0]["kept"] == ["best"]
        assert code_of(run("pin", state, "9")) is Code.CHECKPOINT_INVALID and read_pins(state) == frozenset()
    finally:
        (state / "report.json").unlink()


def test_a_version_is_shown_verified_and_exported_and_the_export_speaks(state: Path, tmp_path: Path) -> None:
    shown = json.loads(run("show", state, "--version", "4", "--json").output)
    assert (shown["version"], shown["run"], shown["stages"]) == (4, "r", 2)
    assert "is whole" in run("verify", state).output
    out = tmp_path / "export"
    result = run("export", state, "--out", out)
    assert result.exit_code == 0, result.output
    assert "is whole" in run("verify", out).output
    origin = json.loads(run("show", out, "--json").output)["origin"]
    assert (origin["version"], origin["cid"]) == (5, kept_versions(state)[1].cid)
    wav = tmp_path / "a.wav"
    spoken = CliRunner().invoke(app, ["say", "--checkpoint", str(out), "--out", str(wav), "--guidance", "1.0", "a word"])
    assert spoken.exit_code == 0, spoken.output
    assert wav.stat().st_size > 1000


def test_a_damaged_block_is_found(state: Path, tmp_path: Path) -> None:
    store = BlockStore(state / "blocks")
    part = kept_versions(state)[0].manifest.stages[1]
    block = store.get(part.cid)
    store.remove(part.cid)
    try:
        assert code_of(run("verify", state, "--version", "4")) is Code.BLOCK_NOT_FOUND
        assert code_of(run("export", state, "--version", "4", "--out", tmp_path / "e")) is Code.BLOCK_NOT_FOUND
        assert not (tmp_path / "e").exists()
    finally:
        store.put(part.cid, block)
    assert run("verify", state, "--version", "4").exit_code == 0


def test_a_damaged_export_is_found(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "export"
    assert run("export", state, "--out", out).exit_code == 0
    model = out / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4])
    assert code_of(run("verify", out)) is Code.CHECKPOINT_INVALID


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "{empty}"], Code.CHECKPOINT_INVALID),
        (["show", "{state}", "--version", "9"], Code.CHECKPOINT_INVALID),
        (["show", "{state}", "--ticket", "hocket1:x"], Code.OPTION_INVALID),
        (["verify", "{empty}"], Code.CHECKPOINT_INVALID),
        (["verify", "{empty}", "--version", "1"], Code.OPTION_INVALID),
        (["export", "{empty}", "--out", "{empty}/e"], Code.CHECKPOINT_INVALID),
        (["export", "no-such-thing", "--out", "{empty}/e"], Code.CID_INVALID),
        (["export", "{cid}", "--out", "{empty}/e"], Code.OPTION_INVALID),
    ],
)
def test_mistakes_are_told(state: Path, tmp_path: Path, words: list[str], code: Code) -> None:
    names = {"empty": str(tmp_path), "state": str(state), "cid": kept_versions(state)[0].cid}
    assert code_of(run(*(word.format(**names) for word in words))) is code


def test_what_is_no_export_is_not_replaced(state: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("words")
    assert code_of(run("export", state, "--out", tmp_path)) is Code.OUTPUT_EXISTS
    assert (tmp_path / "mine").read_text() == "words"
