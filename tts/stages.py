"""A model cut into stages: each process builds only its own, and a chain computes what the whole model does, bit by bit.

What a stage returns are sums and counts, never means: a step's divisor is known only when all its microbatches are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from common.errors import Code, HocketError
from tts.batch import Side, TextBatch, collate, hidden_shape, own_tensor
from tts.collation import UtteranceLike
from tts.config import ModelConfig, StageSpec
from tts.decoder import Block, CodeEmbedding, input_dropout, rotary
from tts.dropout import PassContext
from tts.heads import Heads
from tts.initial import initialise
from tts.partition import partition
from tts.text_front import TextFront

__all__ = [
    "BoundStage",
    "PassContext",
    "Side",
    "Stage",
    "Sums",
    "TextBatch",
    "UtteranceLike",
    "build_stage",
    "build_stages",
    "check_hidden",
    "collate",
    "hidden_shape",
    "own_tensor",
    "run_stage",
]


@dataclass
class Sums:
    """Losses of a microbatch.

    Args:
        ce: float32 [K], sum of the cross-entropy per codebook. count: int64 [K], codes in it, one EOS an utterance included.
        objective: scalar to call backward on; a weighted sum over frames.
        auxiliary: further losses and figures by name as (sum, count): "duration", "duration_error" (frames that predicted
            durations are wrong by, of all frames), "accuracy.0" ... (codes of a codebook that are the likeliest one, of all).
    """

    ce: Tensor
    count: Tensor
    objective: Tensor
    auxiliary: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def __add__(self, other: Sums) -> Sums:
        merged = dict(self.auxiliary)
        for name, (total, count) in other.auxiliary.items():
            if name in merged:
                total, count = merged[name][0] + total, merged[name][1] + count
            merged[name] = (total, count)
        return Sums(self.ce + other.ce, self.count + other.count, self.objective + other.objective, merged)


class Stage(nn.Module):
    """One stage. Parameter names are those of the whole model, so the files of all stages merge into one.

    Args:
        config: of the model. spec: which part this is.
    """

    def __init__(self, config: ModelConfig, spec: StageSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        if spec.is_first:
            self.text = TextFront(config)
            self.codes = CodeEmbedding(config)
        self.blocks = nn.ModuleDict({str(i): Block(config, i) for i in spec.layers})
        if spec.is_last:
            self.heads = Heads(config)

    def first(self, batch: TextBatch, ctx: PassContext) -> tuple[Tensor, Sums]:
        """Stage 0: hidden states [B, S, D] to send on, and the losses that only this stage knows."""
        condition, duration, error = self.text(batch, ctx)
        hidden = condition + self.codes(batch.codes, batch.n_frames, ctx)
        hidden = self._run_blocks(input_dropout(hidden, self.config.dropout, ctx), ctx)
        books = self.config.n_codebooks
        sums = Sums(
            ce=torch.zeros(books, device=hidden.device),
            count=torch.zeros(books, dtype=torch.int64, device=hidden.device),
            objective=duration * self.config.duration_weight,
            auxiliary={
                "duration": (duration.detach(), int(batch.n_phonemes.sum())),
                "duration_error": (error, batch.frames),
            },
        )
        return hidden, sums

    def middle(self, hidden: Tensor, side: Side, ctx: PassContext) -> Tensor:
        """A stage between: [B, S, D] -> [B, S, D]."""
        check_hidden(self.config, hidden, side)
        return self._run_blocks(hidden, ctx)

    def last(self, hidden: Tensor, side: Side, ctx: PassContext) -> Sums:
        """The last stage: cross-entropy of hidden states [B, S, D]."""
        check_hidden(self.config, hidden, side)
        return self._losses(self._run_blocks(hidden, ctx), side.codes, side.n_frames)

    def whole(self, batch: TextBatch, ctx: PassContext) -> Sums:
        """All of a model that is cut into one stage."""
        hidden, local = self.first(batch, ctx)
        return self._losses(hidden, batch.codes, batch.n_frames) + local

    def _losses(self, hidden: Tensor, codes: Tensor, n_frames: Tensor) -> Sums:
        ce, count, hits, objective = self.heads(hidden, codes, n_frames)
        right = hits.to(ce.dtype)  # float32 counts exactly up to 16 million codes of a microbatch
        accuracy = {f"accuracy.{book}": (right[book], number) for book, number in enumerate(count.tolist())}
        return Sums(ce=ce, count=count, objective=objective, auxiliary=accuracy)

    def _run_blocks(self, hidden: Tensor, ctx: PassContext) -> Tensor:
        if not len(self.blocks):
            return hidden
        rotation = rotary(0, hidden.shape[1], self.config.head_dim, hidden.device)
        for block in self.decoder_blocks():
            hidden = block(hidden, rotation, ctx)
        return hidden

    def forward(self, part: str, *arguments: Any) -> Any:
        """Call `first`, `middle`, `last` or `whole` by name; `functional_call` needs one door."""
        calls: dict[str, Callable[..., Any]] = {
            "first": self.first, "middle": self.middle, "last": self.last, "whole": self.whole,
        }  # fmt: skip
        return calls[part](*arguments)

    def decoder_blocks(self) -> list[Block]:
        """The stage's blocks in order."""
        return [cast(Block, block) for block in self.blocks.values()]

    def with_weights(self, weights: Mapping[str, Tensor]) -> BoundStage:
        """This stage's computation on other weights, such as a round's base; the stage's own stay as they are."""
        return BoundStage(self, dict(weights))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter by name, in the order in which they are stored."""
        return {name: tuple(parameter.shape) for name, parameter in self.named_parameters()}


@dataclass(frozen=True)
class BoundStage:
    """A stage and weights to compute with; has the same four calls."""

    stage: Stage
    weights: dict[str, Tensor]

    @property
    def config(self) -> ModelConfig:
        return self.stage.config

    @property
    def spec(self) -> StageSpec:
        return self.stage.spec

    def first(self, batch: TextBatch, ctx: PassContext) -> tuple[Tensor, Sums]:
        hidden, sums = self._call("first", batch, ctx)
        return hidden, sums

    def middle(self, hidden: Tensor, side: Side, ctx: PassContext) -> Tensor:
        result: Tensor = self._call("middle", hidden, side, ctx)
        return result

    def last(self, hidden: Tensor, side: Side, ctx: PassContext) -> Sums:
        result: Sums = self._call("last", hidden, side, ctx)
        return result

    def whole(self, batch: TextBatch, ctx: PassContext) -> Sums:
        result: Sums = self._call("whole", batch, ctx)
        return result

    def _call(self, part: str, *arguments: Any) -> Any:
        return functional_call(self.stage, self.weights, (part, *arguments), strict=True)


def run_stage(
    stage: Stage | BoundStage, batch: TextBatch | None, hidden: Tensor | None, side: Side, ctx: PassContext
) -> tuple[Tensor | None, Sums | None]:
    """The part of a stage that its place in the chain calls for: hidden states to send on, and the losses known here."""
    spec = stage.spec
    if spec.is_first:
        if batch is None:
            raise ValueError("the first stage reads a batch")
        return (None, stage.whole(batch, ctx)) if spec.is_last else stage.first(batch, ctx)
    if hidden is None:
        raise ValueError("a later stage reads hidden states")
    return (None, stage.last(hidden, side, ctx)) if spec.is_last else (stage.middle(hidden, side, ctx), None)


def check_hidden(config: ModelConfig, hidden: Tensor, side: Side) -> None:
    """Refuse hidden states that do not belong to the codes they came with.

    Raises:
        HocketError: INPUT_INVALID.
    """
    wanted = hidden_shape(config, side)
    if tuple(hidden.shape) != wanted or not hidden.is_floating_point():
        raise HocketError(Code.INPUT_INVALID, f"hidden states are {hidden.dtype} {tuple(hidden.shape)}, not {wanted}")


def build_stage(config: ModelConfig, i: int, n: int, *, seed: int = 0, device: torch.device | str = "cpu") -> Stage:
    """Build stage `i` of `n`, and nothing of the others.

    Raises:
        HocketError: STAGES_INVALID when the model cannot be cut like that.
    """
    specs = partition(config, n)
    if not 0 <= i < n:
        raise HocketError(Code.STAGES_INVALID, f"stage {i} of {n}", remedy=f"use a stage from 0 to {n - 1}")
    with torch.device("meta"):  # no values, so no time and no draw from the global generator is spent on them
        stage = Stage(config, specs[i])
    stage.to_empty(device=device)
    initialise(stage, config, seed)
    return stage


def build_stages(config: ModelConfig, n: int, *, seed: int = 0, device: torch.device | str = "cpu") -> list[Stage]:
    """All stages of a model, for processes that hold them all: synthesis, the reference trainer, tests."""
    return [build_stage(config, i, n, seed=seed, device=device) for i in range(n)]


def merged_state(stages: Sequence[Stage]) -> dict[str, Tensor]:
    """Parameters of all stages by name, detached, in the order of the stages."""
    return {name: parameter.detach() for stage in stages for name, parameter in stage.named_parameters()}
