"""The model of a run, from its run file and its dataset. Pure."""

from __future__ import annotations

from common.errors import Code, HocketError
from coordinator.run_config import RunConfig
from protocol.manifest import DatasetManifest
from tts.config import ModelConfig, preset
from tts.footprint import Load, stage_footprint
from tts.partition import cuts_of, partition, partition_to_fit


def choose_model(config: RunConfig, manifest: DatasetManifest) -> ModelConfig:
    """The preset that the run file names, fitted to the dataset's codec, phonemes and languages, and to the cards' memory.

    Raises:
        HocketError: MODEL_CONFIG_INVALID, STAGES_INVALID; RUN_FILE_INVALID for a dataset with rows that have no text.
    """
    if manifest.untranscribed_rows:
        detail = f"data.manifest: {manifest.untranscribed_rows} rows of the dataset have no text, and speech is learnt from texts"
        raise HocketError(Code.RUN_FILE_INVALID, detail, remedy="tokenise recordings with their transcripts")
    model = preset(
        config.model.preset,
        n_codebooks=manifest.codec["n_codebooks"],
        codebook_size=manifest.codec["codebook_size"],
        n_phonemes=len(manifest.phonemes),
        n_languages=max(len(manifest.languages), 1),
        **speaker_size(manifest),
    )
    if not config.model.stage_memory_mib:
        return model
    budgets = [size * 2**20 for size in config.model.stage_memory_mib]
    return model.model_copy(update={"cuts": cuts_of(partition_to_fit(model, budgets, load_of(config, manifest)))})


def stage_bytes(config: RunConfig, model: ModelConfig, manifest: DatasetManifest) -> list[int]:
    """Memory that each stage takes of a machine while it is trained and saved, in bytes; the process itself comes on top."""
    load = load_of(config, manifest)
    found = [stage_footprint(model, spec, load) for spec in partition(model, config.model.stages)]
    return [one.memory_bytes + one.snapshot_bytes for one in found]


def speaker_size(manifest: DatasetManifest) -> dict[str, int]:
    """`speaker_dim` of a model for this dataset; the preset's where its rows have no speaker embedding."""
    size = manifest.speaker_embedding.get("dim")
    return {} if size is None else {"speaker_dim": int(size)}


def load_of(config: RunConfig, manifest: DatasetManifest) -> Load:
    """What a replica has in flight: all microbatches of an inner step, padded to half as long again as the mean utterance."""
    mean = sum(shard.frames for shard in manifest.shards) / max(1, sum(shard.rows for shard in manifest.shards))
    microbatches = config.rounds.microbatches_per_inner_step
    utterances = config.rounds.frames_per_inner_step / microbatches / max(mean, 1.0)
    return Load(utterances=max(1, round(utterances)), frames=max(1, round(1.5 * mean)), in_flight=microbatches)
