"""A run whose versions are there without anybody having trained them, for tests of what is pushed to IPFS."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

from small_run import small_run

from common.faults import NO_FAULTS
from coordinator.core import Core
from coordinator.journal import Journal
from coordinator.push_plan import Kind
from coordinator.pushing import Pushing, version_files
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from protocol.identity import MemberKey
from protocol.manifest import StageFile, VersionManifest, read_manifest, sign_manifest
from swarm.blocks import BlockStore

TOML = small_run(9) + "[ipfs]\n"


class Run:
    """A core with a dataset of two files, whose versions are there without anybody having trained them.

    Args:
        folder: of its state. url: of the IPFS node, and with `pinning` of the pinning service.
    """

    def __init__(self, folder: Path, url: str, *, pinning: bool = False) -> None:
        self.folder = folder
        self.now = 1000.0
        self.key = MemberKey.generate()
        self.store = BlockStore(folder / "blocks")
        toml = TOML + f'rpc = "{url}"\n' + (f'pinning = "{url}"\n' if pinning else "")
        self.journal = Journal(folder / "journal.sqlite", NO_FAULTS)
        self.core = Core(RunConfig.parse(toml), self.journal, RunState(), NO_FAULTS, lambda: self.now)
        self.pinned = [self.store.add_bytes(b"manifest"), self.store.add_bytes(bytes(3 << 20))]
        dataset = {
            "rows": 6, "frames": 600, "heldout_rows": 6, "cid": self.pinned[0], "codec": {}, "name": "s", "pinned": self.pinned,
        }  # fmt: skip
        self.core.emit("created", run_id="r", run_toml=toml, stages=2, model_config={}, dataset=dataset)

    def publish(self, round: int) -> set[str]:
        """A new version, of which one stage is as it was; the CIDs of its files."""
        stages = []
        for stage, text in enumerate((f"stage of round {round}", "a stage that nobody trains")):
            data = text.encode() * 1000
            sha256 = hashlib.sha256(data).hexdigest()
            stages.append(StageFile(stage=stage, cid=self.store.add_bytes(data), sha256=sha256, size_bytes=len(data), tensors=[]))
        manifest = VersionManifest(
            run_id="r", version=round, round=round, model={}, stages=stages, dataset_cid=self.pinned[0]
        )  # fmt: skip
        cid = self.store.add_bytes(sign_manifest(self.key, manifest))
        self.core.emit("version", version=round, round=round, cid=cid, frames=0, record=None)
        return self.files(cid)

    def files(self, cid: str) -> set[str]:
        found = read_manifest(VersionManifest, self.store.read_file(cid), signer=self.key.public)
        return {root for root, _ in version_files(cid, found)}

    def pushing(self, token: str = "secret") -> Pushing:
        return Pushing(self.core, self.store, self.key.public, self.folder, token=token)

    def push_until(self, done: Callable[[Pushing], bool], pushing: Pushing | None = None) -> Pushing:
        """Step by step until `done`; pauses are skipped by the clock."""
        pushing = pushing or self.pushing()

        async def work() -> None:
            try:
                for _ in range(200):
                    if done(pushing):
                        return
                    step = await pushing.step()
                    assert step.kind is not Kind.WAIT or step.wait_s is not None, "there is nothing left to do"
                    self.now += step.wait_s or 0.1
                raise AssertionError("it does not come to an end")
            finally:
                await pushing.close()

        asyncio.run(work())
        return pushing
