"""How far the frames of a convolutional network reach, computed from its layers. Pure arithmetic.

Araujo, Norris, Sim, "Computing Receptive Fields of Convolutional Neural Networks" (Distill, 2019), with both ends kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """What a window of frames needs on its sides, in frames, so that its own frames are those of the whole pass.

    Attributes:
        before: frames to the left that have a part in a frame.
        after: frames to the right that have a part in a frame.
        start: frames that must be there when the left edge is: an edge filled up by reflection reads what follows it.
    """

    before: int
    after: int
    start: int


@dataclass(frozen=True)
class Convolution:
    """One layer: output i reads inputs i * stride - left .. i * stride - left + span - 1.

    Attributes:
        span: inputs from the first to the last that an output reads: (kernel - 1) * dilation + 1.
        stride: inputs between outputs.
        left: positions filled up before the first input.
    """

    span: int
    stride: int
    left: int


def reach_of(layers: Sequence[Convolution]) -> Reach:
    """The reach of frames through layers in the order of the data; a frame is the product of the strides in inputs."""
    hop = 1
    low = high = start = 0  # inputs that frame 0 reads, from the last layer to the first; `start` with the reflected edge
    for layer in reversed(layers):
        low = low * layer.stride - layer.left
        high = high * layer.stride - layer.left + layer.span - 1
        start = max(start * layer.stride - layer.left + layer.span - 1, layer.left)
        hop *= layer.stride
    return Reach(before=-(low // hop), after=max(0, -((hop - 1 - high) // hop)), start=start // hop + 1)
