"""EnCodec, Mimi and DAC through `transformers`, from a folder or a hub id.

Codes do not depend on what else is in a batch. Each clip is first padded with zeros to whole frames: otherwise EnCodec fills
up the last frame by reflection when a clip is alone and with the batch's padding when it is not. After that, padding on the
right changes no earlier frame of a *causal* codec (EnCodec at 24 kHz, Mimi), so these can run in batches of similar length
that are cut afterwards. DAC is not causal and is run clip by clip.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from common.errors import Code, HocketError
from tokenizer.codec import TRANSFORMERS_TYPES, WINDOW_S, Codec, check_n_codebooks, read_config
from tokenizer.codec_layers import padded_convolutions, synthesis_reach
from tokenizer.codec_stream import WindowEncoder
from tokenizer.encode import MIN_CAUSAL_FRAMES, clips_in_batch, encode_padded
from tokenizer.encodec_stream import EncodecLayers, EncodecWindows
from tokenizer.receptive_field import reach_of

logger = logging.getLogger(__name__)


class TransformersCodec(Codec):
    """A codec model of `transformers` behind the `Codec` interface.

    Args:
        model: EncodecModel, MimiModel or DacModel, for one channel and with no segmenting.
        n_codebooks: books to use; all if None.
        max_batch: clips a batch at most, of causal codecs; what suits the device if None.
        device: to run on.

    Raises:
        HocketError: CODEC_UNREADABLE for another model, stereo, or one that scales or segments its input.
    """

    def __init__(self, model: Any, *, n_codebooks: int | None = None, max_batch: int | None = None, device: str = "cpu") -> None:
        config = model.config
        if config.model_type not in TRANSFORMERS_TYPES:
            raise HocketError(Code.CODEC_UNREADABLE, f"a {config.model_type} model is none of {', '.join(TRANSFORMERS_TYPES)}")
        self.kind = config.model_type
        self.model = model.eval().requires_grad_(False).to(device)
        self.device = device
        self.max_batch = max_batch or clips_in_batch(device)
        self.sample_rate = int(config.sampling_rate)
        self.codebook_size = int(config.codebook_size)
        if self.kind == "encodec":
            if config.audio_channels != 1 or config.normalize or config.chunk_length_s is not None:
                detail = "this EnCodec is stereo, scales or segments its input; use the 24 kHz one"
                raise HocketError(Code.CODEC_UNREADABLE, detail)
            self.hop, available = int(config.hop_length), int(config.num_quantizers)
            # Group norm over time takes the whole clip into every frame.
            self._causal = bool(config.use_causal_conv) and config.norm_type == "weight_norm"
        elif self.kind == "mimi":
            self.hop, available, self._causal = int(config.frame_size), int(config.num_quantizers), bool(config.use_causal_conv)
        else:
            self.hop, available, self._causal = int(config.hop_length), int(config.n_codebooks), False
        self.n_codebooks = check_n_codebooks(n_codebooks, available)
        if self.kind == "mimi" and self.n_codebooks < config.num_semantic_quantizers:
            raise HocketError(Code.OPTION_INVALID, f"this Mimi needs {config.num_semantic_quantizers} codebooks or more")
        self.window_frames = round(WINDOW_S * self.frame_rate)
        self.min_frames = MIN_CAUSAL_FRAMES if self._causal else 1
        if self.kind == "encodec" and self._causal:
            self._layers = EncodecLayers(list(self.model.encoder.layers))
            self.reach = self._layers.reach
            self.min_frames = max(self.min_frames, self.reach.start)
        elif self.kind == "dac":
            self.reach = reach_of(padded_convolutions(self.model.encoder))
            self.decode_context = synthesis_reach(self.model.decoder.modules())

    @classmethod
    def load(cls, source: Path | str, *, n_codebooks: int | None = None, device: str = "cpu") -> TransformersCodec:
        """Load from a folder, else by hub id: from the local cache, and from the hub unless HF_HUB_OFFLINE is set.

        Only safetensors weights are read, and a tensor that is missing or of another shape is an error, not a random tensor.

        Raises:
            HocketError: CODEC_UNREADABLE, OPTION_INVALID.
        """
        if isinstance(source, Path):
            model = _load_model(str(source), read_config(source).get("model_type"), local=True)
            return cls(model, n_codebooks=n_codebooks, device=device)
        try:
            return cls(_load_model(source, None, local=True), n_codebooks=n_codebooks, device=device)
        except HocketError as error:
            if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") or error.code != Code.CODEC_UNREADABLE:
                raise
        logger.info("codec %s is not in the local cache; asking the hub", source)
        return cls(_load_model(source, None, local=False), n_codebooks=n_codebooks, device=device)

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def codebook_vectors(self) -> np.ndarray:
        quantizer = self.model.quantizer
        with torch.inference_mode():
            if self.kind == "encodec":
                books = [layer.codebook.embed for layer in quantizer.layers]
            elif self.kind == "mimi":
                books = _mimi_books(quantizer.semantic_residual_vector_quantizer)
                books += _mimi_books(quantizer.acoustic_residual_vector_quantizer)
            else:
                books = [_project(layer.out_proj, layer.codebook.weight) for layer in quantizer.quantizers]
            return torch.stack(books[: self.n_codebooks]).float().cpu().numpy().copy()

    @torch.inference_mode()
    def _encode(self, wavs: list[np.ndarray]) -> list[np.ndarray]:
        return encode_padded(
            wavs,
            self.hop,
            self._codes,
            n_codebooks=self.n_codebooks,
            max_clips=self.max_batch if self._causal else 1,
            min_frames=self.min_frames,
        )

    def _window_encoder(self) -> WindowEncoder:
        if self.kind == "encodec":
            return EncodecWindows(self._layers, self._quantise, self.device)
        return self._encode_window

    @torch.inference_mode()
    def _encode_window(self, samples: np.ndarray, before: int, after: int) -> np.ndarray:
        codes = self._codes(torch.from_numpy(samples)[None, None])[0].numpy()
        return codes[:, before : codes.shape[1] - after].astype(np.uint16)

    def _quantise(self, embedding: Tensor) -> Tensor:
        """EnCodec's codes int64 [B, K, T] of latents [B, D, T]."""
        quantizer = self.model.quantizer
        bits_a_second = quantizer.frame_rate * np.log2(self.codebook_size)
        # Half a book more than K: the model rounds the books of a bandwidth (kbit/s) down.
        codes: Tensor = quantizer.encode(embedding, float((self.n_codebooks + 0.5) * bits_a_second / 1000))
        return codes.transpose(0, 1)

    def _codes(self, padded: Tensor) -> Tensor:
        """Codes int64 [B, K, T] of samples [B, 1, T * hop]; both in the machine's own memory."""
        padded = padded.to(self.device)
        if self.kind == "encodec":
            codes = self._quantise(self.model.encoder(padded))
        elif self.kind == "mimi":
            codes = self.model.encode(padded, num_quantizers=self.n_codebooks).audio_codes
        else:
            codes = self.model.encode(padded, n_quantizers=self.n_codebooks).audio_codes
        return codes.cpu()

    @torch.inference_mode()
    def _decode(self, codes: np.ndarray) -> np.ndarray:
        batch = torch.from_numpy(codes)[None].to(self.device)  # [1, K, T]
        if self.kind == "encodec":
            wav = self.model.decode(batch[None], [None]).audio_values
        elif self.kind == "mimi":
            wav = self.model.decode(batch).audio_values
        else:
            wav = self.model.decode(audio_codes=batch).audio_values
        wanted = codes.shape[1] * self.hop
        samples = wav.reshape(-1)[:wanted].float().cpu().numpy()
        # DAC's upsampling by an odd factor gives a sample less a frame boundary.
        return np.pad(samples, (0, wanted - len(samples)))


def _load_model(source: str, model_type: str | None, *, local: bool) -> Any:
    """The model of `source` with all its weights; CODEC_UNREADABLE otherwise."""
    try:
        from transformers import AutoConfig, DacModel, EncodecModel, MimiModel
    except (ImportError, OSError, RuntimeError) as error:
        # transformers loads torchaudio where it is installed, whose libraries may not fit torch.
        remedy = "remove torchaudio, or install one that fits your torch (it comes with 'hocket[encodec]')"
        raise HocketError(Code.EXTRA_MISSING, f"transformers cannot be loaded ({error})", remedy=remedy) from error

    classes: dict[str, Any] = {"encodec": EncodecModel, "mimi": MimiModel, "dac": DacModel}
    try:
        kind = model_type or AutoConfig.from_pretrained(source, local_files_only=local).model_type
        if kind not in classes:
            raise HocketError(Code.CODEC_UNREADABLE, f"{source} is a {kind}, none of {', '.join(classes)}")
        model, info = classes[kind].from_pretrained(
            source, local_files_only=local, use_safetensors=True, output_loading_info=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = str(error).strip().splitlines()
        raise HocketError(Code.CODEC_UNREADABLE, f"{source} ({reason[0] if reason else type(error).__name__})") from error
    wrong = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if wrong:
        raise HocketError(Code.CODEC_UNREADABLE, f"{source} has no weights that fit {wrong[0]} and {len(wrong) - 1} others")
    return model


def _mimi_books(quantizer: Any) -> list[Tensor]:
    """What each code adds to the latent, [card, hidden] a book, of one of Mimi's two quantisers."""
    return [_project(quantizer.output_proj, layer.codebook.embed) for layer in quantizer.layers]


def _project(convolution: nn.Module | None, vectors: Tensor) -> Tensor:
    """`vectors` [card, D] through a convolution over one frame, or as they are: [card, D']."""
    return vectors if convolution is None else convolution(vectors.T[None])[0].T
