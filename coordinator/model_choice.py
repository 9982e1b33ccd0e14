"""The model of a run, from its run file and its dataset. Pure."""

from __future__ import annotations

from coordinator.run_config import RunConfig
from protocol.manifest import DatasetManifest
from tts.config import ModelConfig, preset
from tts.footprint import Load
from tts.partition import cuts_of, partition_to_fit


def choose_model(config: RunConfig, manifest: DatasetManifest) -> ModelConfig:
    """The preset that the run file names, fitted to the dataset's codec, phonemes and languages, and to the cards' memory.

    Raises:
        HocketError: MODEL_CONFIG_INVALID, STAGES_INVALID.
    """
    model = preset(
        config.model.preset,
        n_codebooks=manifest.codec["n_codebooks"],
        codebook_size=manifest.codec["codebook_size"],
        n_phonemes=len(manifest.phonemes),
        n_languages=max(len(manifest.languages), 1),
    )
    if not config.model.stage_memory_mib:
        return model
    budgets = [size * 2**20 for size in config.model.stage_memory_mib]
    return model.model_copy(update={"cuts": cuts_of(partition_to_fit(model, budgets, load_of(config, manifest)))})


def load_of(config: RunConfig, manifest: DatasetManifest) -> Load:
    """What a replica has in flight: all microbatches of an inner step, padded to half as long again as the mean utterance."""
    mean = sum(shard.frames for shard in manifest.shards) / max(1, sum(shard.rows for shard in manifest.shards))
    microbatches = config.rounds.microbatches_per_inner_step
    utterances = config.rounds.frames_per_inner_step / microbatches / max(mean, 1.0)
    return Load(utterances=max(1, round(utterances)), frames=max(1, round(1.5 * mean)), in_flight=microbatches)
