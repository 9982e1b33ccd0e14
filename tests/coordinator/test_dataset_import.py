"""A dataset is handed over file by file, block by block, whatever its size, and nothing that lies beside it comes along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from coordinator.dataset import import_dataset
from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from swarm.blocks import BlockStore

MIB = 2**20


def write(folder: Path, sizes: list[int]) -> DatasetManifest:
    """A dataset whose shards are random bytes: handing over does not look into them."""
    (folder / "shards").mkdir(parents=True)
    entries = []
    for size in sizes:
        path = folder / "shards" / "new"
        with path.open("wb") as file:
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))
        cid = file_cid(path)
        path.rename(folder / "shards" / f"{cid}.parquet")
        entries.append(ShardEntry(cid=cid, rows=1, frames=10, size_bytes=size))
    (folder / "aligners").mkdir()
    (folder / "aligners" / "en.safetensors").write_bytes(b"aligner")
    manifest = DatasetManifest(
        name="random",
        codec={"n_codebooks": 4, "codebook_size": 256},
        phonemes=["<pad>"],
        languages=["en"],
        speakers=["a"],
        shards=entries,
        heldout=[],
        aligners={"en": cid_of(b"aligner")},
        licences=["CC0-1.0"],
    )
    (folder / "manifest.json").write_bytes(sign_manifest(MemberKey.generate(), manifest))
    return manifest


def test_the_named_files_are_taken_and_no_others(tmp_path: Path) -> None:
    manifest = write(tmp_path / "data", [100, 3 * MIB + 5])
    (tmp_path / "data" / "notes.txt").write_bytes(b"mine")
    store = BlockStore(tmp_path / "blocks")
    taken = import_dataset("data", (), store, relative_to=tmp_path)
    for entry in manifest.shards:
        assert store.read_file(entry.cid) == (tmp_path / "data" / "shards" / f"{entry.cid}.parquet").read_bytes()
    assert store.read_file(manifest.aligners["en"]) == b"aligner" and not store.has(cid_of(b"mine"))
    assert set(taken.pinned) == {taken.cid, manifest.aligners["en"], *(entry.cid for entry in manifest.shards)}


def test_a_damaged_or_missing_shard_is_refused(tmp_path: Path) -> None:
    manifest = write(tmp_path / "data", [100, 200])
    path = tmp_path / "data" / "shards" / f"{manifest.shards[1].cid}.parquet"
    path.write_bytes(b"other")
    with pytest.raises(HocketError) as caught:
        import_dataset("data", (), BlockStore(tmp_path / "one"), relative_to=tmp_path)
    assert caught.value.code is Code.SHARD_DAMAGED and manifest.shards[1].cid in caught.value.detail
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(HocketError) as caught:
        import_dataset("data", (), BlockStore(tmp_path / "two"), relative_to=tmp_path)
    assert caught.value.code is Code.SHARD_DAMAGED


def test_a_shard_under_another_name_is_found_by_its_content(tmp_path: Path) -> None:
    manifest = write(tmp_path / "data", [100])
    (tmp_path / "data" / "shards" / f"{manifest.shards[0].cid}.parquet").rename(tmp_path / "data" / "renamed.bin")
    store = BlockStore(tmp_path / "blocks")
    import_dataset("data", (), store, relative_to=tmp_path)
    assert store.read_file(manifest.shards[0].cid) == (tmp_path / "data" / "renamed.bin").read_bytes()


PEAK = """
import sys
from pathlib import Path
from coordinator.dataset import import_dataset
from swarm.blocks import BlockStore
from simulations.usage import peak_bytes

folder = Path(sys.argv[1])
import_dataset("data", (), BlockStore(folder / "blocks"), relative_to=folder)
print(peak_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_dataset_needs_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    peaks = {}
    for size in (2, 128):
        write(tmp_path / str(size) / "data", [size * MIB // 2] * 2)
        command = [sys.executable, "-c", PEAK, str(tmp_path / str(size))]
        peaks[size] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert peaks[128] - peaks[2] < 8 * MIB
