"""Kills a coordinator at every point of a scripted run, and compares what it comes to with the run that nobody disturbed.

    python tests/crash/sweep.py [--share 0.1] [--seed 1] [--again]

Each line of the output is one run as JSON; the last one sums up. Ends with status 1 when a run differed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import child
from members import RUN_ID, Crowd, Link, Member, Stuck

from common.faults import NO_FAULTS
from coordinator.journal import Journal
from coordinator.start import fold
from protocol.content import file_cid
from protocol.identity import MemberKey, PeerKey
from protocol.manifest import DatasetManifest, ShardEntry, VersionManifest, read_manifest, sign_manifest
from swarm.blocks import BlockStore

ROUNDS = 3
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
[membership]
silence_s = 3
[checkpoint]
keep = 2
"""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def write_run(folder: Path) -> Path:
    """The run file and its dataset, whose shards nobody reads."""
    shards = folder / "dataset" / "shards"
    shards.mkdir(parents=True)
    entries = []
    for index in range(3):
        path = shards / f"{index}.parquet"
        path.write_bytes(bytes([index]) * (1000 + index))
        entries.append(ShardEntry(cid=file_cid(path), rows=20, frames=2000, size_bytes=path.stat().st_size))
    manifest = DatasetManifest(
        name="sweep", codec={"kind": "small", "n_codebooks": 4, "codebook_size": 32}, phonemes=["_", "a", "b"],
        languages=["en"], speakers=["x"], shards=entries[:2], heldout=entries[2:], licences=["CC0-1.0"],
    )  # fmt: skip
    (folder / "dataset" / "manifest.json").write_bytes(sign_manifest(MemberKey.generate(), manifest))
    (folder / "run.toml").write_text(RUN)
    return folder / "run.toml"


def outcome(state_dir: Path, crowd: Crowd) -> dict[str, Any]:
    """What a run came to, without times: versions byte by byte, rounds, the data order, and every file that is left."""
    journal = Journal(state_dir / "journal.sqlite", NO_FAULTS)
    state = fold(journal)
    journal.close()
    store = BlockStore(state_dir / "blocks")
    kept = [one for one in state.versions if store.has(one["cid"])]
    manifests = [read_manifest(VersionManifest, store.read_file(one["cid"]), signer=child.KEY.public) for one in kept]
    for manifest in manifests:
        for stage in manifest.stages:
            store.read_file(stage.cid)
            if stage.momentum_cid is not None:
                store.read_file(stage.momentum_cid)
    updates = {(manifest.round, one.stage, one.member, one.sha256) for manifest in manifests for one in manifest.accepted}
    first_kept = min(manifest.round for manifest in manifests)
    lost = {one for one in crowd.acknowledged if one[0] >= first_kept} - updates
    files = sorted(str(path.relative_to(state_dir)) for path in state_dir.rglob("*") if path.is_file())
    return {
        "versions": state.versions,
        "rounds": [{key: value for key, value in one.items() if key != "seconds"} for one in state.rounds],
        "cursor": [state.cursor.epoch, state.cursor.position],
        "returned": [[one.epoch, one.start, one.stop] for one in state.returned],
        "next_lease_id": state.next_lease_id,
        "frames": state.frames_counted,
        "lost_updates": sorted(lost),
        "files": [name for name in files if not name.startswith("journal.sqlite")],
    }


def play(folder: Path, run_toml: Path, members: list[Member], kills: Sequence[int], names: Path | None = None) -> tuple[dict[str, Any], int]:
    """One run from its first start to its end; what it came to, and how many starts it took."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    link = Link(folder, run_toml, iter(kills), names)
    crowd = Crowd(members, link)
    crowd.play()
    return outcome(link.state_dir, crowd), link.starts


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is not as in the undisturbed run."""
    return [f"{key}: {found[key]} instead of {expected[key]}" for key in expected if found[key] != expected[key]]


def sweep(share: float, seed: int, again: bool) -> Iterator[dict[str, Any]]:
    """Play the runs of a sweep; one record each.

    Args:
        share: of the points that are played, drawn by `seed`. again: kill the restarted coordinator, too, soon after.
    """
    draw = random.Random(seed)
    members = [Member(number + 1, PeerKey.generate()) for number in range(4)]
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        run_toml = write_run(folder)
        expected, _ = play(folder / "run", run_toml, members, [], folder / "names")
        points = (folder / "names").read_text().splitlines()
        yield {"points": len(points), "names": points}
        chosen = sorted(draw.sample(range(1, len(points) + 1), max(1, round(share * len(points)))))
        for number in chosen:
            kills = [number, draw.randint(1, 40), draw.randint(1, 80)] if again else [number]
            began = time.monotonic()
            try:
                found, starts = play(folder / "run", run_toml, members, kills)
                faults = differences(expected, found)
                if starts < 2:
                    faults.append("it was not killed")
            except (Stuck, child.Refusal) as error:
                faults, starts = [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)], 0
            yield {
                "point": number, "name": points[number - 1], "starts": starts, "seconds": round(time.monotonic() - began, 3),
                "differences": faults,
            }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    began, played, bad = time.monotonic(), 0, 0
    for record in sweep(given.share, given.seed, given.again):
        if "point" in record:
            played += 1
            bad += bool(record["differences"])
        print(json.dumps(record), flush=True)
    print(json.dumps({"played": played, "differed": bad, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
