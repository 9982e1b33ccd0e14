"""Gives the run's versions and its dataset to an IPFS node and to a pinning service, beside the training.

    <state>/ipfs.json     how far each file has come

Nothing waits for it: if nobody answers, that is logged and tried again, and the block store serves the same CIDs meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from coordinator.core import Core
from coordinator.push_plan import Kind, Progress, Step, Wanted, failed, next_step, succeeded, summary, tidied
from coordinator.retention import retained_by
from protocol.car import write_car
from protocol.manifest import VersionManifest, read_manifest
from swarm.blocks import BlockStore
from swarm.ipfs_pinning import PinningService, PinState, PinStatus
from swarm.ipfs_rpc import IpfsNode

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
MOST_BYTES = 64 << 20  # of the file that keeps the progress


def version_files(cid: str, manifest: VersionManifest) -> list[tuple[str, str]]:
    """The files of a version as (CID, name): those it refers to first, so that whoever finds the manifest finds the rest."""
    name = f"{manifest.run_id} version {manifest.version}"
    found = [(stage.cid, f"{name} stage {stage.stage}") for stage in manifest.stages]
    found += [(stage.momentum_cid, f"{name} momentum {stage.stage}") for stage in manifest.stages if stage.momentum_cid]
    return [*found, (cid, f"{name} manifest")]


class Pushing:
    """The loop that pushes.

    Args:
        core: of the run. store: its block store. signer: the coordinator's public key, under which versions are signed.
        state_dir: of the coordinator. token: of the pinning service, where the run file names one.

    Raises:
        HocketError: OPTION_INVALID for an address or a token that is none; EXTRA_MISSING; STATE_UNREADABLE.
    """

    def __init__(self, core: Core, store: BlockStore, signer: bytes, state_dir: Path, *, token: str) -> None:
        ipfs = core.config.ipfs
        self._core = core
        self._store = store
        self._signer = signer
        self._path = state_dir / "ipfs.json"
        self._node = IpfsNode(ipfs.rpc)
        self._service = PinningService(ipfs.pinning, token) if ipfs.pinning else None
        self._names: dict[str, list[tuple[str, str]]] = {}
        self.progress = read_progress(self._path)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                revision = self._core.state.revision
                step = await self.step()
                if step.kind is Kind.WAIT:
                    await self._core.news(revision, min(LOOK_AGAIN_S, step.wait_s or LOOK_AGAIN_S))
        finally:
            await self.close()

    async def close(self) -> None:
        """Give up the connections; `run` does so when it ends."""
        await self._node.close()
        if self._service is not None:
            await self._service.close()

    async def step(self) -> Step:
        """Find out what is next and carry it out, unless it is to wait; what fails is remembered for later, not raised."""
        wanted = await asyncio.to_thread(self._wanted)
        self.progress = tidied(wanted, self.progress)
        step = next_step(wanted, self.progress, self._core.clock(), service=self._service is not None)
        if step.kind is not Kind.WAIT:
            await self._carry_out(step, wanted)
        rounds = {one["round"]: [root for root, _ in self._names.get(one["cid"], ())] for one in self._core.state.versions}
        self._core.ipfs = summary(wanted, rounds, self.progress)
        return step

    def _wanted(self) -> list[Wanted]:
        """All that is to be out there: of versions that the store has lost, or is just dropping, nothing."""
        state = self._core.state
        found: list[Wanted] = []
        # The newest first.
        kept = list(retained_by(state, self._core.config.checkpoint, self._core.pins))[::-1]
        self._names = {cid: files for cid, files in self._names.items() if cid in kept}
        for cid in kept:
            if cid not in self._names:
                try:
                    manifest = read_manifest(VersionManifest, self._store.read_file(cid), signer=self._signer)
                except HocketError as error:
                    logger.warning("version %s is not pushed: %s", cid, error.line())
                    continue
                self._names[cid] = version_files(cid, manifest)
            found += [Wanted(root, name, "version") for root, name in self._names[cid]]
        pinned = list(state.dataset.get("pinned", ()))
        manifest_cid = state.dataset.get("cid")
        # The manifest last, as for versions.
        files = [cid for cid in pinned if cid != manifest_cid] + [cid for cid in pinned if cid == manifest_cid]
        return found + [Wanted(root, f"dataset {state.dataset.get('name', '')} {root[-8:]}", "dataset") for root in files]

    async def _carry_out(self, step: Step, wanted: Sequence[Wanted]) -> None:
        name = next((one.name for one in wanted if one.root == step.root), step.root)
        logger.debug("%s %s: %s", step.kind, step.root, step.reason)
        try:
            status = await self._do(step, name)
        except HocketError as error:
            logger.warning("IPFS, %s of %s (%s), is tried again: %s", step.kind, name, step.root, error.line())
            self.progress = failed(
                step, self.progress, self._core.clock(), unreachable=error.code is Code.IPFS_UNREACHABLE,
                forget_request=step.kind is Kind.ASK and error.code is Code.BLOCK_NOT_FOUND,
            )  # fmt: skip
        else:
            kept = status is not None and status.state is PinState.PINNED
            request_id = status.request_id if status is not None else ""
            self.progress = succeeded(step, wanted, self.progress, self._core.clock(), request_id=request_id, kept=kept)
            if step.kind is Kind.PUSH or kept:
                logger.info("%s (%s) is kept by %s", name, step.root, "the pinning service" if kept else "the IPFS node")
        await self._remember()

    async def _do(self, step: Step, name: str) -> PinStatus | None:
        """Carry a step out; what the pinning service says, where it was asked."""
        if step.kind is Kind.PUSH:
            await self._node.import_car(step.root, write_car(step.root, self._store.get))
            return None
        if step.kind is Kind.UNPIN:
            await self._node.unpin(step.root)
            return None
        if self._service is None:
            raise AssertionError(f"{step.kind} without a pinning service")
        request_id = self.progress.file(step.root).request_id
        if step.kind is Kind.WITHDRAW:
            await self._service.withdraw(request_id)
            return None
        if step.kind is Kind.ASK:
            return _not_given_up(await self._service.status(request_id))
        status = _not_given_up(await self._service.request(step.root, name=name, origins=await self._origins()))
        for multiaddr in status.delegates if status.state is not PinState.PINNED else ():
            # Only a help: the service finds the node by its origins as well.
            with contextlib.suppress(HocketError):
                await self._node.connect(multiaddr)
        return status

    async def _origins(self) -> tuple[str, ...]:
        try:
            return await self._node.multiaddrs()
        except HocketError as error:
            logger.info("the IPFS node does not say where it can be reached: %s", error.line())
            return ()

    async def _remember(self) -> None:
        try:
            await asyncio.to_thread(atomic_write, self._path, self.progress.model_dump_json(exclude_defaults=True).encode())
        except HocketError as error:
            logger.warning("how far IPFS is could not be kept; after a restart files may be pushed again: %s", error.line())


def _not_given_up(status: PinStatus) -> PinStatus:
    if status.state is PinState.FAILED:
        raise HocketError(Code.BLOCK_NOT_FOUND, f"the pinning service gave up {status.cid}, request {status.request_id}")
    return status


def read_progress(path: Path) -> Progress:
    """What an earlier start has kept; nothing if that is damaged, for then everything is pushed once more.

    Raises:
        HocketError: STATE_UNREADABLE if the file is there and cannot be read.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        return Progress.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Progress()
    except OSError as error:
        raise disk_error(error, path) from error
    except (ValueError, ValidationError) as error:
        logger.warning("%s is damaged, everything is pushed once more (%s)", path, str(error).splitlines()[0])
        return Progress()
