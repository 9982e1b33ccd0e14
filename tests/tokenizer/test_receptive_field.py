"""How far frames reach, against what gradients say of the same layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import DacConfig, DacModel, EncodecConfig, EncodecModel

from tokenizer.codec_layers import causal_convolutions, padded_convolutions, synthesis_reach
from tokenizer.receptive_field import Convolution, reach_of

LAYER = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 12)).map(
    lambda n: (max(n[0], n[1]), n[1], n[2], n[3])  # kernel >= stride
)


@settings(max_examples=60)
@given(st.lists(LAYER, min_size=1, max_size=4))
def test_reach_is_where_gradients_are(layers: list[tuple[int, int, int, int]]) -> None:
    hop, read = 1, []
    for kernel, stride, dilation, left in layers:
        span = (kernel - 1) * dilation + 1
        read.append(Convolution(span, stride, min(left, span - stride)))
        hop *= stride
    reach = reach_of(read)
    frame = reach.before + 2
    inputs = torch.zeros(1, 1, (frame + reach.after + 3) * hop, dtype=torch.float64, requires_grad=True)
    x = inputs
    for (kernel, stride, dilation, _), layer in zip(layers, read, strict=True):
        weight = torch.ones(1, 1, kernel, dtype=torch.float64)
        x = torch.nn.functional.conv1d(
            torch.nn.functional.pad(x, (layer.left, layer.span - stride - layer.left)), weight, stride=stride, dilation=dilation
        )
    x[0, 0, frame].backward()
    assert inputs.grad is not None
    frames = (inputs.grad[0, 0] != 0).nonzero()[:, 0] // hop
    assert max(0, frame - int(frames.min())) == reach.before or int(frames.min()) >= frame
    assert max(0, int(frames.max()) - frame) == reach.after
    assert frame - int(frames.min()) <= reach.before


def test_encodec_at_24_khz() -> None:
    """478 samples before the LSTM, 6 frames behind it: 2718 samples of a frame, its own 320 among them."""
    layers = list(EncodecModel(EncodecConfig(num_filters=2, hidden_size=4, codebook_dim=4)).encoder.layers)
    place = next(i for i, layer in enumerate(layers) if hasattr(layer, "lstm"))
    samples = 0
    for layer in reversed(causal_convolutions(layers[:place])):
        samples = samples * layer.stride + layer.left
    assert samples + 6 * 320 + 320 == 2718
    assert reach_of(causal_convolutions(layers[:place])).before == 2
    assert reach_of(causal_convolutions(layers[place + 1 :])).before == 6
    assert reach_of(causal_convolutions(layers)).start == 7


@pytest.mark.parametrize("ratios", [[2, 4, 5], [3, 3], [2, 2]])
def test_dac_encoder_and_decoder(ratios: list[int]) -> None:
    sizes: dict[str, Any] = {
        "encoder_hidden_size": 2,
        "decoder_hidden_size": 16,
        "n_codebooks": 2,
        "codebook_size": 4,
        "upsampling_ratios": ratios[::-1],
    }
    config = DacConfig(**sizes, downsampling_ratios=ratios, codebook_dim=2)
    model = DacModel(config).double()
    reach = reach_of(padded_convolutions(model.encoder))
    hop, frame = int(config.hop_length), reach.before + 2
    wav = torch.randn(1, 1, (frame + reach.after + 3) * hop, dtype=torch.float64, requires_grad=True)
    model.encoder(wav)[0, :, frame].sum().backward()
    frames = touched(wav) // hop
    assert (frame - int(frames.min()), int(frames.max()) - frame) == (reach.before, reach.after)

    side = synthesis_reach(model.decoder.modules())
    latents = torch.randn(1, config.hidden_size, 2 * side + 7, dtype=torch.float64, requires_grad=True)
    made = model.decoder(latents)
    made[0, 0, (side + 2) * hop : (side + 3) * hop].abs().sum().backward()
    frames = touched(latents)
    assert max(side + 2 - int(frames.min()), int(frames.max()) - side - 2) == side


def touched(tensor: torch.Tensor) -> torch.Tensor:
    """The places in time that have a gradient."""
    assert tensor.grad is not None
    return (tensor.grad[0].abs().sum(0) != 0).nonzero()[:, 0]


def test_layers_are_read_in_order() -> None:
    net = nn.Sequential(
        nn.Conv1d(1, 1, 7, padding=3), nn.Sequential(nn.ELU(), nn.Conv1d(1, 1, 4, stride=2, padding=1, dilation=1))
    )
    assert padded_convolutions(net) == [Convolution(7, 1, 3), Convolution(4, 2, 1)]
    assert causal_convolutions([net]) == [Convolution(7, 1, 6), Convolution(4, 2, 2)]
