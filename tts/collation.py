"""How utterances become the arrays of a microbatch: the cut of an inner step, and the padding. Pure, without torch.

The coordinator does the same with the rows of a lease, to see whether a replica of stage 0 has read what it was to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tts.config import ModelConfig

TEXT_NAMES = ("phonemes", "word_starts", "n_phonemes", "durations")
"""Arrays that only stage 0 reads."""
SIDE_TYPES = {"codes": np.uint16, "n_frames": np.int32, "speaker": np.float32, "language": np.int32}
"""Arrays that travel along to every later stage, and how they travel."""


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


Told = TypeVar("Told", bound=UtteranceLike)


def cut(utterances: Sequence[Told], count: int) -> list[list[Told]]:
    """Sort utterances by length and cut them into at most `count` parts of near-equal frames.

    The order among equally long ones is that given, so the cut is a function of the list. Each part gets at least one.
    """
    ordered = sorted(utterances, key=lambda utterance: int(utterance.n_frames))
    count = max(1, min(count, len(ordered)))
    remaining = sum(int(utterance.n_frames) for utterance in ordered)
    parts: list[list[Told]] = []
    start = 0
    for left in range(count, 0, -1):
        share, taken, stop = remaining / left, 0, start
        while stop < len(ordered) - (left - 1):
            length = int(ordered[stop].n_frames)
            # Stop where the share is met more nearly without the next utterance than with it.
            if stop > start and left > 1 and taken + length / 2 > share:
                break
            taken, stop = taken + length, stop + 1
        parts.append(ordered[start:stop])
        remaining, start = remaining - taken, stop
    return parts


def collated(utterances: Sequence[UtteranceLike], config: ModelConfig, languages: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of one microbatch, in the order given, padded.

    Args:
        languages: tags by language id; an utterance's tag must be among them. Empty: every utterance has language 0.

    Returns: int64 `phonemes`, `word_starts` and `durations` [B, P], `n_phonemes`, `n_frames` and `language` [B], `codes`
        [B, K, T], and float32 `speaker` [B, E].

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
    return {
        "phonemes": phonemes, "word_starts": word_starts, "durations": durations, "codes": codes, "speaker": speaker,
        "n_phonemes": np.array([len(utterance.phonemes) for utterance in utterances], np.int64),
        "n_frames": np.array([int(utterance.n_frames) for utterance in utterances], np.int64), "language": language,
    }  # fmt: skip


def travelling(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a microbatch as they travel and as they are committed to: codes uint16, speaker float32, the rest int32."""
    return {name: array.astype(SIDE_TYPES.get(name, np.int32)) for name, array in arrays.items()}


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
