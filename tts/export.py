"""A trained model as a folder that stands alone: `model.safetensors`, `config.json` and the codec beside them.

config.json  {"format": "hocket-export/1", "model": {...}, "phonemes": [...], "languages": [...], "speakers": [...],
              "voices": {name: [...]}, "origin": {...}}
codec/       the codec's own folder
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from protocol.tensors import read_checked, write_tensors
from tts.config import ModelConfig
from tts.stage_files import expected_tensors, set_weights
from tts.stages import Stage, build_stage

FORMAT = "hocket-export/1"
MAX_CONFIG_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Card:
    """What must be known beside the weights to speak with a model.

    Args:
        config: of the model. phonemes: symbols by id. languages, speakers: names by id.
        voices: mean embedding [E] by name of the speakers that the model was trained with; empty where it was trained without
            embeddings, so that it cannot tell speakers apart.
        origin: where the model came from (run, round, CID, licences); for people.
    """

    config: ModelConfig
    phonemes: tuple[str, ...]
    languages: tuple[str, ...]
    speakers: tuple[str, ...] = ()
    voices: dict[str, tuple[float, ...]] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Export:
    """A loaded export: the whole model as one stage, its card, and the folder of its codec."""

    stage: Stage
    card: Card
    codec_folder: Path


def is_export(path: Path) -> bool:
    """Whether a folder looks like an export."""
    return (path / "config.json").is_file() and (path / "model.safetensors").is_file()


def write_export(path: Path, weights: Mapping[str, NDArray[Any]], card: Card, codec_folder: Path) -> None:
    """Write an export folder; an older export in its place is replaced, anything else is left alone.

    The folder appears whole, under its name, or not at all.

    Args:
        weights: parameters of all stages by name.
        codec_folder: what `Codec.save` wrote, copied as it is (links are not followed).

    Raises:
        HocketError: OUTPUT_EXISTS, CHECKPOINT_INVALID when the weights are not the model's, CODEC_UNREADABLE, DISK_FULL.
    """
    if path.exists() and not (path.is_dir() and (is_export(path) or not any(path.iterdir()))):
        raise HocketError(Code.OUTPUT_EXISTS, str(path))
    if len(card.phonemes) != card.config.n_phonemes:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{len(card.phonemes)} phonemes for a model of {card.config.n_phonemes}")
    for name, voice in card.voices.items():
        if len(voice) != card.config.speaker_dim:
            detail = f"the voice {name!r} has {len(voice)} numbers, the model takes {card.config.speaker_dim}"
            raise HocketError(Code.CHECKPOINT_INVALID, detail)
    expected = {info.name: info.shape for info in expected_tensors(card.config, 0, 1)}
    found = {name: tuple(array.shape) for name, array in weights.items()}
    if found != expected:
        odd = sorted(name for name in set(found) | set(expected) if found.get(name) != expected.get(name))
        raise HocketError(Code.CHECKPOINT_INVALID, f"tensor {odd[0]} does not fit the model")
    if not codec_folder.is_dir():
        raise HocketError(Code.CODEC_UNREADABLE, str(codec_folder))
    about = {
        "format": FORMAT,
        "model": card.config.model_dump(mode="json"),
        "phonemes": list(card.phonemes),
        "languages": list(card.languages),
        "speakers": list(card.speakers),
        "voices": {name: list(embedding) for name, embedding in card.voices.items()},
        "origin": card.origin,
    }
    building: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        building.chmod(0o755)
        write_tensors(building / "model.safetensors", {name: np.asarray(array, np.float32) for name, array in weights.items()})
        atomic_write(building / "config.json", json.dumps(about, indent=1, ensure_ascii=False).encode() + b"\n")
        shutil.copytree(codec_folder, building / "codec", symlinks=True)
        if path.exists():
            shutil.rmtree(path)
        os.rename(building, path)
        building = None
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)


def read_card(path: Path) -> Card:
    """Read an export's config.json.

    Raises:
        HocketError: CHECKPOINT_INVALID or MODEL_CONFIG_INVALID.
    """
    source = path / "config.json"
    try:
        if source.stat().st_size > MAX_CONFIG_BYTES:
            raise HocketError(Code.CHECKPOINT_INVALID, f"{source} is too large")
        about = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{source}: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or not isinstance(about.get("model"), dict):
        raise HocketError(Code.CHECKPOINT_INVALID, f"{source} is not of format {FORMAT}")
    config = ModelConfig.from_dict(about["model"])
    origin = about.get("origin", {})
    card = Card(
        config=config,
        phonemes=_names(about, "phonemes", source),
        languages=_names(about, "languages", source),
        speakers=_names(about, "speakers", source),
        voices=_voices(about, config, source),
        origin=origin if isinstance(origin, dict) else {},
    )
    if len(card.phonemes) != config.n_phonemes:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{source}: {len(card.phonemes)} phonemes for a model of {config.n_phonemes}")
    return card


def _names(about: Mapping[str, Any], key: str, source: Path) -> tuple[str, ...]:
    values: Sequence[Any] = about.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise HocketError(Code.CHECKPOINT_INVALID, f"{source}: {key} must be a list of names")
    return tuple(values)


def _voices(about: Mapping[str, Any], config: ModelConfig, source: Path) -> dict[str, tuple[float, ...]]:
    voices = about.get("voices", {})
    if not isinstance(voices, dict):
        raise HocketError(Code.CHECKPOINT_INVALID, f"{source}: voices must be an object")
    for name, embedding in voices.items():
        numbers = isinstance(embedding, list) and all(type(value) in (int, float) and math.isfinite(value) for value in embedding)
        if not numbers or len(embedding) != config.speaker_dim:
            raise HocketError(Code.CHECKPOINT_INVALID, f"{source}: the voice {name!r} is not {config.speaker_dim} numbers")
    return {name: tuple(float(value) for value in embedding) for name, embedding in voices.items()}


def load_export(path: Path) -> Export:
    """Load an export folder; names, shapes and values of the weights are checked.

    Raises:
        HocketError: CHECKPOINT_INVALID, MODEL_CONFIG_INVALID or NOT_FINITE.
    """
    card = read_card(path)
    weights = read_checked(path / "model.safetensors", expected_tensors(card.config, 0, 1))
    stage = build_stage(card.config, 0, 1)
    set_weights(stage, weights)
    if not (path / "codec").is_dir():
        raise HocketError(Code.CHECKPOINT_INVALID, f"{path} has no codec folder")
    return Export(stage=stage, card=card, codec_folder=path / "codec")
