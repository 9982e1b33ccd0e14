"""What every codec must do, shown on small ones of each kind with random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import DacConfig, DacModel, EncodecConfig, EncodecModel, MimiConfig, MimiModel

from common.errors import Code, HocketError
from tokenizer.codec import Codec, load_codec, shipped_folder
from tokenizer.encode import batches_by_length
from tokenizer.small_codec import SmallCodec, SmallCodecConfig, build_net, mel_filters
from tokenizer.small_codec_training import CodebookLearner
from tokenizer.transformers_codec import TransformersCodec

KINDS = ("hocket", "encodec", "mimi", "dac")
SMALL = SmallCodecConfig(
    name="test",
    hop=80,
    n_fft=320,
    n_mels=20,
    latent_dim=8,
    encoder_dim=16,
    encoder_layers=2,
    decoder_dim=16,
    decoder_layers=2,
    n_codebooks=4,
    codebook_size=16,
)

ENCODEC: dict[str, Any] = {
    "num_filters": 4,
    "hidden_size": 16,
    "codebook_dim": 16,
    "upsampling_ratios": [5, 4, 2],
    "codebook_size": 32,
    "target_bandwidths": [6.0, 12.0],
}
MIMI: dict[str, Any] = {
    "num_filters": 4,
    "hidden_size": 16,
    "upsampling_ratios": [5, 4, 2],
    "codebook_size": 32,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "num_quantizers": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "sliding_window": 20,
    "upsample_groups": 16,
}
DAC: dict[str, Any] = {
    "encoder_hidden_size": 4,
    "downsampling_ratios": [2, 4, 5],
    "upsampling_ratios": [5, 4, 2],
    "decoder_hidden_size": 32,
    "n_codebooks": 4,
    "codebook_size": 32,
    "codebook_dim": 4,
}


def noise(n_samples: int, seed: int = 0) -> np.ndarray:
    return (0.3 * np.random.default_rng(seed).standard_normal(n_samples)).astype(np.float32)


def wake(model: EncodecModel | MimiModel) -> None:
    """Give a fresh model codebooks that its own latents use, and its LSTM a longer memory by a forget bias.

    Codebooks are zero in a fresh model, so that every code would be 0; and a short memory would hide a wrong padding.
    """
    for name, parameter in model.named_parameters():
        if "lstm.bias_ih" in name:
            quarter = len(parameter) // 4
            parameter.data[quarter : 2 * quarter] = 1.0
    books = [module for module in model.modules() if type(module).__name__.endswith("EuclideanCodebook")]
    with torch.no_grad():
        for book in books:
            encode = book.encode

            def encode_after_filling(states: torch.Tensor, book: Any = book, encode: Any = encode) -> Any:
                flat = states.reshape(-1, states.shape[-1])
                vectors = flat.mean(0) + flat.std(0) * torch.randn(book.codebook_size, flat.shape[1])
                (book.embed if "embed" in book._buffers else book.embed_sum).copy_(vectors)
                return encode(states)

            book.encode = encode_after_filling
        books_of = {"bandwidth": 12.0} if isinstance(model, EncodecModel) else {}
        model.encode(torch.from_numpy(noise(16000))[None, None], **books_of)
        for book in books:
            del book.encode


def build(kind: str) -> Codec:
    torch.manual_seed(5)
    if kind == "hocket":
        net = build_net(SMALL, 5)
        with torch.no_grad():
            latents = net.encode(torch.from_numpy(noise(400 * SMALL.hop))[None])[0]
            CodebookLearner(net, decay=0.9).start(latents, np.random.default_rng(5))
        return SmallCodec(net)
    if kind == "dac":
        return TransformersCodec(DacModel(DacConfig(**DAC)))
    model = EncodecModel(EncodecConfig(**ENCODEC)) if kind == "encodec" else MimiModel(MimiConfig(**MIMI))
    wake(model)
    return TransformersCodec(model, max_batch=8)


@pytest.fixture(scope="module", params=KINDS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return build(request.param)


@pytest.fixture(scope="module")
def shipped() -> Codec:
    return load_codec("hocket-16k")


class TestContract:
    def test_sizes_and_types(self, codec: Codec) -> None:
        codes = codec.encode(noise(75 * codec.hop + 1))
        assert codes.shape == (codec.n_codebooks, 76) and codes.dtype == np.uint16
        assert codes.max() < codec.codebook_size and all(len(np.unique(book)) > 3 for book in codes)
        wav = codec.decode(codes)
        assert wav.shape == (76 * codec.hop,) and wav.dtype == np.float32 and np.isfinite(wav).all()
        assert codec.frame_rate == codec.sample_rate / codec.hop
        assert codec.n_frames(5 * codec.hop + 1) == 6

    def test_alone_is_batched(self, codec: Codec) -> None:
        hop = codec.hop
        lengths = (40 * hop, 7, 13 * hop + 11, 41 * hop - 1, hop, 30 * hop + 3, 80 * hop + 1)
        clips = [noise(n, seed) for seed, n in enumerate(lengths)]
        batched = codec.encode_batch(clips)
        for clip, codes in zip(clips, batched, strict=True):
            np.testing.assert_array_equal(codec.encode(clip), codes)
            assert codes.shape[1] == codec.n_frames(len(clip))

    def test_the_same_twice(self, codec: Codec) -> None:
        clip = noise(30 * codec.hop)
        np.testing.assert_array_equal(codec.encode(clip), codec.encode(clip))

    def test_first_books_of_more(self, codec: Codec, tmp_path: Path) -> None:
        codec.save(tmp_path / "c")
        fewer = load_codec(tmp_path / "c", n_codebooks=2)
        clip = noise(30 * codec.hop)
        np.testing.assert_array_equal(fewer.encode(clip), codec.encode(clip)[:2])
        assert fewer.describe()["n_codebooks"] == 2
        np.testing.assert_array_equal(fewer.decode(fewer.encode(clip)), codec.decode(codec.encode(clip)[:2]))

    def test_saved_and_loaded(self, codec: Codec, tmp_path: Path) -> None:
        codec.save(tmp_path)
        again = load_codec(str(tmp_path))
        assert again.describe() == codec.describe()
        clip = noise(20 * codec.hop, 3)
        np.testing.assert_array_equal(again.encode(clip), codec.encode(clip))
        np.testing.assert_array_equal(again.codebook_vectors(), codec.codebook_vectors())
        assert json.dumps(again.describe())

    def test_vectors_are_what_the_decoder_reads(self, codec: Codec) -> None:
        vectors = codec.codebook_vectors()
        assert vectors.dtype == np.float32 and vectors.shape[:2] == (codec.n_codebooks, codec.codebook_size)
        codes = codec.encode(noise(20 * codec.hop))
        latents = codec.latents(codes)
        assert latents.shape == (20, vectors.shape[2])
        batch = torch.from_numpy(codes.astype(np.int64))
        with torch.inference_mode():
            if isinstance(codec, SmallCodec):
                expected = codec.net.dequantise(batch.T[None])[0]
            else:
                assert isinstance(codec, TransformersCodec)
                quantizer = codec.model.quantizer
                read = {"encodec": lambda: quantizer.decode(batch[:, None]), "mimi": lambda: quantizer.decode(batch[None])}
                expected = read.get(codec.kind, lambda: quantizer.from_codes(batch[None])[0])()[0].T
        np.testing.assert_allclose(latents, expected.numpy(), atol=1e-5)

    @pytest.mark.parametrize(
        "wav",
        [np.zeros(0, np.float32), np.zeros((2, 100), np.float32), np.array([0.0, np.nan], np.float32), np.zeros(9, np.int16)],
    )
    def test_refuses_bad_samples(self, codec: Codec, wav: np.ndarray) -> None:
        with pytest.raises(HocketError) as caught:
            codec.encode(wav)
        assert caught.value.code == Code.AUDIO_UNREADABLE

    @pytest.mark.parametrize("shape, value", [((4, 3), 99), ((5, 3), 0), ((4, 0), 0), ((4,), 0)])
    def test_refuses_bad_codes(self, codec: Codec, shape: tuple[int, ...], value: int) -> None:
        with pytest.raises(HocketError) as caught:
            codec.decode(np.full(shape, value, np.uint16))
        assert caught.value.code == Code.CODEC_UNREADABLE

    @pytest.mark.parametrize("wanted", [0, 5, -1])
    def test_refuses_other_numbers_of_books(self, codec: Codec, tmp_path: Path, wanted: int) -> None:
        codec.save(tmp_path)
        with pytest.raises(HocketError) as caught:
            load_codec(tmp_path, n_codebooks=wanted)
        assert caught.value.code == Code.OPTION_INVALID


class TestRefusedFolders:
    def refused(self, spec: str | Path) -> str:
        with pytest.raises(HocketError) as caught:
            load_codec(spec)
        assert caught.value.code == Code.CODEC_UNREADABLE
        return caught.value.line()

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert "neither" in self.refused(tmp_path / "absent")
        assert "config.json" in self.refused(tmp_path)
        self.refused("hocket-17k")

    @pytest.mark.parametrize("text", ["", "[]", '{"model_type": "bert"}', "{", '{"format": "hocket-codec/1", "n_mel": 3}'])
    def test_configuration(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "config.json").write_text(text)
        assert "config.json" in self.refused(tmp_path)

    def test_hub_id_offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "nobody/nothing" in self.refused("nobody/nothing")

    def test_missing_weights_are_not_made_up(self, tmp_path: Path) -> None:
        build("encodec").save(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        del weights["encoder.layers.0.conv.bias"]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert "encoder.layers.0.conv.bias" in self.refused(tmp_path)

    def test_truncated_weights(self, codec: Codec, tmp_path: Path) -> None:
        codec.save(tmp_path)
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        self.refused(tmp_path)

    @pytest.mark.parametrize("change", ["shape", "type", "more", "less", "nan"])
    def test_small_codec_tensors(self, tmp_path: Path, change: str) -> None:
        build("hocket").save(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        name = "encoder.embed.bias"
        if change == "shape":
            weights[name] = torch.zeros(3)
        elif change == "type":
            weights[name] = weights[name].half()
        elif change == "more":
            weights["other"] = torch.zeros(3)
        elif change == "less":
            del weights[name]
        else:
            weights[name][0] = float("nan")
        save_file(weights, tmp_path / "model.safetensors")
        assert ("other" if change == "more" else name) in self.refused(tmp_path)

    def test_pickles_are_not_read(self, tmp_path: Path) -> None:
        codec = build("encodec")
        assert isinstance(codec, TransformersCodec)
        codec.save(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        torch.save(codec.model.state_dict(), tmp_path / "pytorch_model.bin")
        self.refused(tmp_path)

    def test_stereo_encodec(self, tmp_path: Path) -> None:
        model = EncodecModel(EncodecConfig(num_filters=4, hidden_size=16, codebook_dim=16, audio_channels=2, normalize=True))
        model.save_pretrained(tmp_path)
        assert "stereo" in self.refused(tmp_path)


class TestShipped:
    def test_is_what_its_configuration_says(self, shipped: Codec) -> None:
        assert (shipped.sample_rate, shipped.frame_rate, shipped.n_codebooks, shipped.codebook_size) == (16000, 50.0, 8, 256)
        assert (shipped_folder() / "model.safetensors").stat().st_size <= 14_000_000
        assert "Licences" in (shipped_folder() / "CARD.md").read_text(encoding="utf-8")

    def test_the_licences_go_where_it_is_saved(self, shipped: Codec, tmp_path: Path) -> None:
        shipped.save(tmp_path)
        for name in ("CARD.md", "config.json", "model.safetensors"):
            assert (tmp_path / name).read_bytes() == (shipped_folder() / name).read_bytes()

    @pytest.mark.parametrize("books, bound", [(8, 0.6), (4, 0.7), (1, 1.1)])
    def test_sounds_like_what_went_in(self, shipped: Codec, books: int, bound: float) -> None:
        wav = vowels()
        made = shipped.decode(shipped.encode(wav)[:books])[: len(wav)]
        assert mel_distance(made, wav) < bound < mel_distance(np.roll(wav, 4000), wav)

    def test_more_books_are_nearer(self, shipped: Codec) -> None:
        wav = vowels()
        codes = shipped.encode(wav)
        distances = [mel_distance(shipped.decode(codes[:books]), wav) for books in (1, 4, 8)]
        assert distances == sorted(distances, reverse=True)

    def test_silence_stays_silent(self, shipped: Codec) -> None:
        made = shipped.decode(shipped.encode(np.zeros(16000, np.float32)))
        assert np.abs(made).max() < 0.01

    def test_unused_codes_are_few(self, shipped: Codec) -> None:
        """A collapsed codebook would have most of its vectors together."""
        for book in shipped.codebook_vectors():
            distance = np.linalg.norm(book[:, None] - book[None], axis=-1) + 1e9 * np.eye(len(book))
            spread = np.linalg.norm(book - book.mean(0), axis=-1).mean()
            assert np.median(distance.min(axis=1)) > 0.05 * spread


def vowels() -> np.ndarray:
    """Two seconds of a synthetic voice at 16 kHz: a gliding pulse train through formants that change, with a pause and a hiss."""
    rate, seconds = 16000, 2.0
    time = np.arange(int(rate * seconds)) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time)
    phase = np.cumsum(pitch) / rate
    source = np.diff(np.floor(phase), prepend=0.0)
    draw = np.random.default_rng(1)
    total = np.zeros_like(time)
    for start, formants in enumerate(((700, 1200, 2500), (300, 2300, 3000), (400, 800, 2400), (500, 1500, 2500))):
        part = source.copy()
        part[(time < start * 0.5) | (time >= start * 0.5 + 0.42)] = 0
        spectrum, f = np.fft.rfft(part), np.fft.rfftfreq(len(part), 1 / rate)
        shape = sum(1 / (1 + ((f - formant) / 90) ** 2) / (rank + 1) for rank, formant in enumerate(formants))
        total += np.fft.irfft(spectrum * shape, len(part))
    hiss = draw.standard_normal(len(time)) * np.exp(-(((time - 0.46) / 0.03) ** 2))
    wav = total / np.abs(total).max() + 0.05 * hiss + 0.001 * draw.standard_normal(len(time))
    return (0.6 * wav / np.abs(wav).max()).astype(np.float32)


def mel_distance(made: np.ndarray, wanted: np.ndarray) -> float:
    """Mean absolute difference of log-mel spectra, in nepers."""
    logs = []
    for wav in (made, wanted):
        frames = np.lib.stride_tricks.sliding_window_view(np.pad(wav, 512), 1024)[::256] * np.hanning(1024)
        logs.append(np.log(np.maximum(np.abs(np.fft.rfft(frames)) @ mel_filters(16000, 1024, 80).T, 1e-4)))
    return float(np.abs(logs[0] - logs[1]).mean())


def test_the_interface_needs_no_torch() -> None:
    code = "import sys, tokenizer.codec, tokenizer.audio; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.lists(st.integers(1, 5000), max_size=60), st.integers(1, 9), st.integers(1, 20000))
@settings(max_examples=200, deadline=None)
def test_batches_hold_each_clip_once_and_stay_small(lengths: list[int], max_clips: int, max_samples: int) -> None:
    batches = batches_by_length(lengths, max_clips=max_clips, max_samples=max_samples)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= max_clips
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= max_samples


@given(st.integers(8000, 48000), st.sampled_from((256, 512, 1280, 2048)), st.integers(8, 128))
@settings(max_examples=50, deadline=None)
def test_every_mel_filter_hears_something(sample_rate: int, n_fft: int, n_mels: int) -> None:
    filters = mel_filters(sample_rate, n_fft, n_mels)
    assert filters.shape == (n_mels, n_fft // 2 + 1) and (filters >= 0).all()
    np.testing.assert_allclose(filters.sum(axis=1), 1, rtol=1e-5)
