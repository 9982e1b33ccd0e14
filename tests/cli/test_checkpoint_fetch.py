"""`hocket checkpoint fetch`: a version by its CID from a gateway, checked down to the signature, and exported from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ipfs_server import Ipfs, served
from spoken_dataset import dataset_manifest, publish, utterances
from typer.testing import CliRunner, Result

from cli.main import app
from common.errors import Code, HocketError
from common.files import atomic_write
from protocol.identity import MemberKey
from protocol.ticket import Ticket
from swarm.blocks import BlockStore

pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
COORDINATOR = MemberKey.from_seed(b"c" * 32)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with a version, and the version's CID."""
    folder = tmp_path_factory.mktemp("source")
    manifest, shards = dataset_manifest(utterances(4), utterances(2, seed=1))
    return folder, publish(BlockStore(folder), tmp_path_factory.mktemp("scratch"), COORDINATOR, manifest, shards)


@pytest.fixture
def ipfs(source: tuple[Path, str]) -> Iterator[Ipfs]:
    """A gateway that has all of it but the dataset's shards."""
    store = BlockStore(source[0])
    with served(Ipfs()) as server:
        server.blocks = {block.cid: store.get(block.cid) for block in store.blocks()}
        yield server


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def code_of(result: Result) -> Code:
    assert isinstance(result.exception, HocketError), result.output
    return result.exception.code


def test_a_version_is_fetched_by_its_cid_verified_and_exported(source: tuple[Path, str], ipfs: Ipfs, tmp_path: Path) -> None:
    cid, out = source[1], tmp_path / "fetched"
    result = run("fetch", cid, "--gateway", ipfs.url, "--key", COORDINATOR.member_id, "--out", out)
    assert result.exit_code == 0 and "is whole" in result.output and COORDINATOR.member_id in result.output, result.output
    assert json.loads(run("show", out, "--json").output)["cid"] == cid
    asked = len(ipfs.asked)
    assert run("fetch", cid, "--gateway", ipfs.url, "--out", out).exit_code == 0
    assert len(ipfs.asked) == asked, "what is there is not fetched again"
    ticket = Ticket("r", ("127.0.0.1:1",), COORDINATOR.public, b"\x07" * 32, ("/ip4/127.0.0.1/tcp/1/p2p/x",)).encode()
    assert "as it should be" in run("verify", out, "--ticket", ticket).output
    assert code_of(run("verify", out, "--key", MemberKey.generate().member_id)) is Code.MANIFEST_INVALID
    assert code_of(run("verify", out, "--key", MemberKey.generate().member_id, "--ticket", ticket)) is Code.MANIFEST_INVALID
    assert run("export", out, "--out", tmp_path / "a").exit_code == 0
    assert run("export", cid, "--gateway", f"{ipfs.url}/api/v0", "--out", tmp_path / "b").exit_code == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert code_of(run("verify", tmp_path / "a", "--key", COORDINATOR.member_id)) is Code.OPTION_INVALID


def test_a_version_of_another_coordinator_is_refused_before_its_weights_are_fetched(
    source: tuple[Path, str], ipfs: Ipfs, tmp_path: Path
) -> None:
    other = MemberKey.generate().member_id
    result = run("fetch", source[1], "--gateway", ipfs.url, "--key", other, "--out", tmp_path / "fetched")
    assert code_of(result) is Code.MANIFEST_INVALID
    held = {block.cid for block in BlockStore(tmp_path / "fetched" / "blocks").blocks()}
    assert held == {source[1]}


def test_mistakes_are_told(source: tuple[Path, str], ipfs: Ipfs, tmp_path: Path) -> None:
    assert code_of(run("fetch", source[1], "--out", tmp_path / "a")) is Code.OPTION_INVALID
    assert code_of(run("fetch", "Qm", "--gateway", ipfs.url, "--out", tmp_path / "a")) is Code.CID_INVALID
    words = ("fetch", source[1], "--gateway", ipfs.url, "--key", "x", "--out", tmp_path / "a")
    assert code_of(run(*words)) is Code.SIGNATURE_INVALID
    assert not (tmp_path / "a").exists()
    atomic_write(tmp_path / "b" / "mine", b"words")
    assert code_of(run("fetch", source[1], "--gateway", ipfs.url, "--out", tmp_path / "b")) is Code.OUTPUT_EXISTS
    ipfs.blocks.clear()
    assert code_of(run("fetch", source[1], "--gateway", ipfs.url, "--out", tmp_path / "a")) is Code.BLOCK_NOT_FOUND
