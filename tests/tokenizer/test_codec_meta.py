"""Meta's own EnCodec package gives the codes of transformers' EnCodec for the same weights."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import EncodecConfig, EncodecModel

from common.errors import Code, HocketError
from tokenizer.codec import load_codec
from tokenizer.meta_encodec import transformers_name


def reason_it_cannot_run() -> str | None:
    """Why the extra `encodec` cannot be used here, or None if it can."""
    for package in ("torchaudio", "encodec"):
        try:
            importlib.import_module(package)
        except (ImportError, OSError) as error:
            return f"the extra encodec is not usable here: {package}: {error}"
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    config = EncodecConfig(
        num_filters=4,
        hidden_size=16,
        codebook_dim=16,
        upsampling_ratios=[5, 4, 2],
        codebook_size=32,
        target_bandwidths=[6.0, 12.0],
    )
    model = EncodecModel(config)
    for layer in model.quantizer.layers:
        layer.codebook.embed.normal_(0, 0.2)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_same_codes_and_sound_as_transformers(folder: Path) -> None:
    reason = reason_it_cannot_run()
    if reason:
        pytest.skip(reason)
    meta, reference = load_codec(f"meta-encodec:{folder}", n_codebooks=3), load_codec(folder, n_codebooks=3)
    draw = np.random.default_rng(0)
    clips = [draw.standard_normal(n).astype(np.float32) for n in (4001, 8000, 40, 3)]
    for ours, theirs in zip(meta.encode_batch(clips), reference.encode_batch(clips), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(meta.decode(ours), reference.decode(theirs), atol=1e-5)
    np.testing.assert_array_equal(meta.codebook_vectors(), reference.codebook_vectors())


def test_without_the_package_the_extra_is_named(folder: Path) -> None:
    if reason_it_cannot_run() is None:
        pytest.skip("the extra encodec is installed here")
    with pytest.raises(HocketError) as caught:
        load_codec(f"meta-encodec:{folder}")
    assert caught.value.code == Code.EXTRA_MISSING and "hocket[encodec]" in caught.value.line()


@pytest.mark.parametrize(
    "meta, ours",
    [
        ("encoder.model.0.conv.conv.weight_g", "encoder.layers.0.conv.parametrizations.weight.original0"),
        ("encoder.model.1.block.1.conv.conv.weight_v", "encoder.layers.1.block.1.conv.parametrizations.weight.original1"),
        ("encoder.model.13.lstm.bias_hh_l1", "encoder.layers.13.lstm.bias_hh_l1"),
        ("decoder.model.3.convtr.convtr.bias", "decoder.layers.3.conv.bias"),
        ("quantizer.vq.layers.2._codebook.embed_avg", "quantizer.layers.2.codebook.embed_avg"),
    ],
)
def test_names(meta: str, ours: str) -> None:
    assert transformers_name(meta) == ours
