"""Versions in a block store, read and made into export folders: a coordinator's own, and fetched ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Code, HocketError
from protocol.content import cid_of
from protocol.manifest import DatasetManifest, VersionManifest, read_manifest
from swarm.blocks import BlockStore
from swarm.stored_stages import read_stage_file

MAX_MANIFEST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class KeptVersion:
    """A version whose manifest lies in a coordinator's state folder.

    Args:
        cid: of the manifest, the version's name. path: of the manifest.
    """

    cid: str
    path: Path
    manifest: VersionManifest


def is_coordinator_state(state: Path) -> bool:
    """Whether a folder is what `hocket coordinator` keeps: versions and blocks."""
    return (state / "versions").is_dir() and (state / "blocks").is_dir()


def kept_versions(state: Path) -> list[KeptVersion]:
    """The versions of a coordinator's state folder, the newest last.

    Raises:
        HocketError: CHECKPOINT_INVALID when the folder is none or holds no version; MANIFEST_INVALID.
    """
    if not is_coordinator_state(state):
        raise HocketError(Code.CHECKPOINT_INVALID, f"{state} is no state folder of a coordinator: versions/ and blocks/")
    found = []
    for path in sorted((state / "versions").glob("v*/manifest.json")):
        try:
            if path.stat().st_size > MAX_MANIFEST_BYTES:
                raise HocketError(Code.MANIFEST_INVALID, f"{path} is too large")
            data = path.read_bytes()
        except OSError as error:
            raise HocketError(Code.CHECKPOINT_INVALID, f"{path} ({error.strerror})") from error
        found.append(KeptVersion(cid_of(data), path, read_manifest(VersionManifest, data, signer=None)))
    if not found:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{state} holds no version yet")
    return sorted(found, key=lambda one: one.manifest.version)


def told_of_versions(state: Path) -> dict[str, dict[str, Any]]:
    """What the coordinator's report says of the versions that it keeps, by CID: `heldout_loss` and `kept`, its reasons.

    Empty where there is no report yet; STATE_UNREADABLE for a damaged one.
    """
    path = state / "report.json"
    try:
        report = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HocketError(Code.STATE_UNREADABLE, f"{path} ({error})") from error
    if not isinstance(report, dict):
        raise HocketError(Code.STATE_UNREADABLE, f"{path} is no report")
    return {str(one["cid"]): one for one in report.get("versions", ())}


def choose_version(versions: list[KeptVersion], version: int | None) -> KeptVersion:
    """The version of that number, or the newest; CHECKPOINT_INVALID when there is none."""
    if version is None:
        return versions[-1]
    for one in versions:
        if one.manifest.version == version:
            return one
    numbers = ", ".join(str(one.manifest.version) for one in versions)
    raise HocketError(Code.CHECKPOINT_INVALID, f"version {version} is not among those kept: {numbers}")


def read_weights(manifest: VersionManifest, store: BlockStore, scratch: Path) -> dict[str, np.ndarray]:
    """Every parameter of a version, float32 by name; each block, file, name, shape and value is checked.

    Args:
        scratch: an existing folder for one stage's file at a time.

    Raises:
        HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED, MANIFEST_INVALID, CHECKPOINT_INVALID, MODEL_CONFIG_INVALID, NOT_FINITE.
    """
    from tts.config import ModelConfig
    from tts.stage_files import expected_tensors

    config = ModelConfig.from_dict(manifest.model)
    weights: dict[str, np.ndarray] = {}
    for part in manifest.stages:
        expected = expected_tensors(config, part.stage, len(manifest.stages))
        weights |= read_stage_file(store, part, expected, scratch / f"stage-{part.stage}.safetensors")[0]
    return weights


def read_dataset(manifest: VersionManifest, store: BlockStore) -> DatasetManifest:
    """The manifest of the dataset that a version was trained on; it is bound by its CID, whoever signed it."""
    data = store.read_file(manifest.dataset_cid, max_bytes=MAX_MANIFEST_BYTES)
    return read_manifest(DatasetManifest, data, signer=None)


def export_version(
    cid: str, manifest: VersionManifest, dataset: DatasetManifest, store: BlockStore, scratch: Path, folder: Path, *, codec: str
) -> Path:
    """Make an export folder of a version: one model with its configuration, codec and text front.

    Args:
        cid: of the manifest. scratch: an existing folder for what lies between.
        codec: name or folder of the codec that the dataset was made with.

    Returns: the folder.

    Raises:
        HocketError: as `read_weights` and `tts.export.write_export`; CODEC_UNREADABLE when the codec is another one.
    """
    from tokenizer.dataset_codec import load_dataset_codec
    from tts.config import ModelConfig
    from tts.export import Card, write_export

    weights = read_weights(manifest, store, scratch)
    codec_folder = scratch / "codec"
    load_dataset_codec(codec, dataset.codec, codec_folder)
    card = Card(
        config=ModelConfig.from_dict(manifest.model),
        phonemes=tuple(dataset.phonemes),
        languages=tuple(dataset.languages),
        speakers=tuple(dataset.speakers),
        voices={name: tuple(voice) for name, voice in sorted(dataset.voices.items())},
        origin={
            "run": manifest.run_id,
            "round": manifest.round,
            "version": manifest.version,
            "cid": cid,
            "licences": list(dataset.licences),
        },
    )
    write_export(folder, weights, card, codec_folder)
    return folder
