"""An export of a small untrained model: what it says is noise, but it says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizer.codec import load_codec
from tokenizer.phonemes import ENGLISH_SYMBOLS
from tts.config import ModelConfig, preset
from tts.export import Card, write_export
from tts.stage_files import weights_of
from tts.stages import build_stage

CODEBOOKS = 4
SYMBOLS: tuple[str, ...] = tuple(ENGLISH_SYMBOLS)


def export_config(**changes: Any) -> ModelConfig:
    """The model of these exports: the preset `test` for the shipped codec and English phonemes."""
    codec = load_codec("hocket-16k", n_codebooks=CODEBOOKS)
    values = {"n_codebooks": CODEBOOKS, "codebook_size": codec.codebook_size, "n_phonemes": len(SYMBOLS), **changes}
    return preset("test", **values)


def untrained(folder: Path, model: dict[str, Any] | None = None, **about: Any) -> Path:
    """Write an export to `folder`/checkpoint.

    Args:
        model: changes of its configuration. about: fields of `Card`.
    """
    load_codec("hocket-16k", n_codebooks=CODEBOOKS).save(folder / "codec")
    config = export_config(**(model or {}))
    card = Card(**{"config": config, "phonemes": SYMBOLS, "languages": ("en-US",), **about})
    write_export(folder / "checkpoint", weights_of(build_stage(config, 0, 1, seed=3)), card, folder / "codec")
    return folder / "checkpoint"


def one_hot_voices(*names: str) -> dict[str, tuple[float, ...]]:
    """A voice for each name, as unlike each other as can be."""
    size = export_config().speaker_dim
    return {name: tuple(float(place == at) for place in range(size)) for at, name in enumerate(names)}
