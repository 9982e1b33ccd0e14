"""A small dataset of made-up speech for the shipped codec, and versions of models for it, in a block store as a run has them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.files import atomic_write
from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, StageFile, TensorEntry, VersionManifest, sign_manifest
from swarm.blocks import BlockStore
from tokenizer.codec import load_codec
from tokenizer.phonemes import inventory_for
from tokenizer.shards import shard_bytes
from tokenizer.utterance import Utterance
from tts.config import ModelConfig, preset
from tts.stage_files import expected_tensors, write_stage
from tts.stages import Stage, build_stages

BOOKS = 2
LANGUAGE = "en-US"


def utterances(count: int, *, seed: int = 0, speakers: Sequence[str] = ("ann",), language: str = LANGUAGE) -> list[Utterance]:
    """Utterances of a second or so, whose codes are functions of their phonemes; their speakers take turns."""
    draw = np.random.default_rng(seed)
    symbols = len(inventory_for([language]))
    table = np.random.default_rng(7).integers(0, 256, (symbols, BOOKS))
    rows = []
    for number in range(count):
        phonemes = draw.integers(1, min(symbols, 30), int(draw.integers(8, 14))).astype(np.uint16)
        durations = draw.integers(2, 7, len(phonemes)).astype(np.uint16)
        codes = table[np.repeat(phonemes, durations)].T.astype(np.uint16)
        rows.append(Utterance(
            id=f"u-{seed}-{number}", text=f"text {number}", spoken=f"text {number}", phonemes=phonemes, durations=durations,
            word_starts=(draw.random(len(phonemes)) < 0.3).astype(np.uint8), align_score=-0.1, language=language,
            speaker=speakers[number % len(speakers)], codes=codes, n_frames=codes.shape[1], speaker_embedding=None,
            licence="CC0-1.0",
        ))  # fmt: skip
    return rows


def dataset_manifest(
    rows: Sequence[Utterance], heldout: Sequence[Utterance], *, languages: Sequence[str] = (LANGUAGE,), dim: int = 0
) -> tuple[DatasetManifest, dict[str, bytes]]:
    """The manifest of a dataset with one shard of each kind, and the shards by CID.

    Args:
        dim: size of speaker embeddings; where it is not 0, each speaker has a voice.
    """
    shards = {part: shard_bytes(list(part_rows)) for part, part_rows in (("train", rows), ("heldout", heldout)) if part_rows}
    entries = {}
    for part, data in shards.items():
        own = list(rows if part == "train" else heldout)
        entries[part] = ShardEntry(cid=cid_of(data), rows=len(own), frames=sum(row.n_frames for row in own), size_bytes=len(data))
    speakers = sorted({row.speaker for row in [*rows, *heldout]})
    codec = load_codec(n_codebooks=BOOKS)
    with tempfile.TemporaryDirectory() as name:
        codec.save(Path(name))
        weights_cid = file_cid(Path(name) / "model.safetensors")
    manifest = DatasetManifest(
        name="spoken", codec={**codec.describe(), "name": "hocket-16k", "cid": weights_cid},
        phonemes=inventory_for(languages).symbols, languages=list(languages), speakers=speakers,
        shards=[entries["train"]] if "train" in entries else [], heldout=[entries["heldout"]] if "heldout" in entries else [],
        speaker_embedding={"dim": dim, "encoder": "made up"} if dim else {},
        voices={name: [float(place == index) for place in range(dim)] for index, name in enumerate(speakers) if index < dim},
        licences=["CC0-1.0"],
    )  # fmt: skip
    return manifest, {entries[part].cid: data for part, data in shards.items()}


def write_dataset(folder: Path, rows: Sequence[Utterance], heldout: Sequence[Utterance]) -> Path:
    """A dataset folder, as `hocket tokenize` makes it; returns the folder."""
    manifest, shards = dataset_manifest(rows, heldout)
    for cid, data in shards.items():
        atomic_write(folder / "shards" / f"{cid}.parquet", data)
    atomic_write(folder / "manifest.json", sign_manifest(MemberKey.generate(), manifest))
    return folder


def model_for(manifest: DatasetManifest) -> ModelConfig:
    """The test preset for a dataset."""
    dim = manifest.speaker_embedding.get("dim")
    return preset(
        "test", n_codebooks=BOOKS, codebook_size=256, n_phonemes=len(manifest.phonemes), n_languages=len(manifest.languages),
        **({"speaker_dim": dim} if dim else {}),
    )  # fmt: skip


def publish(
    store: BlockStore, scratch: Path, key: MemberKey, manifest: DatasetManifest, shards: dict[str, bytes], *,
    round: int = 4, stages: Sequence[Stage] | None = None,
) -> str:  # fmt: skip
    """Put a version of a model, its dataset and the dataset's shards into a block store; returns the version's CID.

    Args:
        stages: of the model; an untrained one in two stages by default.
    """
    config = model_for(manifest)
    parts = []
    for index, stage in enumerate(stages or build_stages(config, 2, seed=1)):
        path = scratch / f"stage-{index}.safetensors"
        write_stage(path, stage)
        parts.append(StageFile(
            stage=index, cid=store.add_file(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            size_bytes=path.stat().st_size,
            tensors=[TensorEntry(name=one.name, dtype=one.dtype, shape=list(one.shape))
                     for one in expected_tensors(config, index, len(stages or (0, 0)))],
        ))  # fmt: skip
    for data in shards.values():
        store.add_bytes(data)
    dataset_cid = store.add_bytes(sign_manifest(MemberKey.generate(), manifest))
    version = VersionManifest(
        run_id="r", version=round, round=round, model=config.model_dump(mode="json"), stages=parts, dataset_cid=dataset_cid,
        codec=manifest.codec,
    )  # fmt: skip
    return store.add_bytes(sign_manifest(key, version))
