"""Hocket's own codec: log-mel -> ConvNeXt -> residual vector quantiser -> ConvNeXt -> inverse STFT.

It works on frames only, so it is small, hundreds of times faster than real time on one core, and can be trained there in
minutes (`small_codec_training`). The decoder predicts magnitude and phase of an STFT, as in Siuzdak, "Vocos" (2023);
the blocks are those of Liu et al., "A ConvNet for the 2020s" (2022), in one dimension.

The networks are not causal (their field is some 35 frames), so clips are encoded one at a time: then the codes of a
clip cannot depend on what else is in the batch. Clips longer than a window of 30 s are encoded in windows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from common.errors import Code, HocketError
from common.files import atomic_write
from tokenizer.codec import SMALL_FORMAT, Codec, check_n_codebooks, read_config
from tokenizer.codec_layers import padded_convolutions
from tokenizer.codec_stream import WindowEncoder
from tokenizer.receptive_field import Convolution, reach_of

MAX_CARD_BYTES = 1 << 16
WINDOW_S = 30.0  # of audio that is encoded at once, in some 40 MB
FLOOR = 1e-5  # of mel magnitudes before the logarithm: -100 dB


class SmallCodecConfig(BaseModel):
    """Sizes of the codec; bounds keep a hostile file from making us allocate much."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["hocket-codec/1"] = SMALL_FORMAT  # type: ignore[assignment]
    name: str = Field(default="hocket-16k", max_length=100)
    sample_rate: int = Field(default=16000, ge=8000, le=48000)
    hop: int = Field(default=320, ge=40, le=4096)
    n_fft: int = Field(default=1280, ge=80, le=16384)
    n_mels: int = Field(default=80, ge=8, le=256)
    latent_dim: int = Field(default=64, ge=4, le=1024)
    encoder_dim: int = Field(default=128, ge=8, le=1024)
    encoder_layers: int = Field(default=4, ge=1, le=24)
    decoder_dim: int = Field(default=256, ge=8, le=2048)
    decoder_layers: int = Field(default=6, ge=1, le=24)
    expansion: int = Field(default=3, ge=1, le=8)
    n_codebooks: int = Field(default=8, ge=1, le=32)
    codebook_size: int = Field(default=256, ge=2, le=65536)

    @model_validator(mode="after")
    def _check(self) -> SmallCodecConfig:
        if self.n_fft % self.hop or (self.n_fft - self.hop) % 2:
            raise ValueError("n_fft must be a multiple of hop, and their difference even")
        if self.n_codebooks * self.codebook_size * self.latent_dim > 1 << 26:
            raise ValueError("the codebooks are too large")
        return self


def mel_filters(sample_rate: int, n_fft: int, n_mels: int) -> np.ndarray:
    """Triangular filters float32 [n_mels, n_fft // 2 + 1], evenly spaced on the HTK mel scale up to Nyquist, each summing to 1.

    A filter narrower than a bin takes the bin nearest to its centre.
    """
    top = 2595 * np.log10(1 + sample_rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
    bins = np.arange(n_fft // 2 + 1) * sample_rate / n_fft
    rising = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    for row, centre in zip(filters, edges[1:-1], strict=True):
        if row.sum() < 0.5:
            row[np.abs(bins - centre).argmin()] = 1.0
    return np.asarray(filters / filters.sum(axis=1, keepdims=True), dtype=np.float32)


def mel_matrix(sample_rate: int, n_fft: int, n_mels: int) -> Tensor:
    """`mel_filters` as the right factor of a product with magnitudes: float32 [n_fft // 2 + 1, n_mels]."""
    return torch.from_numpy(mel_filters(sample_rate, n_fft, n_mels)).T.contiguous()


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution over 7 frames, layer norm, a two-layer perceptron, a learnt scale, a skip; [B, T, C] -> [B, T, C]."""

    def __init__(self, dim: int, expansion: int, scale: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim * expansion)
        self.down = nn.Linear(dim * expansion, dim)
        self.scale = nn.Parameter(torch.full((dim,), scale))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x.transpose(1, 2)).transpose(1, 2)  # [B, T, C]
        return x + self.scale * self.down(F.gelu(self.up(self.norm(y))))


class FrameNet(nn.Module):
    """A convolution over 7 frames, ConvNeXt blocks, layer norm, a linear map; [B, T, C_in] -> [B, T, C_out]."""

    def __init__(self, dim_in: int, dim: int, dim_out: int, layers: int, expansion: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(dim_in, dim, 7, padding=3)
        self.norm_in = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(ConvNeXtBlock(dim, expansion, 1 / layers) for _ in range(layers))
        self.norm_out = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_in(self.embed(x.transpose(1, 2)).transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm_out(x))


class SmallCodecNet(nn.Module):
    """The networks and codebooks. `codebooks` [K, card, D] is a buffer: it is learnt by moving averages, not by gradients."""

    codebooks: Tensor
    mel: Tensor
    window: Tensor

    def __init__(self, config: SmallCodecConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.encoder = FrameNet(c.n_mels, c.encoder_dim, c.latent_dim, c.encoder_layers, c.expansion)
        self.decoder = FrameNet(c.latent_dim, c.decoder_dim, c.n_fft + 2, c.decoder_layers, c.expansion)
        self.register_buffer("codebooks", torch.randn(c.n_codebooks, c.codebook_size, c.latent_dim))
        self.register_buffer("mel", mel_matrix(c.sample_rate, c.n_fft, c.n_mels), persistent=False)
        self.register_buffer("window", torch.hann_window(c.n_fft), persistent=False)

    def features(self, wav: Tensor) -> Tensor:
        """Normalised log-mel [B, T, n_mels] of samples [B, T * hop]; frame t is centred on its own hop."""
        c = self.config
        side = (c.n_fft - c.hop) // 2
        frames = F.pad(wav, (side, side)).unfold(1, c.n_fft, c.hop)  # [B, T, n_fft]
        magnitude = torch.fft.rfft(frames * self.window).abs()
        return (magnitude @ self.mel).clamp(min=FLOOR).log() / 4 + 0.5

    def encode(self, wav: Tensor) -> Tensor:
        """Latents [B, T, D] of samples [B, T * hop]."""
        return self.encoder(self.features(wav))

    def quantise(self, latents: Tensor, n_codebooks: int) -> tuple[Tensor, Tensor]:
        """Codes int64 [B, T, K] of latents [B, T, D], and what they stand for [B, T, D]. No gradient passes."""
        residual = latents.detach()
        codes = []
        for book in self.codebooks[:n_codebooks]:
            code = nearest(residual, book)
            residual = residual - book[code]
            codes.append(code)
        return torch.stack(codes, dim=-1), latents.detach() - residual

    def dequantise(self, codes: Tensor) -> Tensor:
        """Latents [B, T, D] of codes int64 [B, T, K]."""
        total = self.codebooks[0][codes[..., 0]]
        for book in range(1, codes.shape[-1]):
            total = total + self.codebooks[book][codes[..., book]]
        return total

    def decode(self, latents: Tensor) -> Tensor:
        """Samples [B, T * hop] of latents [B, T, D]."""
        c = self.config
        magnitude, phase = self.decoder(latents).chunk(2, dim=-1)  # each [B, T, n_fft / 2 + 1]
        magnitude = magnitude.clamp(max=6.0).exp()
        frames = torch.fft.irfft(torch.complex(magnitude * phase.cos(), magnitude * phase.sin()), n=c.n_fft)
        return overlap_add(frames * self.window, c.hop) / self._envelope(frames.shape[1])

    def _envelope(self, n_frames: int) -> Tensor:
        """What `overlap_add` gives for frames of ones, [1, T * hop]; the whole inside is positive since n_fft > hop."""
        return overlap_add((self.window**2).expand(1, n_frames, -1), self.config.hop).clamp(min=1e-4)


def nearest(vectors: Tensor, book: Tensor) -> Tensor:
    """Index int64 [...] of the row of `book` [card, D] that is nearest to each of `vectors` [..., D]; the lowest at a tie."""
    distance = (book * book).sum(-1) - 2 * (vectors @ book.T)  # the vector's own length does not change the order
    return distance.argmin(dim=-1)


def overlap_add(frames: Tensor, hop: int) -> Tensor:
    """Sum frames [B, T, n_fft] at distances of `hop`, cut to [B, T * hop] so that frame t is centred on hop t."""
    b, t, n_fft = frames.shape
    parts = n_fft // hop
    pieces = frames.reshape(b, t, parts, hop)
    total = frames.new_zeros(b, t + parts - 1, hop)
    for part in range(parts):
        total = total + F.pad(pieces[:, :, part], (0, 0, part, parts - 1 - part))
    side = (n_fft - hop) // 2
    return total.reshape(b, -1)[:, side : side + t * hop]


class SmallCodec(Codec):
    """The codec behind the `Codec` interface.

    Args:
        net: the networks; they are put into evaluation mode.
        n_codebooks: books to use; all if None.
        card: what the weights were made from, with licences; it goes where the codec is saved.
        device: to run on.
    """

    kind = "hocket"

    def __init__(self, net: SmallCodecNet, *, n_codebooks: int | None = None, card: str = "", device: str = "cpu") -> None:
        self.card = card
        self.device = device
        self.net = net.eval().requires_grad_(False).to(device)
        self.config = net.config
        self.sample_rate = net.config.sample_rate
        self.hop = net.config.hop
        self.codebook_size = net.config.codebook_size
        self.n_codebooks = check_n_codebooks(n_codebooks, net.config.n_codebooks)
        # 3 frames a convolution, and the frames that overlap in the sound.
        self.decode_context = 3 * (net.config.decoder_layers + 1) + net.config.n_fft // net.config.hop
        spectrum = Convolution(net.config.n_fft, self.hop, (net.config.n_fft - self.hop) // 2)
        self.reach = reach_of([spectrum, *padded_convolutions(net.encoder)])
        self.window_frames = round(WINDOW_S * self.frame_rate)

    @classmethod
    def untrained(cls, config: SmallCodecConfig, *, seed: int = 0, n_codebooks: int | None = None) -> SmallCodec:
        """A codec with random weights that are a function of `seed`; for tests and as the start of training."""
        return cls(build_net(config, seed), n_codebooks=n_codebooks)

    @classmethod
    def load(cls, folder: Path, *, n_codebooks: int | None = None, device: str = "cpu") -> SmallCodec:
        """Read config.json and model.safetensors; CODEC_UNREADABLE if they do not fit together."""
        try:
            config = SmallCodecConfig.model_validate(read_config(folder))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise HocketError(Code.CODEC_UNREADABLE, f"{folder / 'config.json'}: {where} {first['msg']}") from error
        net = build_net(config, 0)
        load_weights(net, folder / "model.safetensors")
        return cls(net, n_codebooks=n_codebooks, card=read_card(folder), device=device)

    def save(self, folder: Path) -> None:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.net.state_dict().items()}
        atomic_write(folder / "model.safetensors", save(tensors))
        text = json.dumps(self.config.model_dump(), indent=2) + "\n"
        atomic_write(folder / "config.json", text.encode())
        if self.card:
            atomic_write(folder / "CARD.md", self.card.encode())

    def codebook_vectors(self) -> np.ndarray:
        return self.net.codebooks[: self.n_codebooks].cpu().numpy().copy()

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "name": self.config.name}

    @torch.inference_mode()
    def _encode(self, wavs: list[np.ndarray]) -> list[np.ndarray]:
        return [self._encode_window(np.pad(wav, (0, -len(wav) % self.hop)), 0, 0) for wav in wavs]

    def _window_encoder(self) -> WindowEncoder:
        return self._encode_window

    @torch.inference_mode()
    def _encode_window(self, samples: np.ndarray, before: int, after: int) -> np.ndarray:
        latents = self.net.encode(torch.from_numpy(samples)[None].to(self.device))  # [1, T, D]
        codes, _ = self.net.quantise(latents[:, before : latents.shape[1] - after], self.n_codebooks)
        return codes[0].T.contiguous().cpu().numpy().astype(np.uint16)

    @torch.inference_mode()
    def _decode(self, codes: np.ndarray) -> np.ndarray:
        latents = self.net.dequantise(torch.from_numpy(codes.T.copy())[None].to(self.device))
        return self.net.decode(latents)[0].cpu().numpy().copy()


def read_card(folder: Path) -> str:
    """The text of `folder`/CARD.md, or nothing where there is none; CODEC_UNREADABLE if it is no text of a sensible size."""
    path = folder / "CARD.md"
    if not path.exists():
        return ""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_CARD_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise HocketError(Code.CODEC_UNREADABLE, f"{path} ({error})") from error
    if len(data) > MAX_CARD_BYTES:
        raise HocketError(Code.CODEC_UNREADABLE, f"{path} is larger than {MAX_CARD_BYTES} bytes")
    return text


def build_net(config: SmallCodecConfig, seed: int) -> SmallCodecNet:
    """Networks with random weights drawn from `seed`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCodecNet(config)


def load_weights(net: nn.Module, path: Path) -> None:
    """Fill `net` from a safetensors file whose names, types and shapes are checked before any tensor is read.

    Raises:
        HocketError: CODEC_UNREADABLE.
    """
    expected = net.state_dict()
    try:
        with safe_open(path, framework="pt") as weights:
            if set(weights.keys()) != set(expected):
                odd = sorted(set(weights.keys()) ^ set(expected))
                raise HocketError(Code.CODEC_UNREADABLE, f"{path}: unexpected or missing tensor {odd[0]}")
            for name, tensor in expected.items():
                view = weights.get_slice(name)
                if view.get_dtype() != "F32" or tuple(view.get_shape()) != tuple(tensor.shape):
                    found = f"{view.get_dtype()} {view.get_shape()}"
                    raise HocketError(Code.CODEC_UNREADABLE, f"{path}: {name} is {found}, not F32 {list(tensor.shape)}")
            for name, tensor in expected.items():
                loaded = weights.get_tensor(name)
                if not bool(loaded.isfinite().all()):
                    raise HocketError(Code.CODEC_UNREADABLE, f"{path}: {name} has values that are not finite")
                tensor.copy_(loaded)
    except (OSError, SafetensorError) as error:
        raise HocketError(Code.CODEC_UNREADABLE, f"{path} ({error})") from error
