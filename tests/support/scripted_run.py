"""A short run whose members are scripted, and what it comes to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import forked_core
from core_members import RUN_ID, Crowd

from common.faults import NO_FAULTS
from coordinator.journal import Journal
from coordinator.start import fold
from protocol.content import file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, VersionManifest, read_manifest, sign_manifest
from swarm.blocks import BlockStore

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ROUNDS = 2
MEMBERS = 5  # two replicas a stage and a standby
RUN = f"""
[run]
id = "{RUN_ID}"
seed = 3
[model]
preset = "test"
stages = 2
[data]
manifest = "dataset"
[rounds]
count = {ROUNDS}
frames_per_inner_step = 400
microbatches_per_inner_step = 2
inner_steps = 2
inner_lr = 0.01
outer_lr = 0.7
outer_momentum = 0.9
replicas_wanted = 2
gather_s = 30
deadline_floor_s = 2
deadline_ceiling_s = 30
[audit]
rate = 1.0
[membership]
silence_s = 3
standbys = 1
[checkpoint]
keep = 2
best = 0
"""


def write_dataset(folder: Path) -> None:
    """A signed manifest with shards whose content the coordinator never reads."""
    (folder / "shards").mkdir(parents=True)
    entries = []
    for index in range(3):
        path = folder / "shards" / f"{index}.parquet"
        path.write_bytes(bytes([index]) * (1000 + index))
        entries.append(ShardEntry(cid=file_cid(path), rows=20, frames=2000, size_bytes=path.stat().st_size))
    manifest = DatasetManifest(
        name="scripted", codec={"kind": "small", "n_codebooks": 4, "codebook_size": 32}, phonemes=["_", "a", "b"],
        languages=["en"], speakers=["x"], shards=entries[:2], heldout=entries[2:], licences=["CC0-1.0"],
    )  # fmt: skip
    (folder / "manifest.json").write_bytes(sign_manifest(MemberKey.generate(), manifest))


def write_run(folder: Path) -> Path:
    """The run file and its dataset."""
    write_dataset(folder / "dataset")
    (folder / "run.toml").write_text(RUN)
    return folder / "run.toml"


def outcome(state_dir: Path, crowd: Crowd) -> dict[str, Any]:
    """What a run came to, without times: versions byte by byte, rounds, the data order, and every file that is left."""
    journal = Journal(state_dir / "journal.sqlite", NO_FAULTS)
    state = fold(journal)
    journal.close()
    store = BlockStore(state_dir / "blocks")
    kept = [one for one in state.versions if store.has(one["cid"])]
    manifests = [read_manifest(VersionManifest, store.read_file(one["cid"]), signer=forked_core.KEY.public) for one in kept]
    for manifest in manifests:
        for stage in manifest.stages:
            store.read_file(stage.cid)
            if stage.momentum_cid is not None:
                store.read_file(stage.momentum_cid)
    updates = {(manifest.round, one.stage, one.member, one.sha256) for manifest in manifests for one in manifest.accepted}
    first_kept = min(manifest.round for manifest in manifests)
    refused = {(manifest.round, one.stage, one.member) for manifest in manifests for one in manifest.refused}
    lost = {one for one in crowd.acknowledged - updates if one[0] >= first_kept and one[:3] not in refused}
    files = sorted(str(path.relative_to(state_dir)) for path in state_dir.rglob("*") if path.is_file())
    return {
        "versions": state.versions,
        "rounds": [{key: value for key, value in one.items() if key != "seconds"} for one in state.rounds],
        "cursor": [state.cursor.epoch, state.cursor.position],
        "returned": [[one.epoch, one.start, one.stop] for one in state.returned],
        "next_lease_id": state.next_lease_id,
        "frames": state.frames_counted,
        "lost_updates": sorted(lost),
        # Not which microbatches: whose turn it is after a crash may differ.
        "audits": sorted([one.kind, one.round, one.stage, one.member, one.step] for one in state.audit.audits.values()),
        "files": [name for name in files if not name.startswith("journal.sqlite")],
    }
