"""A microbatch as tensors: what stage 0 reads, and the part of it that travels along to every later stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import Code, HocketError
from tts.collation import SIDE_TYPES, TEXT_NAMES, UtteranceLike, collated, travelling
from tts.config import ModelConfig
from tts.delay import n_steps


@dataclass
class Side:
    """What every stage gets beside the hidden states, passed on unchanged.

    Args:
        codes: int64 [B, K, T]. n_frames: int64 [B], 1 .. T. speaker: float32 [B, E]. language: int64 [B].
    """

    codes: Tensor
    n_frames: Tensor
    speaker: Tensor
    language: Tensor

    @property
    def frames(self) -> int:
        """Frames of the microbatch, padding not counted."""
        return int(self.n_frames.sum())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As they travel: codes uint16, the others int32 and float32."""
        return travelling({name: getattr(self, name).cpu().numpy() for name in SIDE_TYPES})

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], config: ModelConfig) -> Side:
        """Read what a peer sent, each value checked against the model before it is used.

        Raises:
            HocketError: INPUT_INVALID with the array that does not fit.
        """
        for name in ("codes", "n_frames", "speaker", "language"):
            if name not in arrays:
                raise HocketError(Code.INPUT_INVALID, f"{name} is missing")
        codes, lengths, speaker, language = (arrays[name] for name in ("codes", "n_frames", "speaker", "language"))
        if codes.ndim != 3 or codes.dtype.kind not in "ui" or codes.shape[1] != config.n_codebooks or 0 in codes.shape:
            raise HocketError(Code.INPUT_INVALID, f"codes is {codes.dtype} {codes.shape}, not [B, {config.n_codebooks}, T]")
        if codes.shape[2] > config.max_frames:
            raise HocketError(Code.INPUT_INVALID, f"{codes.shape[2]} frames, at most {config.max_frames}")
        batch, frames = codes.shape[0], codes.shape[2]
        wanted = {
            "n_frames": (lengths, (batch,), "ui"),
            "speaker": (speaker, (batch, config.speaker_dim), "f"),
            "language": (language, (batch,), "ui"),
        }
        for name, (array, shape, kinds) in wanted.items():
            if array.shape != shape or array.dtype.kind not in kinds:
                raise HocketError(Code.INPUT_INVALID, f"{name} is {array.dtype} {array.shape}, not {shape}")
        if int(lengths.min()) < 1 or int(lengths.max()) > frames:
            raise HocketError(Code.INPUT_INVALID, f"n_frames must lie in 1 .. {frames}")
        if int(codes.min()) < 0 or int(codes.max()) >= config.codebook_size:
            raise HocketError(Code.INPUT_INVALID, f"codes must lie below {config.codebook_size}")
        if int(language.min()) < 0 or int(language.max()) >= config.n_languages:
            raise HocketError(Code.INPUT_INVALID, f"language must lie below {config.n_languages}")
        if not np.isfinite(speaker).all():
            raise HocketError(Code.NOT_FINITE, "speaker")
        return cls(
            codes=torch.from_numpy(codes.astype(np.int64)),
            n_frames=torch.from_numpy(lengths.astype(np.int64)),
            speaker=own_tensor(speaker),
            language=torch.from_numpy(language.astype(np.int64)),
        )


@dataclass
class TextBatch:
    """A microbatch as stage 0 reads it.

    Args:
        phonemes: int64 [B, P], 0 where an utterance has ended. word_starts: int64 [B, P]. n_phonemes: int64 [B].
        durations: int64 [B, P] frames; each row sums to n_frames.
        codes, n_frames, speaker, language: as in `Side`.
    """

    phonemes: Tensor
    word_starts: Tensor
    n_phonemes: Tensor
    durations: Tensor
    codes: Tensor
    n_frames: Tensor
    speaker: Tensor
    language: Tensor

    @property
    def frames(self) -> int:
        """Frames of the microbatch, padding not counted."""
        return int(self.n_frames.sum())

    def side(self) -> Side:
        return Side(codes=self.codes, n_frames=self.n_frames, speaker=self.speaker, language=self.language)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For a file: the names and dtypes of `Side.arrays`, and int32 for the rest."""
        return travelling({name: getattr(self, name).cpu().numpy() for name in TEXT_NAMES}) | self.side().arrays()

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], config: ModelConfig) -> TextBatch:
        """Read what a peer says that it has computed with, each value checked against the model before it is used.

        Raises:
            HocketError: INPUT_INVALID with the array that does not fit.
        """
        side = Side.from_arrays(arrays, config)
        rows = side.codes.shape[0]
        width = np.shape(arrays.get("phonemes", ()))[-1:]
        for name in TEXT_NAMES:
            array, shape = arrays.get(name), (rows,) if name == "n_phonemes" else (rows, *width)
            if array is None or array.dtype.kind not in "ui" or array.shape != shape or not array.size:
                raise HocketError(Code.INPUT_INVALID, f"{name} is missing, or no table of integers of shape {shape}")
        phonemes, word_starts, n_phonemes, durations = (arrays[name].astype(np.int64) for name in TEXT_NAMES)
        if int(n_phonemes.min()) < 1 or int(n_phonemes.max()) > phonemes.shape[1]:
            raise HocketError(Code.INPUT_INVALID, f"n_phonemes must lie in 1 .. {phonemes.shape[1]}")
        behind = np.arange(phonemes.shape[1]) >= n_phonemes[:, None]  # [B, P]
        if int(phonemes.min()) < 0 or int(phonemes.max()) >= config.n_phonemes or phonemes[behind].any():
            raise HocketError(Code.INPUT_INVALID, f"phonemes must lie below {config.n_phonemes}, with 0 behind the last")
        if int(word_starts.min()) < 0 or int(word_starts.max()) > 1:
            raise HocketError(Code.INPUT_INVALID, "a word start that is neither 0 nor 1")
        if int(durations.min()) < 0 or durations[behind].any() or (durations.sum(1) != side.n_frames.numpy()).any():
            raise HocketError(Code.INPUT_INVALID, "durations must sum to n_frames")
        if int(side.n_frames.max()) != side.codes.shape[2]:
            raise HocketError(Code.INPUT_INVALID, f"{side.codes.shape[2]} frames of codes, not {int(side.n_frames.max())}")
        return cls(
            phonemes=torch.from_numpy(phonemes),
            word_starts=torch.from_numpy(word_starts),
            n_phonemes=torch.from_numpy(n_phonemes),
            durations=torch.from_numpy(durations),
            codes=side.codes,
            n_frames=side.n_frames,
            speaker=side.speaker,
            language=side.language,
        )


def hidden_shape(config: ModelConfig, side: Side) -> tuple[int, int, int]:
    """Shape [B, S, D] of the hidden states that belong to `side`."""
    return side.codes.shape[0], n_steps(side.codes.shape[2], config.n_codebooks), config.d_model


def own_tensor(array: NDArray[Any]) -> Tensor:
    """A float32 tensor in torch's own, aligned memory.

    Matrix products may take another path, with other rounding, on memory that is aligned otherwise; a view of a received
    buffer would make two computations of the same numbers differ in their last bits.
    """
    tensor = torch.empty(array.shape, dtype=torch.float32)
    tensor.numpy()[...] = array
    return tensor


def collate(utterances: Sequence[UtteranceLike], config: ModelConfig, languages: Sequence[str] = ()) -> TextBatch:
    """Pad utterances into one microbatch, in the order given.

    Args:
        languages: tags by language id; an utterance's tag must be among them. Empty: every utterance has language 0.

    Raises:
        HocketError: SHARD_DAMAGED or LANGUAGE_REFUSED, naming the utterance.
    """
    arrays = collated(utterances, config, languages)
    speaker = own_tensor(arrays.pop("speaker"))
    return TextBatch(speaker=speaker, **{name: torch.from_numpy(array) for name, array in arrays.items()})
