"""Stage files: the parameters of one stage as float32 safetensors, checked against the model before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import Code, HocketError
from protocol.tensors import TensorInfo, read_checked, write_tensors
from tts.batch import own_tensor
from tts.config import ModelConfig
from tts.partition import partition
from tts.stages import Stage, build_stage


def stage_file_name(index: int) -> str:
    return f"stage-{index}.safetensors"


def expected_tensors(config: ModelConfig, i: int, n: int) -> list[TensorInfo]:
    """Name, dtype and shape of every tensor of stage `i` of `n`, sorted by name; no memory is taken for values.

    Raises:
        HocketError: STAGES_INVALID.
    """
    specs = partition(config, n)
    if not 0 <= i < n:
        raise HocketError(Code.STAGES_INVALID, f"stage {i} of {n}", remedy=f"use a stage from 0 to {n - 1}")
    with torch.device("meta"):
        shapes = Stage(config, specs[i]).shapes()
    return [TensorInfo(name=name, dtype="float32", shape=shapes[name]) for name in sorted(shapes)]


def weights_of(stage: Stage) -> dict[str, NDArray[Any]]:
    """Copies of a stage's parameters, float32, by name in sorted order."""
    named = dict(stage.named_parameters())
    return {name: named[name].detach().cpu().numpy().astype(np.float32, copy=True) for name in sorted(named)}


def set_weights(stage: Stage, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy values into a stage's parameters.

    Raises:
        HocketError: CHECKPOINT_INVALID when names or shapes are not the stage's; nothing is changed then.
    """
    named = dict(stage.named_parameters())
    if set(weights) != set(named):
        odd = sorted(set(weights) ^ set(named))
        raise HocketError(Code.CHECKPOINT_INVALID, f"tensor {odd[0]} is missing or too many")
    for name, parameter in named.items():
        if tuple(weights[name].shape) != tuple(parameter.shape):
            raise HocketError(Code.CHECKPOINT_INVALID, f"{name} has shape {weights[name].shape}, not {tuple(parameter.shape)}")
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(own_tensor(weights[name]))


def write_stage(path: Path, stage: Stage) -> None:
    """Write a stage file."""
    write_tensors(path, weights_of(stage))


def read_stage(path: Path, config: ModelConfig, i: int, n: int) -> Stage:
    """Build stage `i` of `n` with the values of a file.

    Raises:
        HocketError: CHECKPOINT_INVALID, NOT_FINITE, STAGES_INVALID.
    """
    weights = read_checked(path, expected_tensors(config, i, n))
    stage = build_stage(config, i, n)
    set_weights(stage, weights)
    return stage
