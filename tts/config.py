"""The shape of a model. Imports no torch: the coordinator reads this file too.

Sizes follow the design's table: `test` and `demo` run on CPUs, `base` (0.3 B), `large` (1 B) and `xl` (3 B) are for GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.errors import Code, HocketError

NOMINAL_FRAMES = 256
"""Frames of a typical utterance, used only to weigh attention against the rest when layers are shared out."""
NOMINAL_FRAMES_PER_PHONEME = 4.3


class ModelConfig(BaseModel):
    """Everything that fixes the names, shapes and arithmetic of a model's parameters.

    Args:
        preset: where the sizes came from; for people.
        d_model: width of the decoder, D.
        n_layers: decoder blocks over all stages.
        n_heads: attention heads of a block; d_model / n_heads must be even (rotary embedding).
        ffn_mult: width of a block's gated feed-forward layer as a multiple of d_model, counted as for a plain layer (the gated
            one gets two thirds, so the parameters are the same).
        n_codebooks: K. codebook_size: codes of one codebook, `card`.
        n_phonemes: size of the phoneme inventory, padding (id 0) included. n_languages: how many language embeddings there are.
        text_dim: width of the phoneme encoder; text_layers: its ConvNeXt layers.
        frame_layers: non-causal ConvNeXt layers over the expanded frames. conv_mult: their inner width / width.
        conv_kernel: taps of every ConvNeXt layer, odd.
        duration_dim: width of the duration predictor.
        speaker_dim: E, size of the speaker embedding that utterances carry (zeros where they have none).
        dropout: of every residual branch, in steps of 1/256.
        cond_dropout: share of utterances that see a learnt vector instead of their text (classifier-free guidance).
        code_corruption: share of input codes that are replaced by random ones in training (against exposure bias).
        tempo_share: share of the utterances that are told faster or slower in training (see `tts.tempo`), so that speech stays
            clear at rates that the corpus does not have. tempo_range: the slowest rate of those; the fastest is its inverse.
        codebook_weights: weight of each codebook in the objective; normalised to sum to 1. None: all equal.
        duration_weight: weight of the duration loss in the objective.
        max_frames: longest utterance accepted.
        cuts: where each stage's decoder blocks end, for a cut into that many stages that was fitted to unequal cards; None:
            stages of about equal cost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str = "custom"
    d_model: int = Field(ge=8, le=16384)
    n_layers: int = Field(ge=1, le=512)
    n_heads: int = Field(ge=1, le=256)
    ffn_mult: float = Field(default=4.0, gt=0, le=16)
    n_codebooks: int = Field(ge=1, le=64)
    codebook_size: int = Field(ge=2, le=60000)
    n_phonemes: int = Field(ge=2, le=60000)
    text_dim: int = Field(ge=8, le=8192)
    text_layers: int = Field(ge=1, le=64)
    frame_layers: int = Field(ge=0, le=64)
    conv_mult: float = Field(default=2.0, gt=0, le=16)
    conv_kernel: int = Field(default=7, ge=1, le=63)
    duration_dim: int = Field(ge=8, le=4096)
    speaker_dim: int = Field(default=16, ge=1, le=4096)
    n_languages: int = Field(default=1, ge=1, le=4096)
    dropout: float = Field(default=0.1, ge=0, lt=0.9)
    cond_dropout: float = Field(default=0.1, ge=0, lt=0.9)
    code_corruption: float = Field(default=0.2, ge=0, lt=0.9)
    tempo_share: float = Field(default=0.0, ge=0, le=1)
    tempo_range: float = Field(default=1.5, ge=1, le=4)
    codebook_weights: tuple[float, ...] | None = None
    duration_weight: float = Field(default=1.0, ge=0)
    max_frames: int = Field(default=4096, ge=1, le=1_000_000)
    cuts: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if self.d_model % self.n_heads or (self.d_model // self.n_heads) % 2:
            raise ValueError("d_model must be an even multiple of n_heads")
        if self.conv_kernel % 2 == 0:
            raise ValueError("conv_kernel must be odd")
        if self.codebook_weights is not None:
            if len(self.codebook_weights) != self.n_codebooks:
                raise ValueError("codebook_weights must have one weight a codebook")
            if min(self.codebook_weights) < 0 or sum(self.codebook_weights) <= 0:
                raise ValueError("codebook_weights must not be negative, nor all zero")
        if self.cuts is not None:
            ends = (0, *self.cuts)
            inner = [stop - start for start, stop in pairwise(ends)][1:-1]
            if not self.cuts or self.cuts[-1] != self.n_layers or list(ends) != sorted(ends) or 0 in inner:
                raise ValueError("cuts must rise to n_layers, and only the first and the last stage may do without a block")
        return self

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def ffn_dim(self) -> int:
        """Inner width of a block's gated feed-forward layer: two thirds of the plain one, in multiples of 32."""
        return max(32, round(self.d_model * self.ffn_mult * 2 / 3 / 32) * 32)

    @property
    def eos(self) -> int:
        """Code that ends each codebook; heads may emit it."""
        return self.codebook_size

    @property
    def bos(self) -> int:
        """Code before the first frame; input only."""
        return self.codebook_size + 1

    @property
    def weights(self) -> tuple[float, ...]:
        """Codebook weights, summing to 1."""
        raw = self.codebook_weights or (1.0,) * self.n_codebooks
        total = sum(raw)
        return tuple(weight / total for weight in raw)

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelConfig:
        """Read a configuration that may come from a peer or a file.

        Raises:
            HocketError: MODEL_CONFIG_INVALID with the first thing that does not fit.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _invalid(error) from error

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """As `from_json`, from parsed values."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _invalid(error) from error


def _invalid(error: ValidationError) -> HocketError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return HocketError(Code.MODEL_CONFIG_INVALID, f"{where + ': ' if where else ''}{first['msg']}")


_PRESETS: dict[str, dict[str, Any]] = {
    "test": {
        "d_model": 64, "n_layers": 3, "n_heads": 2, "ffn_mult": 2.0, "text_dim": 48, "text_layers": 2, "frame_layers": 1,
        "duration_dim": 32, "speaker_dim": 8, "conv_kernel": 5,
    },
    "demo": {
        "d_model": 192, "n_layers": 5, "n_heads": 3, "text_dim": 128, "text_layers": 3, "frame_layers": 2, "duration_dim": 96,
        "speaker_dim": 16, "tempo_share": 0.3,
    },
    "base": {
        "d_model": 1024, "n_layers": 22, "n_heads": 16, "text_dim": 384, "text_layers": 6, "frame_layers": 4, "duration_dim": 256,
        "speaker_dim": 192, "tempo_share": 0.3,
    },
    "large": {
        "d_model": 2048, "n_layers": 20, "n_heads": 16, "text_dim": 512, "text_layers": 8, "frame_layers": 4, "duration_dim": 256,
        "speaker_dim": 192, "max_frames": 8192, "tempo_share": 0.3,
    },
    "xl": {
        "d_model": 3072, "n_layers": 26, "n_heads": 24, "text_dim": 768, "text_layers": 8, "frame_layers": 4, "duration_dim": 384,
        "speaker_dim": 192, "max_frames": 8192, "tempo_share": 0.3,
    },
}  # fmt: skip
PRESETS = tuple(_PRESETS)


def preset(
    name: str, *, n_codebooks: int, codebook_size: int, n_phonemes: int, n_languages: int = 1, **changes: Any
) -> ModelConfig:
    """A named size, fitted to a codec and a phoneme inventory.

    Args:
        changes: further fields of `ModelConfig` to replace.

    Raises:
        HocketError: MODEL_CONFIG_INVALID for an unknown name or a value that does not fit.
    """
    if name not in _PRESETS:
        raise HocketError(Code.MODEL_CONFIG_INVALID, f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    values = {
        **_PRESETS[name],
        "preset": name,
        "n_codebooks": n_codebooks,
        "codebook_size": codebook_size,
        "n_phonemes": n_phonemes,
        "n_languages": n_languages,
        **changes,
    }
    return ModelConfig.from_dict(values)


@dataclass(frozen=True)
class StageSpec:
    """One stage of a model.

    Args:
        index: 0 .. n_stages - 1.
        first_layer, last_layer: its decoder blocks are range(first_layer, last_layer); the range may be empty in the first
            and in the last stage.
        is_first: holds the text front and the code embeddings. is_last: holds the final norm and the heads.
    """

    index: int
    n_stages: int
    first_layer: int
    last_layer: int

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.n_stages - 1

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.last_layer)
