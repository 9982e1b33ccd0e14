"""Other IPFS software knows our files by the same names: a real Kubo fetches our blocks, js-ipfs' importer names them alike."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from sized_files import DEEP, SIZES, digest, write

from protocol.content import CHUNK_BYTES
from swarm.blocks import BlockStore

ROOT = Path(__file__).parents[2]
KUBO = ROOT / ".venv-ipfs" / "bin" / "python"
IMPORTER = ROOT / ".npm-ipfs"
NODE = shutil.which("node")
LIMIT_S = 600
ENV = {"PATH": os.environ["PATH"]}  # the library leaves its log in the folder that it is started in

with_kubo = pytest.mark.skipif(not KUBO.exists(), reason="Kubo has an environment of its own, .venv-ipfs: make setup-ipfs")
with_importer = pytest.mark.skipif(
    NODE is None or not (IMPORTER / "node_modules" / "ipfs-unixfs-importer").exists(),
    reason="ipfs-unixfs-importer has a folder of its own, .npm-ipfs, and needs Node: make setup-ipfs",
)  # fmt: skip


def fetched_by_kubo(folder: Path, sizes: tuple[int, ...]) -> None:
    store = BlockStore(folder / "blocks")
    files = {store.add_file(path): path for path in write(folder / "files", sizes).values()}
    script = Path(__file__).with_name("kubo_child.py")
    command = [str(KUBO), str(script), str(folder), str(folder / "blocks"), str(folder / "out"), *files]
    # A process of its own, killed at the limit: the library's calls have none, and it leaves threads.
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder, env=ENV)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["started"], said["connected"]) == ([1, 1], 0)
    assert said["found"] == {root: [0, 0] for root in files}
    assert set(files) <= set(json.loads(said["pins"]))
    for root, path in files.items():
        assert digest(folder / "out" / root) == digest(path), f"{path.stat().st_size} bytes"


def named_by_importer(folder: Path, sizes: tuple[int, ...]) -> None:
    files = write(folder / "files", sizes)
    store = BlockStore(folder / "blocks")
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--input-type=module", "-", *files], stdin=Path(__file__).with_name("unixfs_importer.mjs").open("rb"),
        capture_output=True, text=True, timeout=LIMIT_S, cwd=IMPORTER,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {name: store.add_file(path) for name, path in files.items()}


@with_kubo
@pytest.mark.system
def test_kubo_fetches_the_same_bytes(tmp_path: Path) -> None:
    fetched_by_kubo(tmp_path, SIZES)


@with_kubo
@pytest.mark.system
def test_kubo_does_not_fetch_what_is_not_there(tmp_path: Path) -> None:
    """The comparison can fail: where a block is missing, no file comes of it."""
    store = BlockStore(tmp_path / "blocks")
    whole, path = write(tmp_path / "files", (1, CHUNK_BYTES + 1)).values()
    there, root = store.add_file(whole), store.add_file(path)
    store.remove(BlockStore(tmp_path / "other").add_bytes(path.read_bytes()[CHUNK_BYTES:]))
    script = Path(__file__).with_name("kubo_child.py")
    command = [str(KUBO), str(script), str(tmp_path), str(tmp_path / "blocks"), str(tmp_path / "out"), there, root]
    # Kubo looks for the block without an end: nobody else has it.
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=15, cwd=tmp_path, env=ENV)
    assert digest(tmp_path / "out" / there) == digest(whole)
    assert not (tmp_path / "out" / root).exists()


@with_kubo
@pytest.mark.soak
@pytest.mark.timeout(2 * LIMIT_S)
def test_kubo_fetches_a_deep_tree(tmp_path: Path) -> None:
    fetched_by_kubo(tmp_path, (DEEP,))


@with_importer
@pytest.mark.system
def test_the_importer_of_js_ipfs_gives_the_same_names(tmp_path: Path) -> None:
    named_by_importer(tmp_path, SIZES)


@with_importer
@pytest.mark.soak
@pytest.mark.timeout(2 * LIMIT_S)
def test_the_importer_of_js_ipfs_names_a_deep_tree(tmp_path: Path) -> None:
    named_by_importer(tmp_path, (DEEP,))
