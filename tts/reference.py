"""Training in one process: the yardstick that a pipeline is compared with, bit by bit and by speed.

The boundaries between stages are those of the network: hidden states and gradients cross them as float32 numpy copies, and
each stage runs its own backward. With one stage there are none and autograd runs straight through; the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tts.batch import TextBatch, collate, own_tensor
from tts.collation import UtteranceLike, cut
from tts.config import ModelConfig
from tts.dropout import PassContext
from tts.optimizer import StageOptimizer
from tts.partition import partition
from tts.schedule import lr_at
from tts.stages import BoundStage, Stage, Sums, build_stages

AnyStage = Stage | BoundStage


@dataclass(frozen=True)
class InnerSettings:
    """How inner steps are taken; the same fields as a round's settings.

    Args:
        peak_lr, floor, warmup_frames, total_frames: of the learning rate's schedule.
    """

    peak_lr: float = 4e-3
    floor: float = 0.03
    warmup_frames: int = 0
    total_frames: int = 1_000_000
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seed: int = 0


@dataclass
class InnerStepResult:
    """What one inner step did: frames in it, sums of its losses, learning rate, gradient norm per stage."""

    frames: int
    ce: list[float]
    count: list[int]
    auxiliary: dict[str, tuple[float, int]] = field(default_factory=dict)
    lr: float = 0.0
    norms: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """Cross-entropy per code."""
        return sum(self.ce) / max(1, sum(self.count))


def cross_boundary(tensor: Tensor) -> Tensor:
    """A tensor as it arrives from the network in fp32: a detached copy by way of numpy."""
    return own_tensor(tensor.detach().cpu().numpy().astype(np.float32, copy=True)).to(tensor.device)


def forward_chain(stages: Sequence[AnyStage], batch: TextBatch, ctx: PassContext) -> Sums:
    """Losses of a microbatch through all stages, without gradients."""
    with torch.no_grad():
        if len(stages) == 1:
            return stages[0].whole(batch, ctx)
        side = batch.side()
        hidden, local = stages[0].first(batch, ctx)
        for stage in stages[1:-1]:
            hidden = stage.middle(cross_boundary(hidden), side, ctx)
        return stages[-1].last(cross_boundary(hidden), side, ctx) + local


def backward_chain(stages: Sequence[Stage], batch: TextBatch, ctx: PassContext) -> Sums:
    """Forward and backward of a microbatch through all stages; gradients are added to the parameters' `grad`."""
    if len(stages) == 1:
        sums = stages[0].whole(batch, ctx)
        sums.objective.backward()
        return sums
    side = batch.side()
    hidden, local = stages[0].first(batch, ctx)
    sent, received = [hidden], []
    for stage in stages[1:-1]:
        received.append(cross_boundary(sent[-1]).requires_grad_())
        sent.append(stage.middle(received[-1], side, ctx))
    received.append(cross_boundary(sent[-1]).requires_grad_())
    sums = stages[-1].last(received[-1], side, ctx)
    sums.objective.backward()
    for output, arrived in zip(reversed(sent[1:]), reversed(received[1:]), strict=True):
        output.backward(returned_gradient(arrived))
    torch.autograd.backward([sent[0], local.objective], [returned_gradient(received[0]), None])
    return sums + local


def returned_gradient(arrived: Tensor) -> Tensor:
    """The gradient of hidden states that crossed a boundary, as the sender gets it back."""
    if arrived.grad is None:
        raise RuntimeError("the stage behind the boundary has not run its backward")
    return cross_boundary(arrived.grad)


def take_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Move the accumulated gradients out of a module; a parameter that took no part has zeros."""
    grads = {}
    for name, parameter in module.named_parameters():
        grads[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = None
    return grads


class ReferenceTrainer:
    """A model of `n_stages`, trained in this process.

    Args:
        clip_stages: cut by which gradients are clipped; a run that is compared with a pipeline of n stages must clip as those
            stages do, each over its own parameters. None: as many as `n_stages`.
        free_order: add a step's microbatches up in the reverse order, to show what the order is worth.
    """

    def __init__(
        self,
        config: ModelConfig,
        n_stages: int,
        settings: InnerSettings,
        *,
        clip_stages: int | None = None,
        seed: int = 0,
        free_order: bool = False,
    ) -> None:
        self.config, self.settings, self.free_order = config, settings, free_order
        self.stages = build_stages(config, n_stages, seed=seed)
        self.frames_done = 0
        parameters = {name: p for stage in self.stages for name, p in stage.named_parameters()}
        with torch.device("meta"):
            groups = [list(Stage(config, spec).shapes()) for spec in partition(config, clip_stages or n_stages)]
        self.optimizers = [
            StageOptimizer({name: parameters[name] for name in names}, settings.weight_decay, settings.clip_norm)
            for names in groups
        ]

    def inner_step(self, microbatches: Sequence[tuple[int, TextBatch]]) -> InnerStepResult:
        """One optimizer step on microbatches given as (id, tensors); they are taken in the order of their ids."""
        settings = self.settings
        frames, total = sum(batch.frames for _, batch in microbatches), None
        lr = lr_at(self.frames_done, settings.total_frames, settings.warmup_frames, settings.peak_lr, settings.floor)
        for identity, batch in sorted(microbatches, key=lambda item: item[0], reverse=self.free_order):
            sums = backward_chain(self.stages, batch, PassContext(settings.seed, identity, train=True))
            sums.objective = sums.objective.detach()
            total = sums if total is None else total + sums
        if total is None:
            raise ValueError("an inner step needs a microbatch")
        grads = {name: grad for stage in self.stages for name, grad in take_gradients(stage).items()}
        norms = [optimizer.step(grads, frames, lr) for optimizer in self.optimizers]
        self.frames_done += frames
        auxiliary = {name: (float(value), count) for name, (value, count) in total.auxiliary.items()}
        return InnerStepResult(frames, total.ce.tolist(), total.count.tolist(), auxiliary, lr, norms)


def cut_microbatches(
    utterances: Sequence[UtteranceLike], count: int, config: ModelConfig, languages: Sequence[str] = ()
) -> list[TextBatch]:
    """Sort utterances by length and cut them into at most `count` microbatches of near-equal frames.

    The order among equally long ones is that given, so the cut is a function of the list. Each microbatch gets at least one.
    """
    return [collate(part, config, languages) for part in cut(utterances, count)]


def train_single(
    config: ModelConfig,
    n: int,
    steps: Sequence[Sequence[tuple[int, TextBatch]]],
    settings: InnerSettings,
    *,
    seed: int = 0,
    clip_stages: int | None = None,
    progress: Callable[[int, InnerStepResult], None] | None = None,
) -> ReferenceTrainer:
    """Take the inner steps given, each a list of (microbatch id, tensors), in a model of `n` stages."""
    trainer = ReferenceTrainer(config, n, settings, clip_stages=clip_stages, seed=seed)
    for number, microbatches in enumerate(steps):
        result = trainer.inner_step(microbatches)
        if progress is not None:
            progress(number, result)
    return trainer
