"""The codec that a dataset was made with, checked against what its manifest says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from protocol.content import file_cid
from tokenizer.codec import Codec, load_codec


def load_dataset_codec(spec: str, recorded: Mapping[str, Any], folder: Path) -> Codec:
    """Load a codec that must be the dataset's, and save it.

    Args:
        spec: as for `load_codec`. recorded: the manifest's `codec`. folder: where the codec is saved.

    Raises:
        HocketError: CODEC_UNREADABLE when the codec has other settings or other weights than the dataset's.
    """
    codec = load_codec(spec, n_codebooks=int(recorded["n_codebooks"]))
    for name, value in codec.describe().items():
        if name in recorded and recorded[name] != value:
            raise HocketError(Code.CODEC_UNREADABLE, f"{spec} has {name} {value}, the dataset {recorded[name]}")
    codec.save(folder)
    if file_cid(folder / "model.safetensors") != recorded.get("cid"):
        raise HocketError(Code.CODEC_UNREADABLE, f"{spec} has other weights than the codec of the dataset")
    return codec
