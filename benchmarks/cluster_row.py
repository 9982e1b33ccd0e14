"""One row of the pipeline benchmark: a whole Hocket run, its coordinator and workers as processes, over libp2p and gRPC."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pipeline import Timing
from benchmarks.workload import CODEBOOK_SIZE, CODEBOOKS, INVENTORY, LANGUAGE, N_FRAMES, Workload, utterance
from common.errors import Code, HocketError
from common.files import atomic_write
from common.log import read_events
from protocol.content import cid_of
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from simulations.cluster import Cluster
from simulations.following import follow
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_file
from tokenizer.phonemes import PAD
from tokenizer.shards import shard_bytes

ROWS_PER_SHARD = 256
LIMIT_S = 1800.0


def write_dataset(work: Workload, folder: Path, *, heldout: int = 0) -> Path:
    """The workload's utterances as a signed dataset: as many as its inner steps need, and `heldout` more; returns the folder."""
    trained = work.steps * work.utterances_per_step
    codec = {"kind": "random", "sample_rate": 16000, "frame_rate": 50.0, "hop": 320}
    manifest = DatasetManifest(
        name="random",
        codec={**codec, "n_codebooks": CODEBOOKS, "codebook_size": CODEBOOK_SIZE},
        phonemes=[PAD, *(f"p{number}" for number in range(1, INVENTORY))],
        languages=[LANGUAGE],
        speakers=["random"],
        shards=_write_shards(work, folder, range(trained)),
        heldout=_write_shards(work, folder, range(trained, trained + heldout)),
        licences=["CC0-1.0"],
    )
    atomic_write(folder / "manifest.json", sign_manifest(MemberKey.generate(), manifest))
    return folder


def _write_shards(work: Workload, folder: Path, numbers: range) -> list[ShardEntry]:
    entries = []
    for start in range(0, len(numbers), ROWS_PER_SHARD):
        rows = [utterance(work.seed, number) for number in numbers[start : start + ROWS_PER_SHARD]]
        data = shard_bytes(rows)
        entry = ShardEntry(cid=cid_of(data), rows=len(rows), frames=len(rows) * N_FRAMES, size_bytes=len(data))
        atomic_write(folder / "shards" / f"{entry.cid}.parquet", data)
        entries.append(entry)
    return entries


def settings_of(work: Workload, stages: int) -> SimulationSettings:
    """The run: one round of all the workload's inner steps, one replica a stage."""
    return SimulationSettings(
        name="bench",
        preset=work.preset,
        stages=stages,
        replicas=1,
        rounds=1,
        inner_steps=work.steps,
        frames_per_inner_step=work.frames_per_step,
        microbatches_per_inner_step=work.microbatches,
        warm_up_steps=0,
        wire=work.wire,
        seed=work.seed,
        poll_s=1.0,
        time_limit_s=LIMIT_S,
        extra={"rounds": {"evaluate": False, "deadline_floor_s": LIMIT_S, "deadline_ceiling_s": LIMIT_S}},
    )


def step_seconds(events: list[dict[str, Any]], steps: int) -> list[float]:
    """Seconds between the ends of a stage-0 replica's inner steps; the first one's begin is that of its first lease.

    Raises:
        HocketError: CHILD_FAILED when the log does not show that many steps.
    """
    ends = [float(event["time"]) for event in events if event["event"] == "inner_step"]
    begins = [float(event["time"]) for event in events if event["event"] == "lease"]
    if len(ends) != steps or not begins:
        raise HocketError(Code.CHILD_FAILED, f"the first stage logged {len(ends)} of {steps} inner steps")
    return [later - earlier for earlier, later in zip([begins[0], *ends[:-1]], ends, strict=True)]


async def _run(work: Workload, stages: int, folder: Path) -> Timing:
    settings = settings_of(work, stages)
    run_toml = folder / "run.toml"
    atomic_write(run_toml, run_file(settings, write_dataset(work, folder / "data")).encode())
    async with Cluster(folder, threads=1) as cluster:
        ticket = await cluster.start_coordinator(run_toml)
        await asyncio.gather(*(cluster.start_worker(ticket) for _ in range(stages)))
        status, _ = await follow(cluster, ticket, settings, Quiet())
        logs = [read_events(worker.state_dir / "events.jsonl") for worker in cluster.workers]
        usage = {child.name: child.usage for child in [*cluster.workers, cluster.coordinator] if child is not None}
    first = next((log for log in logs if any(event["event"] == "microbatch" for event in log)), [])
    (entry,) = status["rounds"]
    if entry["frames"] != work.steps * work.frames_per_step:
        raise HocketError(Code.CHILD_FAILED, f"the run counted {entry['frames']} frames")
    extra = {
        "bytes_sent": status["bytes"],
        "round_s": entry["seconds"],
        "pss_bytes": {name: used.total_bytes for name, used in usage.items()},
        "python_cpu_s": {name: used.own_cpu_s for name, used in usage.items()},
        "children_cpu_s": {name: used.children_cpu_s for name, used in usage.items()},
    }
    return Timing(step_seconds(first, work.steps), [entry["loss"]], extra)


def time_cluster(work: Workload, stages: int) -> Timing:
    """Run it in a temporary folder; the processes inherit this process's cores."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        return asyncio.run(_run(work, stages, Path(folder)))
