"""Codes of audio in pieces: those of the whole clip, for pieces and windows of any size, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DacConfig, DacModel, EncodecConfig, EncodecModel, MimiConfig, MimiModel

from common.errors import Code, HocketError
from tokenizer.codec import Codec, load_codec
from tokenizer.codec_stream import CodecStream, encode_long
from tokenizer.encode import encode_padded
from tokenizer.encodec_stream import EncodecWindows
from tokenizer.small_codec import SmallCodec, SmallCodecConfig, build_net
from tokenizer.small_codec_training import CodebookLearner
from tokenizer.transformers_codec import TransformersCodec

ENCODEC: dict[str, Any] = {"num_filters": 4, "hidden_size": 32, "codebook_dim": 32, "codebook_size": 1024}
SMALL = SmallCodecConfig(
    name="test", hop=80, n_fft=320, n_mels=20, latent_dim=8, encoder_dim=16, encoder_layers=2, decoder_dim=16, decoder_layers=2,
    n_codebooks=4, codebook_size=16,
)  # fmt: skip
DAC: dict[str, Any] = {
    "encoder_hidden_size": 4, "downsampling_ratios": [2, 4, 5], "upsampling_ratios": [5, 4, 2], "decoder_hidden_size": 32,
    "n_codebooks": 4, "codebook_size": 32, "codebook_dim": 4,
}  # fmt: skip
FOUR_MINUTES = 240 * 24000 + 111


def babble(n_samples: int, seed: int = 0) -> np.ndarray:
    """Noise [N] whose loudness changes ten times a second at 24 kHz."""
    draw = np.random.default_rng(seed)
    loudness = np.repeat(draw.uniform(0, 1, n_samples // 2400 + 1), 2400)[:n_samples]
    return (0.3 * draw.standard_normal(n_samples) * loudness).astype(np.float32)


def encodec(*, recurrence: float = 1.0, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """A 24 kHz EnCodec with random weights, codebooks that its own latents use, and forget gates that remember for seconds.

    With the forget gates of a fresh LSTM a second of overlap would hide a lost state.
    """
    torch.manual_seed(5)
    model: Any = EncodecModel(EncodecConfig(**{**ENCODEC, **sizes}))
    model = model.to(dtype).eval()
    with torch.inference_mode():
        for name, parameter in model.encoder.named_parameters():
            if "lstm.bias_ih" in name:
                quarter = len(parameter) // 4
                parameter[quarter : 2 * quarter] = 4.0
            elif "lstm.weight_hh" in name:
                parameter *= recurrence
        rest = model.encoder(torch.from_numpy(babble(24000))[None, None].to(dtype))[0].T  # [T, D]
        for layer in model.quantizer.layers:
            spread = torch.randn(layer.codebook.embed.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
            layer.codebook.embed.copy_(rest.mean(0) + rest.std(0) * spread)
            rest = rest - layer.codebook.embed[layer.codebook.encode(rest)]
    return model


def build(kind: str) -> Codec:
    if kind == "encodec":
        return TransformersCodec(encodec(upsampling_ratios=[5, 4, 2], codebook_size=32), n_codebooks=4)
    torch.manual_seed(5)
    if kind == "dac":
        return TransformersCodec(DacModel(DacConfig(**DAC)))
    net = build_net(SMALL, 5)
    with torch.no_grad():
        latents = net.encode(torch.from_numpy(babble(400 * SMALL.hop))[None])[0]
        CodebookLearner(net, decay=0.9).start(latents, np.random.default_rng(5))
    return SmallCodec(net)


@pytest.fixture(scope="module", params=["hocket", "encodec", "dac"])
def codec(request: pytest.FixtureRequest) -> Codec:
    codec = build(request.param)
    codec.window_frames = 40
    return codec


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The networks are too narrow for more, which would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def four_minutes() -> np.ndarray:
    return babble(FOUR_MINUTES)


def in_pieces(stream: CodecStream, wav: np.ndarray, sizes: Iterator[int]) -> np.ndarray:
    """Codes [K, T] of a clip pushed in pieces of these sizes."""
    codes, start = [], 0
    while start < len(wav):
        size = next(sizes)
        codes.append(stream.push(wav[start : start + size]))
        start += size
    return np.concatenate([*codes, stream.finish()], axis=1)


class TestAnyPieces:
    @settings(max_examples=25, deadline=None)
    @given(n_samples=st.integers(1, 12000), sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=9).filter(any))
    def test_give_the_codes_of_the_whole(self, codec: Codec, n_samples: int, sizes: list[int]) -> None:
        wav = babble(n_samples, n_samples)
        stream = codec.stream()
        cycle = (size for _ in range(1 << 20) for size in sizes)
        codes = in_pieces(stream, wav, cycle)
        assert codes.dtype == np.uint16
        np.testing.assert_array_equal(codes, codec.encode(wav))

    def test_come_out_as_soon_as_a_window_is_whole(self, codec: Codec) -> None:
        assert codec.reach is not None
        stream, hop = codec.stream(), codec.hop
        assert stream.push(babble((40 + codec.reach.after) * hop - 1)).shape == (codec.n_codebooks, 0)
        assert stream.push(babble(1)).shape == (codec.n_codebooks, 40)
        assert stream.push(babble(80 * hop)).shape == (codec.n_codebooks, 80)

    def test_the_callers_array_may_change_after(self, codec: Codec) -> None:
        wav, stream = babble(9000), codec.stream()
        buffer, codes = np.empty(1000, np.float32), []
        for start in range(0, 9000, 1000):
            buffer[:] = wav[start : start + 1000]
            codes.append(stream.push(buffer))
            buffer[:] = np.nan
        np.testing.assert_array_equal(np.concatenate([*codes, stream.finish()], axis=1), codec.encode(wav))

    def test_two_streams_at_once(self, codec: Codec) -> None:
        clips, streams = [babble(9000, seed) for seed in (1, 2)], [codec.stream(), codec.stream()]
        codes: list[list[np.ndarray]] = [[], []]
        for start in range(0, 9000, 700):
            for i in (0, 1):
                codes[i].append(streams[i].push(clips[i][start : start + 700]))
        for i in (0, 1):
            got = np.concatenate([*codes[i], streams[i].finish()], axis=1)
            np.testing.assert_array_equal(got, codec.encode(clips[i]))

    def test_long_and_short_clips_together(self, codec: Codec) -> None:
        clips = [babble(n, n) for n in (200, 9000, 40 * codec.hop, 40 * codec.hop + 1, 7)]
        for clip, codes in zip(clips, codec.encode_batch(clips), strict=True):
            np.testing.assert_array_equal(codes, codec.encode(clip))
            assert codes.shape == (codec.n_codebooks, codec.n_frames(len(clip)))


class TestWindows:
    """Windows against one pass of the network over the clip; other shapes round otherwise, so a code at a tie may change."""

    @pytest.mark.parametrize("window_frames", [1, 3, 17, 40])
    def test_are_the_pass_over_the_whole_clip(self, codec: Codec, window_frames: int) -> None:
        wav = babble(300 * codec.hop)
        assert differing(codec, wav, window_frames) <= 0.002

    def test_without_what_is_around_them_are_not(self, codec: Codec) -> None:
        wav, reach = babble(300 * codec.hop), codec.reach
        assert reach is not None
        sides = [replace(reach, before=0), replace(reach, after=0)] if reach.after else [replace(reach, before=0)]
        try:
            for codec.reach in sides:
                assert differing(codec, wav, 17) > 0.01
        finally:
            codec.reach = reach


def differing(codec: Codec, wav: np.ndarray, window_frames: int) -> float:
    """The share of codes in which windows differ from one pass over the whole clip [N]."""
    whole = codec._encode([wav])[0]
    assert codec.reach is not None
    stream = CodecStream(
        codec._window_encoder(), lambda _: whole[:, :0], n_codebooks=codec.n_codebooks, hop=codec.hop, reach=codec.reach,
        window_frames=window_frames,
    )  # fmt: skip
    return float((encode_long(stream, wav, 977) != whole).mean())


class TestEncodec:
    """Four minutes at 24 kHz."""

    def test_pieces_of_four_minutes(self, four_minutes: np.ndarray) -> None:
        """The random recurrence makes the least difference in rounding grow until it changes codes; there is none."""
        codec = TransformersCodec(encodec(), n_codebooks=8)
        whole = codec.encode(four_minutes)
        assert whole.shape == (8, 18001) and all(len(np.unique(book)) > 100 for book in whole)
        for size in (320, 7919, 240000):
            np.testing.assert_array_equal(encode_long(codec.stream(), four_minutes, size), whole)

    def test_windows_of_four_minutes_in_double_precision(self, four_minutes: np.ndarray) -> None:
        """Against one pass of transformers' own modules; rounding is then too small to turn a code."""
        model = encodec(recurrence=0.5, dtype=torch.float64, num_filters=2)
        whole = one_pass(model, four_minutes)
        for window_frames in (97, 750):
            np.testing.assert_array_equal(windows(model, four_minutes, window_frames), whole)
        for window_frames, seconds in ((1, 8), (13, 40)):
            part = four_minutes[: seconds * 24000]
            np.testing.assert_array_equal(windows(model, part, window_frames), whole[:, : seconds * 75])

    def test_a_lost_state_is_seen(self, four_minutes: np.ndarray) -> None:
        """The forget gates keep what was before for seconds, so that windows without it give other codes."""
        model, part = encodec(recurrence=0.5, dtype=torch.float64), four_minutes[: 20 * 24000]
        whole = one_pass(model, part)
        lost = windows(model, part, 75, forget=True)
        np.testing.assert_array_equal(windows(model, part, 75), whole)
        np.testing.assert_array_equal(lost[:, :75], whole[:, :75])
        assert (lost[:, 75:] != whole[:, 75:]).mean() > 0.3

    @pytest.mark.soak
    @pytest.mark.timeout(900)
    def test_full_width(self, four_minutes: np.ndarray) -> None:
        """The sizes of the 24 kHz EnCodec: pieces, and the pass of transformers over all four minutes."""
        sizes: dict[str, Any] = {"num_filters": 32, "hidden_size": 128, "codebook_dim": 128}
        model = encodec(recurrence=0.5, **sizes)
        codec = TransformersCodec(model, n_codebooks=8)
        whole = codec.encode(four_minutes)
        np.testing.assert_array_equal(encode_long(codec.stream(), four_minutes, 104729), whole)
        assert (whole != one_pass(model, four_minutes)).mean() < 1e-4


def one_pass(model: EncodecModel, wav: np.ndarray) -> np.ndarray:
    """Codes [8, T] by transformers' own encoder and quantiser over the whole clip."""
    padded = torch.from_numpy(np.pad(wav, (0, -len(wav) % 320)))[None, None].to(model.dtype)
    with torch.inference_mode():
        return model.quantizer.encode(model.encoder(padded), 6.0)[:, 0].numpy().astype(np.uint16)


def windows(model: EncodecModel, wav: np.ndarray, window_frames: int, *, forget: bool = False) -> np.ndarray:
    """Codes [8, T] by windows of so many frames; if `forget`, with the LSTM's state lost between them."""
    codec = TransformersCodec(model, n_codebooks=8)
    window = EncodecWindows(codec._layers, codec._quantise, "cpu")

    def encode(samples: np.ndarray, before: int, after: int) -> np.ndarray:
        if forget:
            window._state = None
        return window(samples, before, after)

    assert codec.reach is not None
    stream = CodecStream(
        encode, lambda _: np.zeros((8, 0), np.uint16), n_codebooks=8, hop=320, reach=codec.reach, window_frames=window_frames
    )
    return encode_long(stream, wav, 24000)


MEMORY = """
import sys
import numpy as np, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_codec_stream import encodec
from simulations.usage import peak_bytes
from tokenizer.codec import load_codec
from tokenizer.transformers_codec import TransformersCodec

codec = load_codec() if {kind!r} == "hocket" else TransformersCodec(encodec(num_filters=2), n_codebooks=8)
piece = (0.1 * np.random.default_rng(0).standard_normal(codec.sample_rate)).astype(np.float32)
for minutes in (2, 20):
    stream, frames = codec.stream(), 0
    for _ in range(60 * minutes):
        frames += stream.push(piece).shape[1]
    frames += stream.finish().shape[1]
    assert frames == round(60 * minutes * codec.frame_rate)
    print(peak_bytes() >> 10)
"""


@pytest.mark.parametrize("kind", ["hocket", "encodec"])
def test_twenty_minutes_need_the_memory_of_two(kind: str) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("the peak is read from Linux' /proc")
    script = MEMORY.format(kind=kind, tests=__file__.rsplit("/", 1)[0])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    two, twenty = map(int, done.stdout.split())
    # 18 minutes of samples alone are 69 and 104 MB.
    assert twenty - two <= 20 << 10, f"{two} KiB for 2 minutes, {twenty} KiB for 20"


class TestRefusals:
    def test_mimi_encodes_whole_clips(self) -> None:
        sizes: dict[str, Any] = {
            "num_filters": 4, "hidden_size": 16, "upsampling_ratios": [5, 4, 2], "codebook_size": 32, "codebook_dim": 8,
            "vector_quantization_hidden_dimension": 8, "num_quantizers": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "upsample_groups": 16,
        }  # fmt: skip
        self.refused(TransformersCodec(MimiModel(MimiConfig(**sizes))), "mimi")

    @pytest.mark.parametrize("change", [{"use_causal_conv": False}, {"norm_type": "time_group_norm"}])
    def test_encodec_that_looks_ahead_or_at_the_whole_clip(self, change: dict[str, Any]) -> None:
        codec = TransformersCodec(EncodecModel(EncodecConfig(**{**ENCODEC, "upsampling_ratios": [5, 4, 2]}, **change)))
        self.refused(codec, "encodec")
        clips = [babble(n, n) for n in (5000, 9000, 5100)]
        for clip, codes in zip(clips, codec.encode_batch(clips), strict=True):
            np.testing.assert_array_equal(codes, codec.encode(clip))

    def refused(self, codec: Codec, kind: str) -> None:
        with pytest.raises(HocketError) as caught:
            codec.stream()
        assert caught.value.code is Code.OPTION_INVALID and kind in caught.value.line()
        assert "cut the recording" in caught.value.line()

    @pytest.mark.parametrize("bad", [np.array([0.0, np.inf], np.float32), np.zeros((2, 9), np.float32), np.zeros(9, np.int16)])
    def test_bad_samples(self, codec: Codec, bad: np.ndarray) -> None:
        with pytest.raises(HocketError) as caught:
            codec.stream().push(bad)
        assert caught.value.code is Code.AUDIO_UNREADABLE

    def test_no_samples(self, codec: Codec) -> None:
        with pytest.raises(HocketError) as caught:
            codec.stream().finish()
        assert caught.value.code is Code.AUDIO_UNREADABLE

    def test_after_the_end(self, codec: Codec) -> None:
        stream = codec.stream()
        stream.push(babble(100))
        assert stream.finish().shape[1] == codec.n_frames(100)
        for late in (stream.finish, lambda: stream.push(babble(1))):
            with pytest.raises(ValueError, match="finished"):
                late()


class TestDevices:
    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(HocketError) as caught:
            load_codec(device="cuda:77")
        assert caught.value.code is Code.OPTION_INVALID and "cpu" in caught.value.line()

    def test_on_the_cpu(self) -> None:
        codec = load_codec(device="cpu")
        assert codec.device == "cpu" and codec.encode(babble(1000)).shape == (8, 4)

    def test_on_a_card(self, codec: Codec) -> None:
        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA card here")
        wav = babble(9000)
        here = codec.encode(wav)
        there: Codec
        if isinstance(codec, SmallCodec):
            there = SmallCodec(deepcopy(codec.net), device="cuda:0")
        else:
            assert isinstance(codec, TransformersCodec)
            there = TransformersCodec(deepcopy(codec.model), n_codebooks=codec.n_codebooks, device="cuda:0")
        there.window_frames = codec.window_frames
        assert (there.encode(wav) != here).mean() < 0.01
        np.testing.assert_array_equal(encode_long(there.stream(), wav, 700), there.encode(wav))

    def test_batches_that_do_not_fit_are_halved(self) -> None:
        sizes: list[int] = []

        def codes_of(batch: torch.Tensor) -> torch.Tensor:
            sizes.append(len(batch))
            if len(batch) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return batch.reshape(len(batch), 1, -1, 10).sum(-1).long()

        clips = [np.full(10 * (n + 1), n, np.float32) for n in range(6)]
        codes = encode_padded(clips, 10, codes_of, n_codebooks=1, max_clips=6)
        assert [book.tolist() for book in codes] == [[[10 * n] * (n + 1)] for n in range(6)]
        assert sizes == [6, 3, 2, 2, 2]


class TestDecodingInWindows:
    @pytest.mark.parametrize("kind", ["hocket", "dac"])
    def test_is_decoding_of_the_whole(self, kind: str) -> None:
        codec = build(kind)
        side = codec.decode_context
        assert side is not None
        codes = codec.encode(babble(90 * codec.hop))
        whole, window = codec.decode(codes), 20
        for start in range(0, 90, window):
            begin, end = max(0, start - side), min(90, start + window + side)
            part = codec.decode(codes[:, begin:end])[(start - begin) * codec.hop :]
            own = whole[start * codec.hop : (start + window) * codec.hop]
            np.testing.assert_allclose(part[: len(own)], own, atol=1e-5)
        assert build("encodec").decode_context is None
