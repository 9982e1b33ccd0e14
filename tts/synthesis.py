"""Speaking: from phonemes to codes, step by step, with cached keys and values and classifier-free guidance.

The length is known beforehand, from the durations: EOS cannot be drawn before the last frame and is taken as read after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
from tts.stages import Stage

_CALM = PassContext(train=False)


def unit_draw(seed: int, frame: int, codebook: int) -> float:
    """A number in [0, 1) for one code: a function of where it is, not of what was drawn before."""
    digest = hashlib.blake2b(f"speak/{seed}/{frame}/{codebook}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def choose(logits: Tensor, draws: Sequence[float], temperature: float, top_k: int) -> Tensor:
    """One code a row.

    Args:
        logits: float [K, card]. draws: K numbers in [0, 1).
        temperature: 0 takes the likeliest code. top_k: how many of the likeliest may be drawn; 0 for all.

    Returns: int64 [K].
    """
    if temperature <= 0:
        return logits.argmax(-1)
    kept = min(top_k, logits.shape[-1]) if top_k > 0 else logits.shape[-1]
    values, codes = logits.double().topk(kept, dim=-1)
    cumulated = (values / temperature).softmax(-1).cumsum(-1)
    drawn = torch.tensor(draws, dtype=cumulated.dtype, device=cumulated.device)[:, None]
    place = (cumulated <= drawn * cumulated[:, -1:]).sum(-1, keepdim=True).clamp_max(kept - 1)
    return codes.gather(-1, place).squeeze(-1)


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
    """Codes of a spoken utterance.

    Args:
        stages: all stages of a model, in order; one that holds everything will do.
        phonemes: ids [P]. word_starts: 0 or 1 [P].
        seed: of the draws. temperature, top_k: as in `choose`.
        guidance: weight of classifier-free guidance: unconditional + guidance * (conditional - unconditional), both computed in
            one batch of two; 1 switches it off.
        rate: factor on the durations: 1.4 is slower, 0.7 faster. The number of frames is exactly round(rate * their sum).
        speaker: float [E] or None. language: id.
        durations: frames per phoneme [P] in place of the predicted ones.

    Returns: uint16 [K, T].

    Raises:
        HocketError: NO_PHONEMES, INPUT_INVALID or OPTION_INVALID.
    """
    front, config = stages[0], stages[0].config
    if not rate > 0 or not guidance >= 0 or not temperature >= 0:
        raise HocketError(Code.OPTION_INVALID, "rate must be above 0; guidance and temperature must not be negative")
    if not front.spec.is_first or not stages[-1].spec.is_last or len(stages) != front.spec.n_stages:
        raise HocketError(Code.STAGES_INVALID, f"{len(stages)} of {front.spec.n_stages}", remedy="give all stages in order")
    with torch.inference_mode():
        states, predicted = _encode(front, phonemes, word_starts, speaker, language)
        natural = np.maximum(np.expm1(predicted[0].double().cpu().numpy()), 1.0) if durations is None else durations
        lengths = stretch(natural, rate)
        frames = int(lengths.sum())
        if frames > config.max_frames:
            what = f"{frames} frames, at most {config.max_frames}"
            raise HocketError(Code.INPUT_INVALID, what, remedy="speak shorter sentences")
        guided = guidance != 1.0
        rows, device = (2 if guided else 1), states.device
        dropped = torch.tensor([False, True], device=device) if guided else None
        condition = front.text.condition(
            states.expand(rows, -1, -1),
            torch.from_numpy(lengths)[None].to(device).expand(rows, -1),
            torch.tensor([frames] * rows, device=device),
            dropped,
            _CALM,
        )
        books, steps = config.n_codebooks, frames + config.n_codebooks - 1
        decoding = Decoding(stages, rows, steps)
        codes = torch.full((books, frames), config.eos, dtype=torch.int64, device=device)
        current = torch.full((books,), config.bos, dtype=torch.int64, device=device)
        for step in range(steps):
            logits = decoding.step(condition[:, step], current.expand(rows, -1))[..., : config.codebook_size]
            if guided:
                conditional, unconditional = logits.log_softmax(-1).unbind(0)
                mixed = unconditional + guidance * (conditional - unconditional)
            else:
                mixed = logits[0]
            drawn = choose(mixed, [unit_draw(seed, step - k, k) for k in range(books)], temperature, top_k)
            for k in range(books):
                if 0 <= step - k < frames:
                    codes[k, step - k] = drawn[k]
                    current[k] = drawn[k]
                else:
                    current[k] = config.bos if step < k else config.eos
    return codes.cpu().numpy().astype(np.uint16)
