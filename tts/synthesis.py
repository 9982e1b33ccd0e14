"""Speaking: from phonemes to codes, step by step, with cached keys and values and classifier-free guidance.

The length is known beforehand, from the durations: EOS cannot be drawn before the last frame and is taken as read after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import Code, HocketError
from tts.config import ModelConfig
from tts.decoder import LayerCache, rotary
from tts.dropout import PassContext
from tts.durations import stretch
from tts.sampling import choose, unit_draw
from tts.stages import Stage

_CALM = PassContext(train=False)


def predict_durations(
    front: Stage, phonemes: NDArray[Any], word_starts: NDArray[Any], *, speaker: NDArray[Any] | None = None, language: int = 0
) -> NDArray[np.float64]:
    """The duration predictor's frames per phoneme, float64 [P], each at least 1.

    Args:
        front: stage 0. Others as for `speak`.
    """
    with torch.no_grad():
        _, predicted = _encode(front, phonemes, word_starts, speaker, language)
    return np.maximum(np.expm1(predicted[0].double().cpu().numpy()), 1.0)


def _encode(
    front: Stage, phonemes: NDArray[Any], word_starts: NDArray[Any], speaker: NDArray[Any] | None, language: int
) -> tuple[Tensor, Tensor]:
    config = front.config
    device = front.text.norm.weight.device
    _check_text(config, phonemes, word_starts, speaker, language)
    vector = np.zeros(config.speaker_dim, np.float32) if speaker is None else np.asarray(speaker, np.float32)
    return front.text.encode(
        torch.from_numpy(np.asarray(phonemes, np.int64))[None].to(device),
        torch.from_numpy(np.asarray(word_starts, np.int64))[None].to(device),
        torch.tensor([len(phonemes)], device=device),
        torch.from_numpy(vector)[None].to(device),
        torch.tensor([language], device=device),
        _CALM,
    )


def _check_text(
    config: ModelConfig, phonemes: NDArray[Any], word_starts: NDArray[Any], speaker: NDArray[Any] | None, language: int
) -> None:
    if len(phonemes) == 0:
        raise HocketError(Code.NO_PHONEMES, "nothing to speak")
    if len(word_starts) != len(phonemes) or int(np.max(phonemes)) >= config.n_phonemes or int(np.min(phonemes)) < 0:
        raise HocketError(Code.INPUT_INVALID, "phonemes and word starts do not fit the model's inventory")
    if speaker is not None and np.shape(speaker) != (config.speaker_dim,):
        raise HocketError(Code.INPUT_INVALID, f"speaker embedding {np.shape(speaker)}, not ({config.speaker_dim},)")
    if not 0 <= language < config.n_languages:
        raise HocketError(Code.INPUT_INVALID, f"language {language}, the model has {config.n_languages}")


class Decoding:
    """The stages' blocks with room for their keys and values.

    Args:
        stages: all stages of a model in order. batch: rows decoded together. steps: how many will be taken at most.
    """

    def __init__(self, stages: Sequence[Stage], batch: int, steps: int) -> None:
        self._stages = stages
        self._blocks = [block for stage in stages for block in stage.decoder_blocks()]
        self._caches: list[LayerCache] = [block.empty_cache(batch, steps) for block in self._blocks]
        self._rotation = rotary(0, steps, stages[0].config.head_dim, stages[0].codes.weight.device)
        self._position = 0

    def step(self, condition: Tensor, codes: Tensor) -> Tensor:
        """One step further.

        Args:
            condition: [B, D] of this step. codes: int64 [B, K], the step's input codes.

        Returns: logits float32 [B, K, card + 1].
        """
        x = condition[:, None] + self._stages[0].codes.embed(codes[:, :, None])
        rotation = self._rotation[self._position : self._position + 1]
        for block, cache in zip(self._blocks, self._caches, strict=True):
            x = block.step(x, rotation, cache, self._position)
        self._position += 1
        return self._stages[-1].heads.logits(x)[:, 0]


@dataclass(frozen=True)
class Line:
    """One utterance to speak.

    Args:
        phonemes: ids [P]. word_starts: 0 or 1 [P].
        number: names its draws: the same line under another number is spoken with other draws.
        speaker: float [E] or None. language: id.
        durations: frames per phoneme [P] in place of the predicted ones.
    """

    phonemes: NDArray[Any]
    word_starts: NDArray[Any]
    number: int = 0
    speaker: NDArray[Any] | None = None
    language: int = 0
    durations: NDArray[Any] | None = None


@dataclass(frozen=True)
class Sampling:
    """How codes are drawn and how fast is spoken.

    Args:
        seed: of the draws. temperature, top_k: as in `tts.sampling.choose`.
        guidance: weight of classifier-free guidance: unconditional + guidance * (conditional - unconditional), both computed in
            one batch; 1 switches it off. (Ho and Salimans, "Classifier-free diffusion guidance", 2022.)
        rate: factor on the durations: 1.4 is slower, 0.7 faster. The number of frames is exactly round(rate * their sum).

    Raises:
        HocketError: OPTION_INVALID.
    """

    seed: int = 0
    temperature: float = 0.6
    top_k: int = 10
    guidance: float = 2.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.temperature, self.guidance, self.rate)
        if not all(math.isfinite(number) for number in numbers) or self.rate <= 0 or min(self.guidance, self.temperature) < 0:
            raise HocketError(Code.OPTION_INVALID, "rate must be above 0; guidance and temperature must not be negative")
        if self.top_k < 0:
            raise HocketError(Code.OPTION_INVALID, f"top_k is {self.top_k}; 0 means all codes")


@dataclass(frozen=True)
class _Planned:
    """A line whose length is settled: condition [1 or 2, S, D] of its steps (the second row without text), frames T."""

    condition: Tensor
    frames: int


def _plan(front: Stage, line: Line, how: Sampling) -> _Planned:
    """Each line by itself, so that neither its length nor its condition depends on what it is batched with."""
    config = front.config
    states, predicted = _encode(front, line.phonemes, line.word_starts, line.speaker, line.language)
    natural = np.maximum(np.expm1(predicted[0].double().cpu().numpy()), 1.0) if line.durations is None else line.durations
    lengths = stretch(natural, how.rate)
    frames = int(lengths.sum())
    if frames > config.max_frames:
        raise HocketError(
            Code.INPUT_INVALID, f"{frames} frames, at most {config.max_frames}", remedy="speak shorter sentences"
        )
    rows, device = (1 if how.guidance == 1.0 else 2), states.device
    condition = front.text.condition(
        states.expand(rows, -1, -1),
        torch.from_numpy(lengths)[None].to(device).expand(rows, -1),
        torch.tensor([frames] * rows, device=device),
        torch.tensor([False, True], device=device) if rows == 2 else None,
        _CALM,
    )
    return _Planned(condition, frames)


def speak_in_steps(stages: Sequence[Stage], lines: Sequence[Line], how: Sampling) -> Iterator[list[NDArray[np.uint16]]]:
    """Speak several lines together, a frame at a time.

    Args:
        stages: all stages of a model, in order; one that holds everything will do.

    Yields: for each line the codes uint16 [K, 1] of its next frame, or [K, 0] where none became complete in this step.

    Raises:
        HocketError: NO_PHONEMES, INPUT_INVALID or STAGES_INVALID.
    """
    front, config = stages[0], stages[0].config
    if not front.spec.is_first or not stages[-1].spec.is_last or len(stages) != front.spec.n_stages:
        raise HocketError(Code.STAGES_INVALID, f"{len(stages)} of {front.spec.n_stages}", remedy="give all stages in order")
    if not lines:
        return
    books = config.n_codebooks
    with torch.inference_mode():
        planned = [_plan(front, line, how) for line in lines]
        steps = max(plan.frames for plan in planned) + books - 1
        sides = planned[0].condition.shape[0]  # 2 with guidance
        device = planned[0].condition.device
        condition = torch.zeros(len(lines), sides, steps, planned[0].condition.shape[2], device=device)
        for row, plan in enumerate(planned):
            taken = min(steps, plan.condition.shape[1])
            condition[row, :, :taken] = plan.condition[:, :taken]
        decoding = Decoding(stages, len(lines) * sides, steps)
        frames = np.array([plan.frames for plan in planned])[:, None]  # [N, 1]
        codes = np.full((len(lines), books, steps), config.eos, np.int64)
        current = torch.full((len(lines), books), config.bos, dtype=torch.int64, device=device)
        offsets = np.arange(books)[None, :]  # [1, K]
        for step in range(steps):
            inputs = current[:, None].expand(-1, sides, -1).reshape(-1, books)
            logits = decoding.step(condition[:, :, step].flatten(0, 1), inputs)[..., : config.codebook_size]
            logits = logits.unflatten(0, (len(lines), sides))  # [N, 1 or 2, K, card]
            if sides == 2:
                conditional, unconditional = logits.log_softmax(-1).unbind(1)
                mixed = unconditional + how.guidance * (conditional - unconditional)
            else:
                mixed = logits[:, 0]
            draws = [unit_draw(how.seed, line.number, step - k, k) for line in lines for k in range(books)]
            drawn = choose(mixed.flatten(0, 1), draws, how.temperature, how.top_k).view(-1, books).cpu().numpy()  # [N, K]
            place = step - offsets  # frame that each book speaks now, [1, K]
            inside = (place >= 0) & (place < frames)  # [N, K]
            spoken = np.where(inside, drawn, np.where(place < 0, config.bos, config.eos))
            for k in range(min(books, step + 1)):
                codes[:, k, step - k] = spoken[:, k]
            current = torch.from_numpy(spoken).to(device)
            done = step - books + 1  # this frame has all its books now
            yield [
                codes[row, :, max(done, 0) : done + 1 if 0 <= done < plan.frames else max(done, 0)].astype(np.uint16)
                for row, plan in enumerate(planned)
            ]


def speak_many(stages: Sequence[Stage], lines: Sequence[Line], how: Sampling) -> list[NDArray[np.uint16]]:
    """Codes uint16 [K, T] of each line; see `speak_in_steps`."""
    parts: list[list[NDArray[np.uint16]]] = [[] for _ in lines]
    for step in speak_in_steps(stages, lines, how):
        for kept, frame in zip(parts, step, strict=True):
            kept.append(frame)
    return [np.concatenate(kept, axis=1) for kept in parts]


def speak(
    stages: Sequence[Stage],
    phonemes: NDArray[Any],
    word_starts: NDArray[Any],
    *,
    seed: int = 0,
    temperature: float = 0.6,
    top_k: int = 10,
    guidance: float = 2.0,
    rate: float = 1.0,
    speaker: NDArray[Any] | None = None,
    language: int = 0,
    durations: NDArray[Any] | None = None,
) -> NDArray[np.uint16]:
    """Codes uint16 [K, T] of one utterance; the arguments are those of `Line` and `Sampling`.

    Raises:
        HocketError: NO_PHONEMES, INPUT_INVALID, OPTION_INVALID or STAGES_INVALID.
    """
    how = Sampling(seed=seed, temperature=temperature, top_k=top_k, guidance=guidance, rate=rate)
    line = Line(phonemes, word_starts, speaker=speaker, language=language, durations=durations)
    return speak_many(stages, [line], how)[0]
