"""The model of a run follows its dataset, and its cut the memory of the cards."""

from __future__ import annotations

import pytest

from common.errors import Code, HocketError
from coordinator.model_choice import choose_model, load_of, stage_bytes
from coordinator.run_config import RunConfig
from protocol.content import cid_of
from protocol.manifest import DatasetManifest, ShardEntry
from tts.footprint import stage_footprint
from tts.partition import partition

MANIFEST = DatasetManifest(
    name="made-up",
    codec={"n_codebooks": 4, "codebook_size": 256},
    phonemes=["<pad>", *map(str, range(80))],
    languages=["en-US", "fr"],
    speakers=["a"],
    shards=[ShardEntry(cid=cid_of(b"x"), rows=100, frames=15_000, size_bytes=1)],
    heldout=[],
    licences=["CC0-1.0"],
)


def run_file(model: str) -> RunConfig:
    return RunConfig.parse(
        f'[run]\nid = "r"\n[model]\n{model}\n[data]\nmanifest = "d"\n'
        "[rounds]\ncount = 1\nframes_per_inner_step = 2400\ninner_steps = 5\ninner_lr = 1e-3\n"
    )


def test_sizes_come_from_the_dataset() -> None:
    model = choose_model(run_file('preset = "demo"\nstages = 3'), MANIFEST)
    assert (model.n_codebooks, model.codebook_size, model.n_phonemes, model.n_languages) == (4, 256, 81, 2)
    assert model.cuts is None


def test_unequal_cards_get_what_they_hold() -> None:
    config = run_file('preset = "base"\nstages = 3\nstage_memory_mib = [1200, 9000, 9000]')
    model = choose_model(config, MANIFEST)
    load = load_of(config, MANIFEST)
    assert (load.utterances, load.frames, load.in_flight) == (4, 225, 4)
    specs = partition(model, 3)
    for spec, budget in zip(specs, config.model.stage_memory_mib, strict=True):
        assert stage_footprint(model, spec, load).memory_bytes <= budget * 2**20
    equal = partition(model.model_copy(update={"cuts": None}), 3)
    assert len(specs[0].layers) < len(equal[0].layers), "the small card holds fewer blocks than its equal share"


def test_cards_that_are_too_small_are_refused_with_what_it_would_take() -> None:
    with pytest.raises(HocketError) as caught:
        choose_model(run_file('preset = "base"\nstages = 2\nstage_memory_mib = [100, 100]'), MANIFEST)
    assert caught.value.code is Code.STAGES_INVALID and "MiB" in caught.value.detail


def test_every_stage_needs_its_budget() -> None:
    with pytest.raises(HocketError) as caught:
        run_file('preset = "base"\nstages = 2\nstage_memory_mib = [100]')
    assert caught.value.code is Code.RUN_FILE_INVALID and "stage_memory_mib" in caught.value.detail


def test_the_speaker_embedding_of_the_dataset_sizes_the_models() -> None:
    manifest = MANIFEST.model_copy(update={"speaker_embedding": {"dim": 256, "encoder": "resemblyzer-0.1.4"}})
    assert choose_model(run_file('preset = "demo"\nstages = 2'), manifest).speaker_dim == 256
    assert choose_model(run_file('preset = "demo"\nstages = 2'), MANIFEST).speaker_dim == 16


def test_rows_without_text_cannot_be_trained_on() -> None:
    manifest = MANIFEST.model_copy(update={"untranscribed_rows": 3})
    with pytest.raises(HocketError) as caught:
        choose_model(run_file('preset = "demo"\nstages = 2'), manifest)
    assert caught.value.code is Code.RUN_FILE_INVALID and "3 rows" in caught.value.detail


def test_a_stage_takes_what_its_part_of_the_model_takes() -> None:
    config = run_file('preset = "base"\nstages = 3')
    model = choose_model(config, MANIFEST)
    needed = stage_bytes(config, model, MANIFEST)
    load = load_of(config, MANIFEST)
    footprints = [stage_footprint(model, spec, load) for spec in partition(model, 3)]
    assert needed == [one.memory_bytes + 12 * one.parameters for one in footprints]
    # A cut to the cards' given budgets fits into them; snapshots lie in the machine's own memory.
    budgets = [4096, 2048, 8192]
    config = run_file(f'preset = "base"\nstages = 3\nstage_memory_mib = {budgets}')
    model = choose_model(config, MANIFEST)
    for spec, budget in zip(partition(model, 3), budgets, strict=True):
        assert stage_footprint(model, spec, load).memory_bytes <= budget * 2**20
