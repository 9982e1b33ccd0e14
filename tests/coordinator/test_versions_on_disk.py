"""The newest version survives damage in the block store, as long as its working files are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import Code, HocketError
from coordinator.versions import Versions
from protocol.content import cid_of
from protocol.identity import MemberKey
from protocol.manifest import VersionManifest
from protocol.tensor_files import write_tensors
from simulations.version_export import kept_versions
from swarm.blocks import BlockStore


def published(folder: Path) -> tuple[Versions, BlockStore, str, list[Path]]:
    """Version 3 of two stages, the first of more than one block and with momentum; also the paths of all its blocks."""
    store = BlockStore(folder / "blocks")
    versions = Versions(folder / "versions", store, MemberKey.generate())
    versions.folder(3).mkdir(parents=True)
    for stage, size in enumerate((600_000, 10)):
        write_tensors(versions.weights_path(3, stage), {"w": np.arange(size, dtype=np.float32)})
    write_tensors(versions.momentum_path(3, 0), {"w": np.ones(600_000, dtype=np.float32)})
    stages = [versions.stage_file(3, stage, momentum=stage == 0) for stage in range(2)]
    manifest = VersionManifest(
        run_id="r", version=3, round=3, model={}, stages=stages, outer={}, data_cursor={}, accepted=[], refused=[],
        heldout_loss=None, dataset_cid=cid_of(b"data"), codec={},
    )  # fmt: skip
    cid = versions.publish(manifest)
    return versions, store, cid, sorted((folder / "blocks").glob("*/*"))


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damaged_blocks_are_put_back(tmp_path: Path, how: str) -> None:
    versions, store, cid, blocks = published(tmp_path)
    assert len(blocks) > 6
    before = [path.read_bytes() for path in blocks]
    for path, data in zip(blocks, before, strict=True):
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if how == "cut" else bytes([data[0] ^ 1]) + data[1:])
    manifest = versions.restore(3, cid)
    assert manifest.version == 3 and manifest == versions.load(cid)
    assert [path.read_bytes() for path in blocks] == before
    for one in manifest.stages:
        assert store.read_file(one.cid) == versions.weights_path(3, one.stage).read_bytes()


def test_what_nobody_has_is_a_damaged_state(tmp_path: Path) -> None:
    versions, _, cid, blocks = published(tmp_path)
    weights = versions.weights_path(3, 1)
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    for path in blocks:
        path.unlink()
    with pytest.raises(HocketError) as caught:
        versions.restore(3, cid)
    assert caught.value.code is Code.STATE_UNREADABLE and "backup" in caught.value.line()


def test_an_intact_version_is_only_read(tmp_path: Path) -> None:
    versions, _, cid, blocks = published(tmp_path)
    times = [path.stat().st_mtime_ns for path in blocks]
    versions.restore(3, cid)
    assert [path.stat().st_mtime_ns for path in blocks] == times


class Dying(BlockStore):
    """Fails as a process that is killed does: after so many removals nothing more happens."""

    left = 0

    def remove(self, cid: str) -> None:
        if self.left == 0:
            raise InterruptedError
        self.left -= 1
        super().remove(cid)


@pytest.mark.parametrize("removals", range(8))
def test_pruning_that_was_cut_short_is_finished_by_the_next_one(tmp_path: Path, removals: int) -> None:
    versions, store, cid, _ = published(tmp_path)
    other = store.add_bytes(b"the dataset")
    dying = Dying(tmp_path / "blocks")
    dying.left = removals
    cut = Versions(tmp_path / "versions", dying, versions._key)
    manifest = versions.load(cid)
    kept = manifest.model_copy(update={"version": 4, "stages": [manifest.stages[1].model_copy(update={"stage": 0})]})
    newest = versions.publish(kept)
    both = [{"version": 3, "cid": cid}, {"version": 4, "cid": newest}]
    with pytest.raises(InterruptedError):
        cut.prune(both, {newest}, roots=[other])
    versions.prune(both, {newest}, roots=[other])
    left = {path.name for path in (tmp_path / "blocks").glob("*/*")}
    assert left == {other, newest, manifest.stages[1].cid}


def test_of_a_version_that_stays_the_manifest_is_still_listed_and_its_blocks_are_whole(tmp_path: Path) -> None:
    versions, store, cid, _ = published(tmp_path)
    manifest = versions.load(cid)
    newer = [versions.publish(manifest.model_copy(update={"version": number})) for number in (4, 5)]
    both = [{"version": number, "cid": one} for number, one in zip((3, 4, 5), (cid, *newer), strict=True)]
    versions.drop_working_files(5, {3})
    versions.prune(both, {cid, newer[1]}, roots=[])
    assert [path.name for path in sorted(versions.folder(3).iterdir())] == ["manifest.json"]
    assert not versions.folder(4).exists() and not store.has(newer[0])
    assert [one.manifest.version for one in kept_versions(tmp_path)] == [3, 5]
    for one in manifest.stages:
        assert len(store.read_file(one.cid)) == one.size_bytes
    # Its working files are made again where they are wanted.
    assert versions.files(manifest, 0).weights.stat().st_size == manifest.stages[0].size_bytes
