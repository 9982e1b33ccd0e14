"""An aligner kept in a file, to be used again for corpora too small to learn one.

The file is safetensors. Beside the weights it holds, as bytes of JSON, what the aligner was made for: the languages, the codec
and the symbols. It is taken back only for the same codec and for a table of symbols that begins alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import Code, HocketError
from protocol.tensor_files import TensorInfo, read_tensors, write_tensors
from tokenizer.align import HIDDEN, SPACE, Aligner

FORMAT = "hocket-aligner/1"
HEADER = "about"
MAX_FILE_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 1 << 20
CODEC_KEYS = ("kind", "sample_rate", "frame_rate", "hop", "n_codebooks", "codebook_size", "cid")


def expected_tensors(n_symbols: int, width: int) -> list[TensorInfo]:
    """The tensors of an aligner of so many symbols for features of `width` numbers a frame."""
    shapes = {
        "mean": (width,), "scale": (width,), "learnt": (n_symbols,), "symbols": (n_symbols, HIDDEN),
        "key.1": (HIDDEN, HIDDEN), "key.1.bias": (HIDDEN,), "key.2": (SPACE, HIDDEN), "key.2.bias": (SPACE,),
        "query.1": (HIDDEN, width, 3), "query.1.bias": (HIDDEN,), "query.2": (HIDDEN, HIDDEN), "query.2.bias": (HIDDEN,),
        "query.3": (SPACE, HIDDEN), "query.3.bias": (SPACE,),
    }  # fmt: skip
    return [TensorInfo(name, "float32", shape) for name, shape in shapes.items()]


def save_aligner(
    path: Path, aligner: Aligner, *, languages: Sequence[str], codec: Mapping[str, Any], symbols: Sequence[str]
) -> None:
    """Write `aligner` and what it was made for.

    Args:
        languages: BCP 47 tags of the texts that it learnt from.
        codec: as a manifest records it (`Codec.describe()`, and `cid` of its weights where there is one).
        symbols: the inventory, one a row of the aligner's table.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE.
    """
    about = {
        "format": FORMAT,
        "languages": list(languages),
        "codec": {key: codec[key] for key in CODEC_KEYS if key in codec},
        "symbols": list(symbols),
    }
    text = json.dumps(about, sort_keys=True, ensure_ascii=False).encode()
    tensors = {name: tensor.detach().numpy() for name, tensor in aligner.tensors.items()}
    write_tensors(path, {HEADER: np.frombuffer(text, dtype=np.uint8), **tensors})


def _invalid(path: Path, reason: str, remedy: str = "") -> HocketError:
    return HocketError(Code.MANIFEST_INVALID, f"{path}: {reason}", remedy=remedy or "give an aligner that `hocket tokenize` kept")


def load_aligner(path: Path, *, language: str, codec: Mapping[str, Any], symbols: Sequence[str]) -> Aligner:
    """Read an aligner that `save_aligner` wrote, for texts in `language` with `symbols`, and codes of `codec`.

    The aligner may know fewer symbols than the inventory or more, if the shorter table is the beginning of the longer: the
    rows that it lacks are zeros that it has not learnt.

    Raises:
        HocketError: MANIFEST_INVALID for a file that is no aligner or has another table of symbols, CODEC_UNREADABLE for one of
            another codec, LANGUAGE_REFUSED for one of another language.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _invalid(path, f"more than {MAX_FILE_BYTES} bytes")
    except OSError as error:
        raise _invalid(path, str(error.strerror)) from error
    try:
        tensors = read_tensors(path)
    except HocketError as error:
        raise _invalid(path, error.detail) from error
    about = _about(path, tensors)
    known: list[str] = about["symbols"]
    spoken = {tag.split("-")[0].lower() for tag in about["languages"]}
    if language.split("-")[0].lower() not in spoken:
        raise HocketError(Code.LANGUAGE_REFUSED, f"{path} aligns {', '.join(about['languages'])}, not {language}",
                          remedy="give an aligner of that language")  # fmt: skip
    wanted = {key: codec[key] for key in CODEC_KEYS if key in codec}
    if about["codec"] != wanted:
        differing = sorted(key for key in {*wanted, *about["codec"]} if wanted.get(key) != about["codec"].get(key))
        raise HocketError(Code.CODEC_UNREADABLE, f"{path} was learnt with another codec ({', '.join(differing)} differ)",
                          remedy="tokenise with that codec, or learn an aligner with this one")  # fmt: skip
    shared = min(len(known), len(symbols))
    if known[:shared] != list(symbols[:shared]):
        raise _invalid(path, "its table of symbols is another one", "learn an aligner with this version")
    width = tensors["mean"].shape[0] if "mean" in tensors and tensors["mean"].ndim == 1 else 0
    expected = {info.name: info for info in expected_tensors(len(known), width)}
    if tensors.keys() != expected.keys() or not width:
        raise _invalid(path, "its tensors are not those of an aligner")
    for name, array in tensors.items():
        if array.dtype.name != "float32" or array.shape != expected[name].shape or not np.isfinite(array).all():
            raise _invalid(path, f"{name} is not finite float32 {expected[name].shape}")
    for name in ("learnt", "symbols"):
        missing = len(symbols) - len(known)
        if missing > 0:
            tensors[name] = np.concatenate([tensors[name], np.zeros((missing, *tensors[name].shape[1:]), np.float32)])
        tensors[name] = tensors[name][: len(symbols)]
    return Aligner({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()})


def _about(path: Path, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """The header, taken out of `tensors` and checked."""
    raw = tensors.pop(HEADER, None)
    if raw is None or raw.dtype != np.uint8 or raw.ndim != 1 or raw.size > MAX_HEADER_BYTES:
        raise _invalid(path, "it does not say what it was learnt for")
    try:
        about = json.loads(raw.tobytes())
    except (ValueError, RecursionError) as error:
        raise _invalid(path, "its header is no JSON") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise _invalid(path, f"it is not of the format {FORMAT}")
    lists = [about.get("languages"), about.get("symbols")]
    if not all(isinstance(entry, list) and entry and all(isinstance(text, str) for text in entry) for entry in lists):
        raise _invalid(path, "its languages or symbols are no lists of texts")
    if not isinstance(about.get("codec"), dict):
        raise _invalid(path, "it does not say of which codec")
    return about
