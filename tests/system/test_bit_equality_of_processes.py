"""A run of real processes trains bit by bit what one process trains, as DESIGN promises for one replica a stage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from common.files import atomic_write
from coordinator.leases import Cursor, Sizes, next_range
from protocol.content import cid_of
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from protocol.tensors import read_tensors, write_tensors
from simulations.cluster import Cluster
from simulations.plan import InjectedFault, Plan
from simulations.simulate import SimulationSettings, run_file
from tokenizer.order import sample_at
from tokenizer.phonemes import PAD
from tokenizer.shards import Utterance, shard_bytes
from tts.config import preset
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

STEPS = 20
MICROBATCHES = 4
ROWS = 99  # fewer than 20 leases hold, so that the run goes on into the second epoch; one lease has the first one's rest with it
CODEBOOKS, CODEBOOK_SIZE, INVENTORY = 3, 32, 24
SEED = 7
WEIGHT_DECAY, LR_FLOOR, CLIP_NORM = 0.03, 0.1, 0.5
ROUND_LIMIT_S = 200.0


def made_up(number: int) -> Utterance:
    """Utterance `number` of ragged length: a function of its number."""
    draw = np.random.default_rng([SEED, number])
    phonemes = draw.integers(1, INVENTORY, draw.integers(4, 10))
    durations = draw.integers(1, 8, len(phonemes))
    frames = int(durations.sum())
    return Utterance(
        id=f"u{number}",
        text="",
        spoken="",
        phonemes=phonemes.astype(np.uint16),
        durations=durations.astype(np.uint16),
        word_starts=draw.integers(0, 2, len(phonemes)).astype(np.uint8),
        align_score=0.0,
        language="en-US",
        speaker="nobody",
        codes=draw.integers(0, CODEBOOK_SIZE, (CODEBOOKS, frames)).astype(np.uint16),
        n_frames=frames,
        speaker_embedding=None,
        licence="CC0-1.0",
    )


@dataclass(frozen=True)
class Data:
    """A dataset on disk and its rows."""

    folder: Path
    rows: list[Utterance]

    @property
    def frames(self) -> int:
        return sum(row.n_frames for row in self.rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("data")
    rows = [made_up(number) for number in range(ROWS)]
    entries = []
    for part in (rows[:60], rows[60:]):
        content = shard_bytes(part)
        entry = ShardEntry(cid=cid_of(content), rows=len(part), frames=sum(row.n_frames for row in part), size_bytes=len(content))
        atomic_write(folder / "shards" / f"{entry.cid}.parquet", content)
        entries.append(entry)
    manifest = DatasetManifest(
        name="made up",
        codec={
            "kind": "random", "sample_rate": 16000, "frame_rate": 50.0, "hop": 320, "n_codebooks": CODEBOOKS,
            "codebook_size": CODEBOOK_SIZE,
        },
        phonemes=[PAD, *(f"p{number}" for number in range(1, INVENTORY))],
        languages=["en-US"],
        speakers=["nobody"],
        shards=entries,
        heldout=[],
        licences=["CC0-1.0"],
    )  # fmt: skip
    atomic_write(folder / "manifest.json", sign_manifest(MemberKey.generate(), manifest))
    return Data(folder, rows)


def settings_of(stages: int, data: Data, accumulation: str) -> SimulationSettings:
    return SimulationSettings(
        name="equal",
        preset="test",
        stages=stages,
        replicas=1,
        rounds=1,
        inner_steps=STEPS,
        frames_per_inner_step=8 * data.frames // ROWS,
        microbatches_per_inner_step=MICROBATCHES,
        warm_up_steps=3,
        seed=SEED,
        wire="fp32",
        data=data.folder,
        extra={
            "rounds": {
                "evaluate": False, "accumulation": accumulation, "weight_decay": WEIGHT_DECAY, "lr_floor": LR_FLOOR,
                "clip_norm": CLIP_NORM,
            }
        },
    )  # fmt: skip


async def received_updates(settings: SimulationSettings, data: Data, out: Path) -> dict[int, Path]:
    """Update files by stage as the coordinator received them; it is killed after it aggregated them, before it drops them."""
    fault = InjectedFault(process="coordinator", line="coordinator.publish.before:round=1:kill")
    run_toml = out / "run.toml"
    atomic_write(run_toml, run_file(settings, data.folder).encode())
    async with Cluster(out, Plan(fault=(fault,)), threads=1) as cluster:
        ticket = await cluster.start_coordinator(run_toml)
        await asyncio.gather(*(cluster.start_worker(ticket) for _ in range(settings.stages)))
        coordinator = cluster.coordinator
        assert coordinator is not None and coordinator.process is not None
        async with asyncio.timeout(ROUND_LIMIT_S):
            await coordinator.process.wait()
        assert coordinator.killed_by_fault, coordinator.last_lines()
        assert cluster.unexpected_ends() == []
    received = sorted((out / "coordinator" / "updates" / "round-1").glob("stage-*/*.safetensors"))
    assert [path.parent.name for path in received] == [f"stage-{stage}" for stage in range(settings.stages)]
    return {int(path.parent.name.removeprefix("stage-")): path for path in received}


def single_process(settings: SimulationSettings, data: Data) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Base and trained weights by name, of one process that trains on the same leases."""
    config = preset(settings.preset, n_codebooks=CODEBOOKS, codebook_size=CODEBOOK_SIZE, n_phonemes=INVENTORY)
    assert config.dropout > 0 and config.cond_dropout > 0 and config.code_corruption > 0
    sizes = Sizes(ROWS, data.frames, settings.frames_per_inner_step, MICROBATCHES)
    inner = InnerSettings(
        peak_lr=settings.inner_lr,
        floor=LR_FLOOR,
        warmup_frames=settings.warm_up_steps * settings.frames_per_inner_step,
        total_frames=sizes.target(STEPS, 1)[1],
        weight_decay=WEIGHT_DECAY,
        clip_norm=CLIP_NORM,
        seed=SEED,
    )
    trainer = ReferenceTrainer(config, 1, inner, clip_stages=settings.stages, seed=SEED)

    def weights() -> dict[str, np.ndarray]:
        (stage,) = trainer.stages
        return {name: parameter.detach().numpy().copy() for name, parameter in stage.named_parameters()}

    base, cursor, norms, epochs, rows = weights(), Cursor(), [], set(), 0
    for step in range(STEPS):
        grant = next_range(cursor, [], sizes)
        cursor = grant.cursor
        epochs.add(grant.range.epoch)
        assert rows < sizes.target(STEPS, 1)[0], "the round has its rows before the last step"
        rows += grant.range.rows
        places = [sample_at(SEED, grant.range.epoch, at, ROWS) for at in range(grant.range.start, grant.range.stop)]
        batches = cut_microbatches([data.rows[place] for place in places], MICROBATCHES, config, ("en-US",))
        assert len(batches) == MICROBATCHES
        norms += trainer.inner_step([(MICROBATCHES * step + index, batch) for index, batch in enumerate(batches)]).norms
    assert rows >= sizes.target(STEPS, 1)[0], "the round wants more rows"
    assert epochs == {0, 1} and max(norms) > CLIP_NORM, "the order's turn and the clipping must have been at work"
    return base, weights()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_twenty_inner_steps_of_processes_are_byte_equal_to_one_process(tmp_path: Path, data: Data, stages: int) -> None:
    settings = settings_of(stages, data, "ordered")
    received = asyncio.run(received_updates(settings, data, tmp_path))
    base, trained = single_process(settings, data)
    names: set[str] = set()
    for stage, path in received.items():
        found = read_tensors(path)
        names |= set(found)
        wanted = {name: base[name] - trained[name] for name in found}
        assert [name for name in found if found[name].tobytes() != wanted[name].tobytes()] == [], f"stage {stage}"
        write_tensors(tmp_path / "wanted.safetensors", wanted)
        assert path.read_bytes() == (tmp_path / "wanted.safetensors").read_bytes(), "the whole file, not its tensors alone"
    assert names == set(base)
    assert [name for name in base if base[name].tobytes() == trained[name].tobytes()] == [], "every tensor must have been trained"


def test_a_free_order_of_accumulation_stays_within_a_thousandth_between_processes(tmp_path: Path, data: Data) -> None:
    settings = settings_of(3, data, "free")
    received = asyncio.run(received_updates(settings, data, tmp_path))
    base, trained = single_process(settings, data)
    for path in received.values():
        for name, update in read_tensors(path).items():
            distance = np.linalg.norm((base[name] - update) - trained[name])
            assert distance <= 1e-3 * np.linalg.norm(trained[name]), name
