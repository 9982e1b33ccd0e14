"""Aligners in files: given back as they were, and refused where they do not belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.errors import Code, HocketError
from protocol.tensor_files import read_tensors, write_tensors
from tokenizer.align import Aligner, learn_alignment
from tokenizer.aligner_file import HEADER, load_aligner, save_aligner

SYMBOLS = ["<pad>", "_", "|", *"abcdefghi"]
CODEC = {
    "kind": "hocket", "sample_rate": 16000, "frame_rate": 50.0, "hop": 320, "n_codebooks": 8, "codebook_size": 256,
    "cid": "bafk1",
}  # fmt: skip


@pytest.fixture(scope="module")
def aligner() -> Aligner:
    draw = np.random.default_rng(0)
    phonemes = [draw.integers(1, len(SYMBOLS) - 1, size=6) for _ in range(12)]
    return learn_alignment(phonemes, [draw.normal(size=(20, 16)).astype(np.float32) for _ in phonemes], steps=3, n_symbols=12)


@pytest.fixture
def kept(aligner: Aligner, tmp_path: Path) -> Path:
    path = tmp_path / "aligner.safetensors"
    save_aligner(path, aligner, languages=["en-US"], codec={**CODEC, "other": "not kept"}, symbols=SYMBOLS)
    return path


def load(path: Path, language: str = "en-US", codec: dict[str, Any] = CODEC, symbols: list[str] = SYMBOLS) -> Aligner:
    return load_aligner(path, language=language, codec=codec, symbols=symbols)


def test_it_comes_back_as_it_was(aligner: Aligner, kept: Path) -> None:
    back = load(kept)
    assert back.tensors.keys() == aligner.tensors.keys()
    assert all(torch.equal(back.tensors[name], aligner.tensors[name]) for name in aligner.tensors)
    other = kept.with_name("again")
    save_aligner(other, back, languages=["en-US"], codec=CODEC, symbols=SYMBOLS)
    assert other.read_bytes() == kept.read_bytes()


def test_another_region_of_the_language_is_taken(kept: Path) -> None:
    own = load(kept).tensors
    for language in ("en-GB", "en"):
        taken = load(kept, language).tensors
        assert all(torch.equal(taken[name], own[name]) for name in own)


def test_a_longer_or_shorter_inventory_that_begins_alike_is_taken(aligner: Aligner, kept: Path) -> None:
    longer = load(kept, symbols=[*SYMBOLS, "x", "y"])
    assert longer.tensors["symbols"].shape[0] == longer.tensors["learnt"].shape[0] == len(SYMBOLS) + 2
    assert not longer.tensors["learnt"][-2:].any()
    frames = np.random.default_rng(1).normal(size=(20, 16)).astype(np.float32)
    for ids in (np.array([1, 4, 5, 1]), np.array([1, 12, 13, 1])):  # the second has only symbols that it has not learnt
        durations, score = longer.align(ids, frames)
        assert durations.sum() == 20 and np.isfinite(score)
    shorter = load(kept, symbols=SYMBOLS[:6])
    assert torch.equal(shorter.tensors["symbols"], aligner.tensors["symbols"][:6])


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"language": "fr-FR"}, Code.LANGUAGE_REFUSED, "aligns en-US, not fr-FR"),
        ({"codec": {**CODEC, "cid": "bafk2"}}, Code.CODEC_UNREADABLE, "cid differ"),
        ({"codec": {**CODEC, "n_codebooks": 4, "hop": 160}}, Code.CODEC_UNREADABLE, "hop, n_codebooks differ"),
        ({"codec": {name: value for name, value in CODEC.items() if name != "cid"}}, Code.CODEC_UNREADABLE, "cid differ"),
        ({"symbols": ["<pad>", "_", "|", *"abcXefghi"]}, Code.MANIFEST_INVALID, "another one"),
    ],
)
def test_it_is_refused_where_it_does_not_belong(kept: Path, asked: dict[str, Any], code: Code, said: str) -> None:
    with pytest.raises(HocketError, match=said) as caught:
        load(kept, **asked)
    assert caught.value.code is code


def damaged(path: Path, name: str, value: np.ndarray | None) -> None:
    tensors = read_tensors(path)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    write_tensors(path, tensors)


def header(**fields: Any) -> np.ndarray:
    about = {"format": "hocket-aligner/1", "languages": ["en-US"], "codec": CODEC, "symbols": SYMBOLS, **fields}
    return np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (HEADER, None),
        (HEADER, np.frombuffer(b"{", dtype=np.uint8)),
        (HEADER, np.frombuffer(b"[" * 5000, dtype=np.uint8)),
        (HEADER, np.zeros((2, 2), np.uint8)),
        (HEADER, header(format="hocket-aligner/9")),
        (HEADER, header(languages=[])),
        (HEADER, header(languages=[3])),
        (HEADER, header(symbols="_|a")),
        (HEADER, header(codec=None)),
        ("mean", None),
        ("surplus", np.zeros(3, np.float32)),
        ("mean", np.zeros(15, np.float32)),
        ("mean", np.zeros((), np.float32)),
        ("symbols", np.zeros((12, 127), np.float32)),
        ("key.2", np.full((64, 128), np.nan, np.float32)),
        ("key.2", np.zeros((64, 128), np.float64)),
    ],
)
def test_a_damaged_one_is_refused(kept: Path, name: str, value: np.ndarray | None) -> None:
    damaged(kept, name, value)
    with pytest.raises(HocketError) as caught:
        load(kept)
    assert caught.value.code is Code.MANIFEST_INVALID


def test_what_is_no_file_or_no_aligner_is_refused(kept: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(kept.read_bytes()[:-5])
    text = tmp_path / "text"
    text.write_bytes(b"hello, world")
    for path in (tmp_path / "absent", cut, text, tmp_path):
        with pytest.raises(HocketError) as caught:
            load(path)
        assert caught.value.code is Code.MANIFEST_INVALID
