"""Fetches what a round needs, by CID, from whoever has it, and trusts none of it before it is checked.

A version is a manifest signed by the coordinator and one file a stage. What was fetched stays in the block store and is
served to others; files of versions that are no longer of use are dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from protocol.manifest import DatasetManifest, StageFile, VersionManifest, read_manifest, refuse_older
from protocol.tensor_files import TensorInfo, read_checked
from swarm.block_service import fetch
from swarm.blocks import BlockStore
from swarm.carrier import Carrier, PeerAddress

logger = logging.getLogger(__name__)

MAX_MANIFEST_BYTES = 16 << 20
MAX_SHARD_BYTES = 1 << 30
FILE_HEADER_BYTES = 16 << 20


class Versions:
    """The versions of a run as one worker fetches them.

    Args:
        carrier, store: ours. coordinator_key: raw Ed25519 key that must have signed a version.
        run_id: of the run. state_dir: remembers the highest version seen, and holds a stage file while it is read.
    """

    def __init__(self, carrier: Carrier, store: BlockStore, coordinator_key: bytes, run_id: str, state_dir: Path) -> None:
        self._carrier = carrier
        self._store = store
        self._coordinator_key = coordinator_key
        self._run_id = run_id
        self._seen_path = state_dir / "seen-version.json"
        self._work_path = state_dir / "stage.safetensors"

    def _seen(self) -> int | None:
        """The highest version number that this worker has taken of this run."""
        try:
            seen = json.loads(self._seen_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(error, self._seen_path) from error
        except ValueError as error:
            raise HocketError(Code.STATE_UNREADABLE, f"{self._seen_path} is damaged") from error
        number = seen.get(self._run_id) if isinstance(seen, dict) else None
        return number if isinstance(number, int) else None

    def _remember(self, number: int) -> None:
        atomic_write(self._seen_path, json.dumps({self._run_id: number}).encode())

    async def manifest(self, cid: str, providers: Sequence[PeerAddress]) -> VersionManifest:
        """Fetch and check the manifest of a version.

        Raises:
            HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED; MANIFEST_INVALID when the coordinator has not signed it or it is of
                another run; VERSION_ROLLED_BACK when it is older than one already taken.
        """
        await fetch(self._carrier, self._store, cid, providers, max_bytes=MAX_MANIFEST_BYTES)
        data = self._store.read_file(cid, max_bytes=MAX_MANIFEST_BYTES)
        manifest = read_manifest(VersionManifest, data, signer=self._coordinator_key)
        if manifest.run_id != self._run_id:
            raise HocketError(Code.MANIFEST_INVALID, f"it is of run {manifest.run_id!r}, not of {self._run_id!r}")
        seen = self._seen()
        refuse_older(seen, manifest)
        if seen != manifest.version:
            self._remember(manifest.version)
        return manifest

    async def weights(
        self, manifest: VersionManifest, stage: int, expected: Sequence[TensorInfo], providers: Sequence[PeerAddress]
    ) -> tuple[dict[str, np.ndarray], bytes]:
        """Fetch and check the file of one stage.

        Args:
            expected: the tensors that the stage has by our own reckoning; the manifest must say the same.

        Returns: float32 arrays by name, and the file's SHA-256.

        Raises:
            HocketError: MANIFEST_INVALID, BLOCK_NOT_FOUND, BLOCK_DAMAGED, CHECKPOINT_INVALID, NOT_FINITE.
        """
        part = self._part(manifest, stage, expected)
        await fetch(self._carrier, self._store, part.cid, providers, max_bytes=part.size_bytes)
        return await asyncio.to_thread(self._read, part, expected)

    def _read(self, part: StageFile, expected: Sequence[TensorInfo]) -> tuple[dict[str, np.ndarray], bytes]:
        try:
            self._store.export(part.cid, self._work_path, max_bytes=part.size_bytes)
            with self._work_path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").digest()
            if found.hex() != part.sha256:
                raise HocketError(
                    Code.MANIFEST_INVALID, f"the file of stage {part.stage} does not have the SHA-256 that its manifest says"
                )
            return read_checked(self._work_path, expected), found
        except OSError as error:
            raise disk_error(error, self._work_path) from error
        finally:
            self._work_path.unlink(missing_ok=True)

    def _part(self, manifest: VersionManifest, stage: int, expected: Sequence[TensorInfo]) -> StageFile:
        if stage >= len(manifest.stages):
            raise HocketError(Code.MANIFEST_INVALID, f"it has {len(manifest.stages)} stages, stage {stage} is wanted")
        part = manifest.stages[stage]
        said = {TensorInfo(entry.name, entry.dtype, tuple(entry.shape)) for entry in part.tensors}
        if said != set(expected):
            odd = sorted(info.name for info in said ^ set(expected))
            raise HocketError(Code.MANIFEST_INVALID, f"stage {stage} has other tensors than the model: {', '.join(odd[:3])}")
        if part.size_bytes > sum(info.size_bytes for info in expected) + FILE_HEADER_BYTES:
            raise HocketError(Code.MANIFEST_INVALID, f"the file of stage {stage} is said to have {part.size_bytes} bytes")
        return part

    async def dataset(self, cid: str, providers: Sequence[PeerAddress]) -> DatasetManifest:
        """Fetch and check a dataset's manifest: its CID came from the coordinator, its maker may be anyone."""
        await fetch(self._carrier, self._store, cid, providers, max_bytes=MAX_MANIFEST_BYTES)
        return read_manifest(DatasetManifest, self._store.read_file(cid, max_bytes=MAX_MANIFEST_BYTES), signer=None)

    async def file(self, cid: str, providers: Sequence[PeerAddress]) -> bytes:
        """The bytes of a shard."""
        await fetch(self._carrier, self._store, cid, providers, max_bytes=MAX_SHARD_BYTES)
        return self._store.read_file(cid, max_bytes=MAX_SHARD_BYTES)
