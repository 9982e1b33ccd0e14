"""A microbatch as tensors: what stage 0 reads, and the part of it that travels along to every later stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import Code, HocketError
from tts.config import ModelConfig
from tts.delay import n_steps

TEXT_NAMES = ("phonemes", "word_starts", "n_phonemes", "durations")
"""Arrays that only stage 0 reads."""


class UtteranceLike(Protocol):
    """What `collate` reads of an utterance; rows of a shard have it all."""

    @property
    def phonemes(self) -> NDArray[Any]: ...  # [P] ids, 0 is padding
    @property
    def durations(self) -> NDArray[Any]: ...  # [P] frames, summing to n_frames
    @property
    def word_starts(self) -> NDArray[Any]: ...  # [P] 0 or 1
    @property
    def codes(self) -> NDArray[Any]: ...  # [K, T]
    @property
    def n_frames(self) -> int: ...
    @property
    def language(self) -> str: ...
    @property
    def speaker_embedding(self) -> Any: ...  # [E] or None


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
        return {
            "codes": self.codes.cpu().numpy().astype(np.uint16),
            "n_frames": self.n_frames.cpu().numpy().astype(np.int32),
            "speaker": self.speaker.cpu().numpy().astype(np.float32),
            "language": self.language.cpu().numpy().astype(np.int32),
        }

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
        own = {name: getattr(self, name).cpu().numpy().astype(np.int32) for name in TEXT_NAMES}
        return own | self.side().arrays()

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


def _check(utterance: UtteranceLike, config: ModelConfig, number: int) -> None:
    name = str(getattr(utterance, "id", number))
    codes, durations, phonemes = utterance.codes, utterance.durations, utterance.phonemes
    if codes.ndim != 2 or codes.shape[0] < config.n_codebooks or codes.shape[1] != utterance.n_frames:
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: codes {codes.shape} for {utterance.n_frames} frames")
    if not 1 <= utterance.n_frames <= config.max_frames:
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: {utterance.n_frames} frames, 1 to {config.max_frames} allowed")
    if len(phonemes) == 0 or len(durations) != len(phonemes) or len(utterance.word_starts) != len(phonemes):
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: phonemes, durations and word starts differ in length")
    if int(np.sum(durations, dtype=np.int64)) != utterance.n_frames:
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: durations do not sum to {utterance.n_frames} frames")
    if int(np.max(phonemes)) >= config.n_phonemes:
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: phoneme id beyond {config.n_phonemes - 1}")
    if not 0 <= int(np.min(utterance.word_starts)) <= int(np.max(utterance.word_starts)) <= 1:
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: a word start that is neither 0 nor 1")
    if int(np.max(codes)) >= config.codebook_size:
        raise HocketError(Code.SHARD_DAMAGED, f"utterance {name}: code beyond {config.codebook_size - 1}")


def collate(utterances: Sequence[UtteranceLike], config: ModelConfig, languages: Sequence[str] = ()) -> TextBatch:
    """Pad utterances into one microbatch, in the order given.

    Args:
        languages: tags by language id; an utterance's tag must be among them. Empty: every utterance has language 0.

    Raises:
        HocketError: SHARD_DAMAGED or LANGUAGE_REFUSED, naming the utterance.
    """
    if not utterances:
        raise HocketError(Code.SHARD_DAMAGED, "a microbatch without utterances")
    for number, utterance in enumerate(utterances):
        _check(utterance, config, number)
    batch, books = len(utterances), config.n_codebooks
    width = max(len(utterance.phonemes) for utterance in utterances)
    frames = max(int(utterance.n_frames) for utterance in utterances)
    phonemes, word_starts, durations = (np.zeros((batch, width), np.int64) for _ in range(3))
    codes = np.zeros((batch, books, frames), np.int64)
    speaker = np.zeros((batch, config.speaker_dim), np.float32)
    language = np.zeros(batch, np.int64)
    for row, utterance in enumerate(utterances):
        n = len(utterance.phonemes)
        phonemes[row, :n], durations[row, :n] = utterance.phonemes, utterance.durations
        word_starts[row, :n] = utterance.word_starts
        codes[row, :, : utterance.n_frames] = utterance.codes[:books]
        if utterance.speaker_embedding is not None:
            embedding = np.asarray(utterance.speaker_embedding, np.float32)
            if embedding.shape != (config.speaker_dim,):
                raise HocketError(Code.SHARD_DAMAGED, f"speaker embedding {embedding.shape}, not ({config.speaker_dim},)")
            if not np.isfinite(embedding).all():
                raise HocketError(Code.SHARD_DAMAGED, "a speaker embedding that is not finite")
            speaker[row] = embedding
        if languages:
            if utterance.language not in languages:
                raise HocketError(Code.LANGUAGE_REFUSED, repr(utterance.language), remedy=f"known here: {', '.join(languages)}")
            language[row] = list(languages).index(utterance.language)
    return TextBatch(
        phonemes=torch.from_numpy(phonemes),
        word_starts=torch.from_numpy(word_starts),
        n_phonemes=torch.tensor([len(utterance.phonemes) for utterance in utterances]),
        durations=torch.from_numpy(durations),
        codes=torch.from_numpy(codes),
        n_frames=torch.tensor([int(utterance.n_frames) for utterance in utterances]),
        speaker=own_tensor(speaker),
        language=torch.from_numpy(language),
    )
