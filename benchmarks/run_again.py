"""A finished run's inner steps taken again in one process: same model, initial weights, sample order, microbatches and shape of
the learning rate."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import Code, HocketError
from coordinator.leases import Cursor, Sizes, next_range
from coordinator.model_choice import choose_model
from coordinator.run_config import RunConfig
from protocol.manifest import DatasetManifest, read_manifest

if TYPE_CHECKING:
    from tts.reference import ReferenceTrainer


def read_run(folder: Path) -> tuple[dict[str, Any], RunConfig, Path]:
    """Report, run file and data folder of a demo or simulation folder; OPTION_INVALID when it is none, or did not finish."""
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        config = RunConfig.parse(report["config"]["run_toml"])
    except (OSError, ValueError, KeyError) as error:
        raise HocketError(Code.OPTION_INVALID, f"{folder} is no folder of a finished run ({error})") from error
    data = Path(config.data.manifest)
    return report, config, data if data.is_dir() else data.parent


def run_facts(report: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """The run's own figures, under the names of `Trained.facts`."""
    rounds = report["rounds"]
    return {
        "heldout_loss": float(rounds[-1]["heldout_loss"]),
        "frames": sum(int(entry["frames"]) for entry in rounds),
        "seconds": sum(float(entry["seconds"]) for entry in rounds),
        "inner_steps": config.rounds.count * config.rounds.inner_steps,
    }


@dataclass(frozen=True)
class Trained:
    """One process's training: the trainer, and {"heldout_loss" (per code), "frames", "seconds", "inner_steps"}."""

    trainer: ReferenceTrainer
    facts: dict[str, Any]


def train_again(
    config: RunConfig, data: Path, *, leases_a_step: int, threads: int, say: Callable[[str], None], what: str
) -> Trained:
    """Take a run's inner steps in this process, on the same data in the same order.

    Args:
        leases_a_step: leases that go into one inner step; a run's replicas take one each.
        say: gets a line a round, beginning with `what`.
    """
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
        warmup_frames=rounds.warmup_frames * leases_a_step // rounds.replicas_wanted,
        total_frames=round(steps * leases_a_step * sizes.rows_per_lease * sizes.mean_frames),
        weight_decay=rounds.weight_decay,
        clip_norm=rounds.clip_norm,
        seed=config.run.seed,
    )
    trainer = ReferenceTrainer(model, 1, settings, clip_stages=config.model.stages, seed=config.run.seed)
    cursor, identity, started = Cursor(), 0, time.perf_counter()
    for step in range(steps):
        microbatches = []
        for _ in range(leases_a_step):
            grant = next_range(cursor, (), sizes)
            cursor, part = grant.cursor, grant.range
            read = asyncio.run(reader.utterances(part.epoch, part.start, part.stop, config.run.seed))
            told = vary_tempo(read, model, seed=config.run.seed, epoch=part.epoch, first=part.start)
            for batch in cut_microbatches(told, rounds.microbatches_per_inner_step, model, manifest.languages):
                microbatches.append((identity, batch))
                identity += 1
        result = trainer.inner_step(microbatches)
        if (step + 1) % rounds.inner_steps == 0:
            say(f"{what}, inner step {step + 1} of {steps}: loss {result.loss:.3f}")
    seconds = time.perf_counter() - started
    loss = heldout_loss(trainer.stages, asyncio.run(reader.heldout()), languages=manifest.languages).per_code
    return Trained(
        trainer, {"heldout_loss": loss, "frames": trainer.frames_done, "seconds": seconds, "inner_steps": steps}
    )
