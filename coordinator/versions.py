"""Versions on disk and in the block store: the working files of the newest one, and signed manifests by CID."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write, disk_errors
from coordinator.update_checks import measure
from protocol.content import RAW, file_cid, iter_file_blocks, links, parse_cid, read_file
from protocol.identity import MemberKey
from protocol.manifest import StageFile, TensorEntry, VersionManifest, read_manifest, sign_manifest
from protocol.tensor_files import TensorInfo
from swarm.blocks import DEFAULT_MAX_FILE_BYTES, BlockStore

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"


def tensor_infos(stage: StageFile) -> list[TensorInfo]:
    """What a stage's files hold, from its manifest entry."""
    return [TensorInfo(one.name, one.dtype, tuple(one.shape)) for one in stage.tensors]


def read_header(path: Path) -> list[TensorInfo]:
    """Names and shapes of a stage file that a child of ours wrote; all must be float32 (CHECKPOINT_INVALID)."""
    try:
        with path.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    except (OSError, ValueError) as error:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{path} ({error})") from error
    header.pop("__metadata__", None)
    other = sorted(name for name, entry in header.items() if entry["dtype"] != "F32")
    if other:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{path}: {other[0]!r} is not float32")
    return [TensorInfo(name, "float32", tuple(header[name]["shape"])) for name in sorted(header)]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class StageFiles:
    """Where a version's files of one stage are; `momentum` is None while there is none."""

    weights: Path
    momentum: Path | None


class Versions:
    """The versions of one run.

    Args:
        folder: for working files, `v<version>/stage-<i>.safetensors` and `.momentum.safetensors`.
        store: where everything is published.
        key: the coordinator's, which signs manifests.
    """

    def __init__(self, folder: Path, store: BlockStore, key: MemberKey) -> None:
        self._folder = folder
        self._store = store
        self._key = key

    def folder(self, version: int) -> Path:
        return self._folder / f"v{version}"

    def weights_path(self, version: int, stage: int) -> Path:
        return self.folder(version) / f"stage-{stage}.safetensors"

    def momentum_path(self, version: int, stage: int) -> Path:
        return self.folder(version) / f"stage-{stage}.momentum.safetensors"

    def _manifest_path(self, version: int) -> Path:
        return self.folder(version) / MANIFEST_NAME

    def stage_file(self, version: int, stage: int, *, sha256: str | None = None, momentum: bool) -> StageFile:
        """Put a stage's working files into the block store and describe them."""
        path = self.weights_path(version, stage)
        tensors = read_header(path)
        measure(path, tensors, Code.CHECKPOINT_INVALID)
        return StageFile(
            stage=stage,
            cid=self._store.add_file(path),
            sha256=sha256 or file_sha256(path),
            size_bytes=path.stat().st_size,
            tensors=[TensorEntry(name=one.name, dtype=one.dtype, shape=list(one.shape)) for one in tensors],
            momentum_cid=self._store.add_file(self.momentum_path(version, stage)) if momentum else None,
        )

    def publish(self, manifest: VersionManifest) -> str:
        """Sign a manifest and add it to the block store; returns its CID, the version's name."""
        data = sign_manifest(self._key, manifest)
        atomic_write(self._manifest_path(manifest.version), data)
        return self._store.add_bytes(data)

    def restore(self, version: int, cid: str) -> VersionManifest:
        """The newest version's manifest. What the block store has lost of the version, or holds damaged, is put back.

        Raises:
            HocketError: STATE_UNREADABLE if the working files do not have it either.
        """
        try:
            self._put_back(cid, self._manifest_path(version))
            manifest = self.load(cid)
            for one in manifest.stages:
                self._put_back(one.cid, self.weights_path(version, one.stage))
                if one.momentum_cid is not None:
                    self._put_back(one.momentum_cid, self.momentum_path(version, one.stage))
        except HocketError as error:
            if error.code not in (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED):
                raise
            raise HocketError(
                Code.STATE_UNREADABLE, f"version {version} is damaged in the block store ({error.detail})",
                remedy="restore the state directory from a backup",
            ) from error  # fmt: skip
        return manifest

    def _put_back(self, root: str, path: Path) -> None:
        """Make sure that every block of a file is in the store; a working file with these very bytes replaces what is not."""
        try:
            for _ in read_file(root, self._store.get, max_bytes=DEFAULT_MAX_FILE_BYTES):
                continue  # each block is checked as it is read
            return
        except HocketError as error:
            if error.code not in (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED) or not path.exists() or file_cid(path) != root:
                raise
        logger.warning("blocks of %s are missing or damaged; they are put back from %s", root, path)
        for cid, data in iter_file_blocks(path):
            self._store.remove(cid)
            self._store.put(cid, data)

    def load(self, cid: str) -> VersionManifest:
        """A manifest of ours, from the block store."""
        return read_manifest(VersionManifest, self._store.read_file(cid), signer=self._key.public)

    def files(self, manifest: VersionManifest, stage: int) -> StageFiles:
        """The working files of one stage of a version; fetched from the block store where they are missing or damaged."""
        entry = manifest.stages[stage]
        weights = self.weights_path(manifest.version, stage)
        if not weights.exists() or file_sha256(weights) != entry.sha256:
            self._store.export(entry.cid, weights)
        momentum = None
        if entry.momentum_cid is not None:
            momentum = self.momentum_path(manifest.version, stage)
            if not momentum.exists():
                self._store.export(entry.momentum_cid, momentum)
        return StageFiles(weights, momentum)

    def drop_working_files(self, newest: int, kept: Collection[int] = ()) -> None:
        """Remove working files of versions before `newest`; the block store has them. Of the `kept` ones the manifest stays."""
        with disk_errors(self._folder):
            for folder in self._folder.glob("v*"):
                if not folder.name[1:].isdigit() or int(folder.name[1:]) >= newest:
                    continue
                if int(folder.name[1:]) not in kept:
                    shutil.rmtree(folder)
                    continue
                for path in folder.iterdir():
                    if path.name != MANIFEST_NAME:
                        path.unlink()

    def prune(self, versions: Sequence[Mapping[str, Any]], stays: Collection[str], *, roots: Iterable[str]) -> list[str]:
        """Drop from the block store what only versions that do not stay refer to.

        Args:
            versions: all versions published, each with its `cid`.
            stays: CIDs of those that stay (`retention.retained`); roots: of what stays besides (the dataset).

        Returns:
            CIDs of the manifests that were dropped.
        """
        goes = [one["cid"] for one in versions if one["cid"] not in stays and self._store.has(one["cid"])]
        if not goes:
            return []
        kept = set(roots)
        for cid in stays:
            kept |= self._roots(cid)
        kept_blocks = {block for root in kept for block in self._blocks(root)}
        for cid in goes:
            # The manifest last: a kill on the way leaves what names the rest, and the next call goes on.
            for root in sorted(self._roots(cid), key=lambda root: (root == cid, root)):
                for block in self._blocks(root):
                    if block not in kept_blocks:
                        self._store.remove(block)
            logger.info("version manifest %s left the block store", cid)
        return goes

    def _roots(self, cid: str) -> set[str]:
        """The manifest and every file that it names, but the dataset."""
        manifest = self.load(cid)
        momenta = {stage.momentum_cid for stage in manifest.stages if stage.momentum_cid}
        return {cid, *(stage.cid for stage in manifest.stages), *momenta}

    def _blocks(self, root: str) -> list[str]:
        """The blocks under a root that the store has, children before their parent."""
        if not self._store.has(root):
            return []
        if parse_cid(root).codec == RAW:
            return [root]  # not read: most of a version is such blocks
        children = [block for link in links(root, self._store.get(root)) for block in self._blocks(link.cid)]
        return [*children, root]
