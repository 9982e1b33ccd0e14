"""The codec interface: audio to discrete codes and back. numpy only; the codecs behind it bring torch when they are loaded.

A codec turns samples [N] into codes [K, T]: K codebooks a frame, T = ceil(N / hop) frames. The codes of a clip are a
function of that clip alone: `encode_batch` gives what `encode` gives for each of its clips, and `stream` what it gives for
a clip that comes in pieces.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Code, HocketError
from tokenizer.codec_stream import CodecStream, WindowEncoder, check_samples, encode_long
from tokenizer.receptive_field import Reach

SHIPPED = "hocket-16k"
SMALL_FORMAT = "hocket-codec/1"
TRANSFORMERS_TYPES = ("encodec", "mimi", "dac")
META_PREFIX = "meta-encodec:"
MAX_CONFIG_BYTES = 1 << 20
WINDOW_S = 10.0  # of audio that a stream encodes at once: bounds its memory, EnCodec's being 16 MB a second


class Codec(ABC):
    """Audio to codes and back.

    Attributes:
        kind: family of codec: "hocket", "encodec", "mimi", "dac" or "meta-encodec".
        sample_rate: in Hz, of what goes in and comes out (mono).
        hop: samples a frame.
        n_codebooks: codebooks in use, K; a codec with more than that leaves the later ones out.
        codebook_size: codes are in [0, codebook_size).
        decode_context: frames on each side of a frame that have a part in its sound; None where the sound depends on all frames.
        reach: what a window of frames needs on its sides to be encoded by itself; None for a codec that needs whole clips.
        window_frames: that are encoded at once, of a longer clip.
        device: where the networks are; arrays are always in the machine's own memory.
    """

    kind: str
    sample_rate: int
    hop: int
    n_codebooks: int
    codebook_size: int
    decode_context: int | None = None
    reach: Reach | None = None
    window_frames: int = 0
    device: str = "cpu"

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sample_rate / self.hop

    def n_frames(self, n_samples: int) -> int:
        """Frames of a clip: ceil(n_samples / hop)."""
        return -(-n_samples // self.hop)

    def encode(self, wav: np.ndarray) -> np.ndarray:
        """Codes uint16 [K, T] of float32 samples [N].

        Raises:
            HocketError: AUDIO_UNREADABLE if `wav` is not one channel of finite samples, or has none.
        """
        return self.encode_batch([wav])[0]

    def encode_batch(self, wavs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Codes uint16 [K, T_i] of each clip; the same as `encode` gives for it alone."""
        checked = [check_samples(wav) for wav in wavs]
        results = [self._encode_in_windows(wav) if self._is_long(wav) else None for wav in checked]
        short = iter(self._encode([wav for wav, codes in zip(checked, results, strict=True) if codes is None]))
        return [next(short) if codes is None else codes for codes in results]

    def stream(self) -> CodecStream:
        """A stream that encodes one clip as its samples come: its codes are those of `encode`, its memory is bounded.

        Raises:
            HocketError: OPTION_INVALID for a codec that needs whole clips.
        """
        if self.reach is None:
            remedy = "use the shipped codec, EnCodec at 24 kHz or DAC, or cut the recording into clips"
            raise HocketError(Code.OPTION_INVALID, f"the {self.kind} codec encodes whole clips only", remedy=remedy)
        return CodecStream(
            self._window_encoder(),
            lambda wav: self._encode([wav])[0],
            n_codebooks=self.n_codebooks,
            hop=self.hop,
            reach=self.reach,
            window_frames=self.window_frames,
        )

    def _is_long(self, wav: np.ndarray) -> bool:
        return self.reach is not None and self.n_frames(len(wav)) > max(self.window_frames, self.reach.start)

    def _encode_in_windows(self, wav: np.ndarray) -> np.ndarray:
        return encode_long(self.stream(), wav, self.window_frames * self.hop)

    def _window_encoder(self) -> WindowEncoder:
        """An encoder of one clip's windows, for a codec with a `reach`."""
        raise NotImplementedError(f"the {self.kind} codec has no windows")

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Samples float32 [T * hop] of codes [K', T], K' <= K (fewer books give coarser sound).

        Raises:
            HocketError: CODEC_UNREADABLE if the codes are not of this codec.
        """
        array = np.asarray(codes)
        if array.ndim != 2 or not 1 <= array.shape[0] <= self.n_codebooks or array.shape[1] == 0 or array.dtype.kind not in "iu":
            raise HocketError(Code.CODEC_UNREADABLE, f"codes of shape {array.shape} are not [1..{self.n_codebooks}, T] integers")
        if int(array.min()) < 0 or int(array.max()) >= self.codebook_size:
            raise HocketError(Code.CODEC_UNREADABLE, f"codes {array.min()}..{array.max()} are not in 0..{self.codebook_size - 1}")
        return self._decode(array.astype(np.int64))

    @abstractmethod
    def _encode(self, wavs: list[np.ndarray]) -> list[np.ndarray]:
        """`encode_batch` of checked clips."""

    @abstractmethod
    def _decode(self, codes: np.ndarray) -> np.ndarray:
        """`decode` of checked codes int64 [K', T]."""

    @abstractmethod
    def codebook_vectors(self) -> np.ndarray:
        """What each code adds to the latent that the decoder reads: float32 [K, codebook_size, D].

        The latent of a frame is the sum over books of its codes' vectors.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the codec so that `load_codec(folder)` gives it back."""

    def describe(self) -> dict[str, Any]:
        """The codec's settings as a manifest records them (without the identifier of its weights)."""
        return {
            "kind": self.kind,
            "sample_rate": self.sample_rate,
            "frame_rate": self.frame_rate,
            "hop": self.hop,
            "n_codebooks": self.n_codebooks,
            "codebook_size": self.codebook_size,
        }

    def latents(self, codes: np.ndarray) -> np.ndarray:
        """Dequantised latents float32 [T, D] of codes [K, T]: the sum of the books' vectors."""
        return latents_of(self.codebook_vectors(), codes)


def latents_of(vectors: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Dequantised latents float32 [T, D]: the sum of the vectors [K, codebook_size, D] that the codes [K, T] stand for."""
    return np.asarray(sum(vectors[book][codes[book]] for book in range(len(codes))), dtype=np.float32)


def check_n_codebooks(wanted: int | None, available: int) -> int:
    """The number of codebooks to use: `wanted`, or all; OPTION_INVALID outside 1..available."""
    if wanted is None:
        return available
    if not 1 <= wanted <= available:
        raise HocketError(Code.OPTION_INVALID, f"{wanted} codebooks asked for, the codec has 1 to {available}")
    return wanted


def shipped_folder() -> Path:
    """The folder of the codec that comes with Hocket."""
    return Path(__file__).parent / "data" / "codec" / SHIPPED


def read_config(folder: Path) -> dict[str, Any]:
    """`folder`/config.json as a dictionary; CODEC_UNREADABLE if there is none."""
    path = folder / "config.json"
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_CONFIG_BYTES + 1)
        config = json.loads(text) if len(text) <= MAX_CONFIG_BYTES else None
    except (OSError, ValueError) as error:
        raise HocketError(Code.CODEC_UNREADABLE, f"{path} ({error})") from error
    if not isinstance(config, dict):
        raise HocketError(Code.CODEC_UNREADABLE, f"{path} is not a codec's configuration")
    return config


def load_codec(spec: str | Path = SHIPPED, *, n_codebooks: int | None = None, device: str = "cpu") -> Codec:
    """Load a codec.

    Args:
        spec: "hocket-16k" (shipped), a folder that `save`, `hocket codec train` or transformers wrote, the hub id of an
            EnCodec, Mimi or DAC, or "meta-encodec:" before the folder or hub id of an EnCodec (the extra `encodec` runs it).
        n_codebooks: use only the first so many books.
        device: to encode and decode on: "cpu", "cuda", "cuda:1", "mps".

    Raises:
        HocketError: CODEC_UNREADABLE, OPTION_INVALID (n_codebooks, device), EXTRA_MISSING.
    """
    from tokenizer.devices import check_device

    device = check_device(device)
    if str(spec).startswith(META_PREFIX):
        from tokenizer.meta_encodec import MetaEncodec

        return MetaEncodec.load(str(spec).removeprefix(META_PREFIX), n_codebooks=n_codebooks, device=device)
    folder = shipped_folder() if str(spec) == SHIPPED else Path(spec)
    if folder.is_dir():
        config = read_config(folder)
        if config.get("format") == SMALL_FORMAT:
            from tokenizer.small_codec import SmallCodec

            return SmallCodec.load(folder, n_codebooks=n_codebooks, device=device)
        if config.get("model_type") not in TRANSFORMERS_TYPES:
            known = f"{SMALL_FORMAT}, {', '.join(TRANSFORMERS_TYPES)}"
            raise HocketError(Code.CODEC_UNREADABLE, f"{folder / 'config.json'} is of none of {known}")
    elif isinstance(spec, Path) or spec.count("/") != 1 or spec.startswith((".", "/", "~")):
        raise HocketError(Code.CODEC_UNREADABLE, f"{spec} is neither {SHIPPED}, a folder, nor a hub id (owner/name)")
    from tokenizer.transformers_codec import TransformersCodec

    return TransformersCodec.load(folder if folder.is_dir() else str(spec), n_codebooks=n_codebooks, device=device)
