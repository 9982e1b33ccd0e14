"""What the other replicas are worth: a finished run beside one worker that takes as many inner steps on the same data by itself.

The worker alone sees one replica's share of the frames, so it takes about the same time on a machine of its own: the run must
reach a lower held-out loss. Same model, initial weights, sample order, microbatches and shape of the learning rate.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.result import BenchResult, machine_facts
from common.errors import Code, HocketError
from coordinator.leases import Cursor, Sizes, next_range
from coordinator.model_choice import choose_model
from coordinator.run_config import RunConfig
from protocol.manifest import DatasetManifest, read_manifest


def read_run(folder: Path) -> tuple[dict[str, Any], RunConfig, Path]:
    """Report, run file and data folder of a demo or simulation folder; OPTION_INVALID when it is none, or did not finish."""
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        config = RunConfig.parse(report["config"]["run_toml"])
    except (OSError, ValueError, KeyError) as error:
        raise HocketError(Code.OPTION_INVALID, f"{folder} is no folder of a finished run ({error})") from error
    data = Path(config.data.manifest)
    return report, config, data if data.is_dir() else data.parent


def train_alone(config: RunConfig, data: Path, *, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Train one worker by itself; returns its held-out loss per code, frames and seconds."""
    import torch

    from tokenizer.reader import DatasetReader
    from tts.evaluate_loss import heldout_loss
    from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches
    from tts.tempo import vary_tempo

    torch.set_num_threads(threads)
    manifest = read_manifest(DatasetManifest, (data / "manifest.json").read_bytes(), signer=None)

    async def get(cid: str) -> bytes:
        return (data / "shards" / f"{cid}.parquet").read_bytes()

    reader = DatasetReader(manifest, get)
    rounds = config.rounds
    sizes = Sizes(
        rows=sum(shard.rows for shard in manifest.shards),
        frames=sum(shard.frames for shard in manifest.shards),
        frames_per_inner_step=rounds.frames_per_inner_step,
        microbatches_per_inner_step=rounds.microbatches_per_inner_step,
    )
    steps = rounds.count * rounds.inner_steps
    model = choose_model(config, manifest)
    settings = InnerSettings(
        peak_lr=rounds.inner_lr,
        floor=rounds.lr_floor,
        warmup_frames=rounds.warmup_frames // rounds.replicas_wanted,
        total_frames=round(steps * sizes.rows_per_lease * sizes.mean_frames),
        weight_decay=rounds.weight_decay,
        clip_norm=rounds.clip_norm,
        seed=config.run.seed,
    )
    trainer = ReferenceTrainer(model, 1, settings, clip_stages=config.model.stages, seed=config.run.seed)
    cursor, identity, started = Cursor(), 0, time.perf_counter()
    for step in range(steps):
        grant = next_range(cursor, (), sizes)
        cursor = grant.cursor
        part = grant.range
        read = asyncio.run(reader.utterances(part.epoch, part.start, part.stop, config.run.seed))
        utterances = vary_tempo(read, model, seed=config.run.seed, epoch=part.epoch, first=part.start)
        batches = cut_microbatches(utterances, rounds.microbatches_per_inner_step, model, manifest.languages)
        result = trainer.inner_step([(identity + number, batch) for number, batch in enumerate(batches)])
        identity += len(batches)
        if (step + 1) % rounds.inner_steps == 0:
            say(f"alone, inner step {step + 1} of {steps}: loss {result.loss:.3f}")
    seconds = time.perf_counter() - started
    loss = heldout_loss(trainer.stages, asyncio.run(reader.heldout()), languages=manifest.languages).per_code
    return {"heldout_loss": loss, "frames": trainer.frames_done, "seconds": seconds, "inner_steps": steps}


def measure(folder: Path, *, threads: int, say: Callable[[str], None]) -> BenchResult:
    """Compare the run in `folder` with one worker alone.

    Raises:
        HocketError: OPTION_INVALID when the folder holds no finished run with held-out losses.
    """
    report, config, data = read_run(folder)
    rounds = report["rounds"]
    if not rounds or rounds[-1].get("heldout_loss") is None:
        raise HocketError(Code.OPTION_INVALID, f"the run in {folder} has no held-out loss")
    alone = train_alone(config, data, threads=threads, say=say)
    swarm = {
        "heldout_loss": float(rounds[-1]["heldout_loss"]),
        "frames": sum(int(entry["frames"]) for entry in rounds),
        "seconds": sum(float(entry["seconds"]) for entry in rounds),
        "inner_steps": config.rounds.count * config.rounds.inner_steps,
    }
    result = BenchResult("alone", machine_facts(list(range(threads))))
    result.rows = [{"row": "run", **swarm}, {"row": "alone", **alone}]
    result.ratios = {"heldout_loss_run_vs_alone": swarm["heldout_loss"] / alone["heldout_loss"]}
    return result
