"""Fetches what a round needs, by CID, from whoever has it, and trusts none of it before it is checked.

A version is a manifest signed by the coordinator and one file a stage. What was fetched stays in the block store and is
served to others; files of versions that are no longer of use are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from protocol.manifest import DatasetManifest, StageFile, VersionManifest, read_manifest, refuse_older
from protocol.tensor_files import TensorInfo, read_tensors
from swarm.block_swarm import BlockSwarm, Providers
from swarm.ipfs_fallback import IpfsFallback
from swarm.store_keeper import DEFAULT_LIMIT_BYTES, StoreKeeper
from swarm.stored_stages import read_stage_file

logger = logging.getLogger(__name__)

MAX_MANIFEST_BYTES = 16 << 20
MAX_SHARD_BYTES = 1 << 30
MAX_OPENING_BYTES = 512 << 20
FILE_HEADER_BYTES = 16 << 20
KEEP_VERSIONS = 3


class _Memory(BaseModel):
    """What is kept between two starts of a worker: (manifest, stage file) of the versions held, the newest last."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    version: int | None = None
    held: list[tuple[str, str]] = []


class Versions:
    """The versions of a run as one worker fetches them.

    Args:
        swarm: fetches into our block store. coordinator_key: raw Ed25519 key that must have signed a version.
        run_id: of the run. state_dir: remembers the highest version seen, and holds a stage file while it is read.
        limit_bytes: of the store; what is used least goes when it is reached.
        fallback: asked for what no peer has; None: nothing is.
    """

    def __init__(
        self,
        swarm: BlockSwarm,
        coordinator_key: bytes,
        run_id: str,
        state_dir: Path,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        fallback: IpfsFallback | None = None,
    ) -> None:
        self._swarm = swarm
        self._store = swarm.store
        self._fallback = fallback if fallback is not None else IpfsFallback()
        self._keeper = StoreKeeper(swarm.store, limit_bytes, swarm.incoming.in_use)
        self._dataset_cid = ""
        self._coordinator_key = coordinator_key
        self._run_id = run_id
        self._memory_path = state_dir / "versions.json"
        self._work_path = state_dir / "stage.safetensors"
        self._opening_path = state_dir / "witness-input.safetensors"

    def _read_memory(self) -> _Memory:
        """The highest version number that this worker has taken of this run, and the files that it holds of versions."""
        try:
            data = self._memory_path.read_bytes()
        except FileNotFoundError:
            return _Memory(run_id=self._run_id)
        except OSError as error:
            raise disk_error(error, self._memory_path) from error
        try:
            memory = _Memory.model_validate_json(data)
        except ValidationError as error:
            raise HocketError(Code.STATE_UNREADABLE, f"{self._memory_path} is damaged") from error
        return memory if memory.run_id == self._run_id else _Memory(run_id=self._run_id)

    def _remember(self, memory: _Memory) -> None:
        atomic_write(self._memory_path, memory.model_dump_json().encode())

    def _hold(self, root: str, part: str) -> None:
        """Note a version's files as held, and drop those of versions before the last few."""
        memory = self._read_memory()
        held = [pair for pair in memory.held if pair != (root, part)] + [(root, part)]
        kept = {cid for pair in held[-KEEP_VERSIONS:] for cid in pair}
        for cid in [cid for pair in held[:-KEEP_VERSIONS] for cid in pair if cid not in kept]:
            self._store.remove_file(cid)
        self._remember(memory.model_copy(update={"held": held[-KEEP_VERSIONS:]}))

    async def _tidy(self) -> None:
        """Keep the store within its limit: the newest version and the dataset's manifest stay, older versions go last."""
        held = self._read_memory().held
        pinned = [*(held[-1] if held else ()), *([self._dataset_cid] if self._dataset_cid else ())]
        await self._keeper.tidy(pinned=pinned, spared=[cid for pair in held[:-1] for cid in pair])

    async def _bring(self, root: str, providers: Providers, *, max_bytes: int) -> None:
        """Fetch a file from peers, or, once they have not had it for a while, from gateways."""
        try:
            await self._swarm.fetch(root, providers, max_bytes=max_bytes)
        except HocketError as error:
            if error.code not in (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED):
                raise
            await self._fallback.after(error, self._store, root, max_bytes=max_bytes)
        else:
            self._fallback.came(root)

    async def manifest(self, cid: str, providers: Providers) -> VersionManifest:
        """Fetch and check the manifest of a version.

        Raises:
            HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED; MANIFEST_INVALID when the coordinator has not signed it or it is of
                another run; VERSION_ROLLED_BACK when it is older than one already taken.
        """
        await self._bring(cid, providers, max_bytes=MAX_MANIFEST_BYTES)
        data = self._store.read_file(cid, max_bytes=MAX_MANIFEST_BYTES)
        manifest = read_manifest(VersionManifest, data, signer=self._coordinator_key)
        if manifest.run_id != self._run_id:
            raise HocketError(Code.MANIFEST_INVALID, f"it is of run {manifest.run_id!r}, not of {self._run_id!r}")
        memory = self._read_memory()
        refuse_older(memory.version, manifest)
        if memory.version != manifest.version:
            self._remember(memory.model_copy(update={"version": manifest.version}))
        return manifest

    async def weights(
        self, root: str, manifest: VersionManifest, stage: int, expected: Sequence[TensorInfo], providers: Providers
    ) -> tuple[dict[str, np.ndarray], bytes]:
        """Fetch and check the file of one stage.

        Args:
            root: CID of the manifest.
            expected: the tensors that the stage has by our own reckoning; the manifest must say the same.

        Returns: float32 arrays by name, and the file's SHA-256.

        Raises:
            HocketError: MANIFEST_INVALID, BLOCK_NOT_FOUND, BLOCK_DAMAGED, CHECKPOINT_INVALID, NOT_FINITE.
        """
        part = self._part(manifest, stage, expected)
        await self._bring(part.cid, providers, max_bytes=part.size_bytes)
        weights = await asyncio.to_thread(read_stage_file, self._store, part, expected, self._work_path)
        await asyncio.to_thread(self._hold, root, part.cid)
        await self._tidy()
        return weights

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

    async def dataset(self, cid: str, providers: Providers) -> DatasetManifest:
        """Fetch and check a dataset's manifest: its CID came from the coordinator, its maker may be anyone."""
        await self._bring(cid, providers, max_bytes=MAX_MANIFEST_BYTES)
        self._dataset_cid = cid
        return read_manifest(DatasetManifest, self._store.read_file(cid, max_bytes=MAX_MANIFEST_BYTES), signer=None)

    async def opening(self, cid: str, providers: Providers) -> dict[str, np.ndarray]:
        """Fetch a file in which the coordinator hands on what came into a pass, and read its tensors; it is not kept.

        Raises:
            HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED, OPENING_INVALID.
        """
        await self._swarm.fetch(cid, providers, max_bytes=MAX_OPENING_BYTES)
        return await asyncio.to_thread(self._read_opening, cid)

    def _read_opening(self, cid: str) -> dict[str, np.ndarray]:
        try:
            self._store.export(cid, self._opening_path, max_bytes=MAX_OPENING_BYTES)
            return read_tensors(self._opening_path, code=Code.OPENING_INVALID)
        finally:
            self._opening_path.unlink(missing_ok=True)
            self._store.remove_file(cid)

    async def file(self, cid: str, providers: Providers) -> bytes:
        """The bytes of a shard."""
        await self._bring(cid, providers, max_bytes=MAX_SHARD_BYTES)
        data = await asyncio.to_thread(self._read, cid)
        await self._tidy()
        return data

    def _read(self, cid: str) -> bytes:
        data = self._store.read_file(cid, max_bytes=MAX_SHARD_BYTES)
        self._store.touch(cid)
        return data
