"""EnCodec run by Meta's own package (the extra `encodec`), with the weights of a transformers checkpoint.

It gives the codes that `transformers_codec` gives for the same weights; one checks the other. Meta's own checkpoints are
pickles, which are never read here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import Code, HocketError
from tokenizer.codec import Codec
from tokenizer.codec_stream import WindowEncoder
from tokenizer.encode import encode_padded
from tokenizer.encodec_stream import EncodecLayers, EncodecWindows
from tokenizer.transformers_codec import TransformersCodec


class MetaEncodec(Codec):
    """Meta's modules behind the `Codec` interface.

    Args:
        reference: an EnCodec of `transformers` whose sizes and weights are taken over.

    Raises:
        HocketError: EXTRA_MISSING without the package `encodec`; CODEC_UNREADABLE for another codec than EnCodec.
    """

    kind = "meta-encodec"

    def __init__(self, reference: TransformersCodec) -> None:
        if reference.kind != "encodec":
            raise HocketError(Code.CODEC_UNREADABLE, f"a {reference.kind} model is not an EnCodec")
        self.reference = reference
        self.max_batch = reference.max_batch
        self.sample_rate, self.hop = reference.sample_rate, reference.hop
        self.n_codebooks, self.codebook_size = reference.n_codebooks, reference.codebook_size
        self.device = reference.device
        self.window_frames, self.min_frames = reference.window_frames, reference.min_frames
        config = reference.model.config
        self.encoder, self.decoder, self.quantizer = _build(config)
        weights = reference.model.state_dict()
        for prefix, module in (("encoder", self.encoder), ("decoder", self.decoder), ("quantizer", self.quantizer)):
            names = {name: transformers_name(f"{prefix}.{name}") for name in module.state_dict()}
            try:
                module.load_state_dict({name: weights[theirs] for name, theirs in names.items()})
            except (KeyError, RuntimeError) as error:
                raise HocketError(Code.CODEC_UNREADABLE, f"Meta's {prefix} has other tensors ({error})") from error
            module.eval().requires_grad_(False).to(self.device)
        if reference.reach is not None:
            self._layers = EncodecLayers(list(self.encoder.model))
            self.reach = self._layers.reach

    @classmethod
    def load(cls, source: str, *, n_codebooks: int | None = None, device: str = "cpu") -> MetaEncodec:
        """Take over the EnCodec in a transformers folder or of a hub id; errors as `TransformersCodec.load`."""
        where = Path(source) if Path(source).is_dir() else source
        return cls(TransformersCodec.load(where, n_codebooks=n_codebooks, device=device))

    def codebook_vectors(self) -> np.ndarray:
        books = [layer._codebook.embed for layer in self.quantizer.vq.layers[: self.n_codebooks]]
        return torch.stack(books).cpu().numpy().copy()

    def save(self, folder: Path) -> None:
        """Write the transformers checkpoint with the same weights."""
        self.reference.save(folder)

    @torch.inference_mode()
    def _encode(self, wavs: list[np.ndarray]) -> list[np.ndarray]:
        return encode_padded(
            wavs,
            self.hop,
            self._codes,
            n_codebooks=self.n_codebooks,
            max_clips=1 if self.reach is None else self.max_batch,
            min_frames=self.min_frames,
        )

    def _window_encoder(self) -> WindowEncoder:
        return EncodecWindows(self._layers, self._quantise, self.device)

    def _codes(self, padded: Tensor) -> Tensor:
        """Codes int64 [B, K, T] of samples [B, 1, T * hop]; both in the machine's own memory."""
        return self._quantise(self.encoder(padded.to(self.device))).cpu()

    def _quantise(self, latents: Tensor) -> Tensor:
        """Codes int64 [B, K, T] of latents [B, D, T]."""
        codes: Tensor = self.quantizer.vq.encode(latents, n_q=self.n_codebooks)
        return codes.transpose(0, 1)

    @torch.inference_mode()
    def _decode(self, codes: np.ndarray) -> np.ndarray:
        latents = self.quantizer.decode(torch.from_numpy(codes)[:, None].to(self.device))  # [1, D, T]
        wav: np.ndarray = self.decoder(latents).reshape(-1)[: codes.shape[1] * self.hop].cpu().numpy().copy()
        return wav


def transformers_name(name: str) -> str:
    """What transformers' EnCodec calls the tensor that is `name` in Meta's package."""
    for theirs, ours in (
        ("quantizer.vq.layers.", "quantizer.layers."),
        ("._codebook.", ".codebook."),
        (".model.", ".layers."),
        (".conv.conv.", ".conv."),
        (".convtr.convtr.", ".conv."),
        (".weight_g", ".parametrizations.weight.original0"),
        (".weight_v", ".parametrizations.weight.original1"),
    ):
        name = name.replace(theirs, ours)
    return name


def _build(config: Any) -> tuple[Any, Any, Any]:
    """Meta's encoder, decoder and quantiser in the sizes of a transformers configuration."""
    try:
        from encodec.modules.seanet import SEANetDecoder, SEANetEncoder
        from encodec.quantization import ResidualVectorQuantizer
    except (ImportError, OSError) as error:  # torchaudio raises OSError where its libraries do not fit torch
        remedy = "pip install 'hocket[encodec]' with a torchaudio that fits your torch"
        raise HocketError(Code.EXTRA_MISSING, f"encodec ({error})", remedy=remedy) from error
    sizes = {
        "channels": config.audio_channels,
        "dimension": config.hidden_size,
        "n_filters": config.num_filters,
        "n_residual_layers": config.num_residual_layers,
        "ratios": list(config.upsampling_ratios),
        "norm": config.norm_type,
        "kernel_size": config.kernel_size,
        "last_kernel_size": config.last_kernel_size,
        "residual_kernel_size": config.residual_kernel_size,
        "dilation_base": config.dilation_growth_rate,
        "causal": config.use_causal_conv,
        "pad_mode": config.pad_mode,
        "true_skip": not config.use_conv_shortcut,
        "compress": config.compress,
        "lstm": config.num_lstm_layers,
    }
    quantizer = ResidualVectorQuantizer(dimension=config.hidden_size, n_q=config.num_quantizers, bins=config.codebook_size)
    return SEANetEncoder(**sizes), SEANetDecoder(**sizes, trim_right_ratio=config.trim_right_ratio), quantizer
