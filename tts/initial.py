"""Initial parameter values: a function of (seed, parameter name), so that they do not depend on how a model is cut."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from tts.config import ModelConfig
from tts.draws import draw_key

_ONES = ("norm.weight",)
_ZEROS = (".bias",)
_EMBEDDINGS = ("phoneme.weight", "word_start.weight", "language.weight")
_RESIDUAL = ("out.weight", "down.weight")


def initial_std(name: str, shape: tuple[int, ...], config: ModelConfig) -> float:
    """Standard deviation of a parameter's normal initial values; 0 for biases."""
    if name.endswith(_ZEROS):
        return 0.0
    if name == "codes.weight":
        return 1 / math.sqrt(config.n_codebooks)
    if name.endswith(_EMBEDDINGS):
        return 0.5
    if name.endswith(("after.weight", "unconditional.weight")):
        return 1.0
    if name == "heads.weight":
        return 0.02
    if name.endswith("depthwise"):
        return 1 / math.sqrt(shape[-1])
    std = 1 / math.sqrt(shape[-1])
    # What is added to the residual stream starts small, the smaller the more layers add to it.
    return std / math.sqrt(2 * config.n_layers) if name.endswith(_RESIDUAL) and name.startswith("blocks.") else std


def initialise(module: nn.Module, config: ModelConfig, seed: int) -> None:
    """Fill every parameter of `module`, whose parameter names must be the model's global ones."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(_ONES):
                parameter.fill_(1.0)
                continue
            std = initial_std(name, tuple(parameter.shape), config)
            if std == 0.0:
                parameter.zero_()
                continue
            generator = np.random.Generator(np.random.Philox(key=draw_key(seed, "initial", name)))
            values = generator.standard_normal(tuple(parameter.shape), dtype=np.float32) * np.float32(std)
            parameter.copy_(torch.from_numpy(values))
