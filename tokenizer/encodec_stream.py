"""EnCodec's encoder on windows: convolutions with what is before a window, and an LSTM whose state goes on from window to window.

The LSTM remembers for as long as its forget gates let it, so that no overlap of windows makes up for its state. What is behind
the LSTM sees its last outputs of the window before. The layers are read from the model, of `transformers` or of Meta's package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import Code, HocketError
from tokenizer.codec_layers import causal_convolutions
from tokenizer.receptive_field import Reach, reach_of


class EncodecLayers:
    """A causal EnCodec encoder in three parts: what is before its LSTM, the LSTM, what is behind it.

    Args:
        layers: of the encoder, in the order of the data; just one has an attribute `lstm`, and adds its input to its output.

    Raises:
        HocketError: CODEC_UNREADABLE if there is not just one.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        places = [i for i, layer in enumerate(layers) if isinstance(getattr(layer, "lstm", None), nn.LSTM)]
        if len(places) != 1:
            raise HocketError(Code.CODEC_UNREADABLE, f"an EnCodec's encoder has one LSTM, this one {len(places)}")
        place = places[0]
        self.lstm: nn.LSTM = layers[place].lstm  # type: ignore[assignment]
        self.dtype = next(self.lstm.parameters()).dtype
        self._before, self._behind = list(layers[:place]), list(layers[place + 1 :])
        self.tail = reach_of(causal_convolutions(self._behind)).before
        convolutions = causal_convolutions(layers)
        self.reach = Reach(before=reach_of(causal_convolutions(self._before)).before, after=0, start=reach_of(convolutions).start)

    def before(self, samples: Tensor) -> Tensor:
        """[B, C, T] of samples [B, 1, T * hop]."""
        return _through(self._before, samples)

    def behind(self, states: Tensor) -> Tensor:
        """Latents [B, D, T] of the LSTM's outputs [B, C, T]."""
        return _through(self._behind, states)


class EncodecWindows:
    """The windows of one clip; a `codec_stream.WindowEncoder`.

    Args:
        quantise: codes int64 [1, K, T] of latents [1, D, T].
        device: of the layers.
    """

    def __init__(self, layers: EncodecLayers, quantise: Callable[[Tensor], Tensor], device: str) -> None:
        self._layers, self._quantise, self._device = layers, quantise, device
        self._state: tuple[Tensor, Tensor] | None = None
        self._tail: Tensor | None = None  # [1, C, t]: the LSTM's last outputs

    @torch.inference_mode()
    def __call__(self, samples: np.ndarray, before: int, after: int) -> np.ndarray:
        layers = self._layers
        wav = torch.from_numpy(samples)[None, None].to(self._device, layers.dtype)
        states = layers.before(wav)[..., before:]  # [1, C, own]
        sequence = states.permute(2, 0, 1)
        # The state of a fresh LSTM is zeros; passing it on is all that makes the windows one sequence.
        output, self._state = layers.lstm(sequence, self._state)
        states = (output + sequence).permute(1, 2, 0)
        known = 0 if self._tail is None else self._tail.shape[-1]
        joined = states if self._tail is None else torch.cat((self._tail, states), dim=-1)
        latents = layers.behind(joined)[..., known:]
        self._tail = joined[..., joined.shape[-1] - min(layers.tail, joined.shape[-1]) :].clone()
        return self._quantise(latents)[0].cpu().numpy().astype(np.uint16)


def _through(layers: Sequence[Any], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
