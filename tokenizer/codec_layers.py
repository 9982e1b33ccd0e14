"""The convolutions of a codec's networks, read from the networks themselves, and how far a frame's sound reaches through them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from tokenizer.receptive_field import Convolution


def synthesis_reach(layers: Iterable[nn.Module]) -> int:
    """Frames on each side that have a part in a frame's samples, of (transposed) convolutions in the order of the data."""
    found = list(layers)
    hop = 1
    for layer in found:
        hop *= layer.stride[0] if isinstance(layer, nn.ConvTranspose1d) else 1
    low, high = 0, hop - 1  # outputs of frame 0, traced back to inputs
    for layer in reversed(found):
        if isinstance(layer, nn.ConvTranspose1d):
            span, stride, left = _span(layer), layer.stride[0], _padding(layer)
            low, high = -((span - 1 - left - low) // stride), (high + left) // stride
        elif isinstance(layer, nn.Conv1d):
            left = _padding(layer)
            low, high = low - left, high - left + _span(layer) - 1
    return max(-low, high)


def padded_convolutions(module: nn.Module) -> list[Convolution]:
    """The layers of a network whose convolutions pad by themselves, in the order in which it registered them."""
    return [
        Convolution(_span(layer), layer.stride[0], _padding(layer)) for layer in module.modules() if isinstance(layer, nn.Conv1d)
    ]


def causal_convolutions(modules: Iterable[nn.Module]) -> list[Convolution]:
    """The layers of networks whose convolutions are filled up on the left alone, so that outputs read nothing that follows."""
    found = [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Conv1d)]
    return [Convolution(_span(layer), layer.stride[0], _span(layer) - layer.stride[0]) for layer in found]


def _span(layer: nn.Conv1d | nn.ConvTranspose1d) -> int:
    return (layer.kernel_size[0] - 1) * layer.dilation[0] + 1


def _padding(layer: nn.Conv1d | nn.ConvTranspose1d) -> int:
    return int(layer.padding[0])
