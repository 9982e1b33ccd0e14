"""What a stage takes: parameters, arithmetic, memory and bytes a hop, from the model's sizes alone. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tts.config import NOMINAL_FRAMES_PER_PHONEME, ModelConfig, StageSpec

FLOAT_BYTES = 4
# Copies of the weights that a training replica holds: the weights, the round's base, the gradients and AdamW's two moments.
COPIES = 5
# Of them, those in a snapshot of the inner progress: the weights and the moments. Its buffer is the machine's own memory.
SAVED_COPIES = 3


@dataclass(frozen=True)
class Load:
    """What is in flight at a stage.

    Args:
        utterances: of a microbatch, B. frames: of its longest utterance, T.
        in_flight: microbatches whose graphs a replica keeps at once.
    """

    utterances: int = 4
    frames: int = 256
    in_flight: int = 4


@dataclass(frozen=True)
class Footprint:
    """What one stage takes.

    Args:
        parameters: number of them.
        flops_per_frame: multiply-adds counted twice, forward and backward (three times the forward pass), of one frame.
        state_bytes: weights, base, gradients and moments, float32.
        activation_bytes: what one microbatch keeps for its backward pass.
        in_flight: microbatches kept at once.
        hop_bytes: hidden states that one microbatch sends on, float32; the gradient that comes back is as large. 0 for the last.
    """

    parameters: int
    flops_per_frame: float
    state_bytes: int
    activation_bytes: int
    in_flight: int
    hop_bytes: int

    @property
    def memory_bytes(self) -> int:
        """The peak while training; what the process needs before it holds a model comes on top."""
        return self.state_bytes + self.in_flight * self.activation_bytes

    @property
    def snapshot_bytes(self) -> int:
        """The buffer of a worker that saves its inner progress, in the machine's memory also where it trains on a card."""
        return SAVED_COPIES * FLOAT_BYTES * self.parameters


def block_parameters(config: ModelConfig) -> int:
    """Parameters of one decoder block."""
    d = config.d_model
    return 4 * d * d + 3 * d * config.ffn_dim + 2 * d


def front_parameters(config: ModelConfig) -> int:
    """Parameters of the text front and the code embeddings."""
    c, d, text, duration = config, config.d_model, config.text_dim, config.duration_dim
    embeddings = text * (c.n_phonemes + 2 + c.n_languages + c.speaker_dim) + c.n_codebooks * (c.codebook_size + 2) * d
    predictor = (3 * text + 1) * duration + duration + (3 * duration + 1) * duration + duration + duration + 1
    regulator = text * d + 4 * d + d + (c.n_codebooks + 1) * d
    return embeddings + c.text_layers * _convnext(c, text) + text + predictor + regulator + c.frame_layers * _convnext(c, d)


def head_parameters(config: ModelConfig) -> int:
    """Parameters of the final norm and the heads."""
    return config.d_model + config.n_codebooks * (config.codebook_size + 1) * config.d_model


def _convnext(config: ModelConfig, width: int) -> int:
    return config.conv_kernel * width + width + 2 * width * round(width * config.conv_mult)


def parameters_of(config: ModelConfig, spec: StageSpec) -> int:
    """Parameters of a stage."""
    total = len(spec.layers) * block_parameters(config)
    return total + front_parameters(config) * spec.is_first + head_parameters(config) * spec.is_last


def activation_floats(config: ModelConfig, spec: StageSpec, load: Load) -> int:
    """Floats that one microbatch keeps for its backward pass: what autograd saves, random masks included.

    By layer, a position of width d: a block 12 d + 4 f + heads; a ConvNeXt layer 4 d + 2 inner; the heads their logits.
    """
    c, d = config, config.d_model
    frames = load.utterances * load.frames  # [B * T]
    steps = load.utterances * (load.frames + c.n_codebooks)  # [B * S]
    phonemes = load.utterances * (round(load.frames / NOMINAL_FRAMES_PER_PHONEME) + 2)  # [B * P]
    total = len(spec.layers) * steps * (12 * d + 4 * c.ffn_dim + c.n_heads + 4)
    if spec.is_first:
        inner = (round(c.text_dim * c.conv_mult), round(d * c.conv_mult))
        total += c.text_layers * phonemes * (4 * c.text_dim + 2 * inner[0] + 2)
        total += c.frame_layers * frames * (4 * d + 2 * inner[1] + 2)
        total += (frames + 2 * steps) * d + phonemes * (5 * c.text_dim + 8 * c.duration_dim) + 27 * frames
    if spec.is_last:
        total += steps * (c.n_codebooks * (c.codebook_size + 3) + 2 * d + 6)
    return total


def flops_per_frame(config: ModelConfig, spec: StageSpec, load: Load) -> float:
    """Arithmetic of one frame, forward and backward, a multiply-add being two operations."""
    c, d, text = config, config.d_model, config.text_dim
    macs: float = len(spec.layers) * (4 * d * d + 3 * d * c.ffn_dim + load.frames * d)  # causal attention sees half of the frames
    if spec.is_first:
        per_phoneme: float = c.text_layers * (2 * text * round(text * c.conv_mult) + c.conv_kernel * text)
        per_phoneme += 3 * text * c.duration_dim + 3 * c.duration_dim * c.duration_dim + text * d
        macs += per_phoneme / NOMINAL_FRAMES_PER_PHONEME
        macs += c.frame_layers * (2 * d * round(d * c.conv_mult) + c.conv_kernel * d) + 3 * d
    if spec.is_last:
        macs += c.n_codebooks * (c.codebook_size + 1) * d
    return 3 * 2 * macs


def stage_footprint(config: ModelConfig, spec: StageSpec, load: Load | None = None) -> Footprint:
    """What a stage takes under a load."""
    load = load or Load()
    parameters = parameters_of(config, spec)
    steps = load.utterances * (load.frames + config.n_codebooks)
    return Footprint(
        parameters=parameters,
        flops_per_frame=flops_per_frame(config, spec, load),
        state_bytes=COPIES * FLOAT_BYTES * parameters,
        activation_bytes=FLOAT_BYTES * activation_floats(config, spec, load),
        in_flight=load.in_flight,
        hop_bytes=0 if spec.is_last else FLOAT_BYTES * steps * config.d_model,
    )
