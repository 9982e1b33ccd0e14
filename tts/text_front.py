"""From phonemes to one condition vector a decoding step: phoneme encoder, duration predictor, length regulator.

The duration predictor reads detached states, so that its loss, which only stage 0 knows, trains nothing else.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts.batch import TextBatch
from tts.config import ModelConfig
from tts.dropout import PassContext, add_branch, keep_mask, uniform


class ConvNeXt(nn.Module):
    """Depthwise convolution over time, then a two-layer network per position, added to the input.

    Args:
        width: channels. inner: channels in between. kernel: taps, odd. dropout: of the branch.
        name: of the layer, unique in the model; names its random masks.
    """

    def __init__(self, width: int, inner: int, kernel: int, dropout: float, name: str) -> None:
        super().__init__()
        self.name, self.p, self.kernel = name, dropout, kernel
        self.depthwise = nn.Parameter(torch.empty(width, 1, kernel))
        self.norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor, ctx: PassContext) -> Tensor:
        """x [B, N, C], mask [B, N, 1] of 0 and 1 -> [B, N, C]; positions outside the mask reach no other."""
        # Seen as an image of height 1 in channels-last layout the convolution needs no transposition.
        image = (x * mask).transpose(1, 2).unsqueeze(2)  # [B, C, 1, N]
        mixed = F.conv2d(image, self.depthwise.unsqueeze(2), padding=(0, self.kernel // 2), groups=x.shape[2])
        branch = self.down(F.silu(self.up(self.norm(mixed.squeeze(2).transpose(1, 2)))))
        return add_branch(x, branch, self.p, ctx, self.name)


class DurationPredictor(nn.Module):
    """Log-durations from phoneme states: two convolutions of three taps and a linear layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.p = config.dropout
        self.first = nn.Linear(3 * config.text_dim, config.duration_dim)
        self.first_norm = nn.LayerNorm(config.duration_dim, bias=False)
        self.second = nn.Linear(3 * config.duration_dim, config.duration_dim)
        self.second_norm = nn.LayerNorm(config.duration_dim, bias=False)
        self.out = nn.Linear(config.duration_dim, 1)

    @staticmethod
    def _neighbours(x: Tensor) -> Tensor:
        """[B, P, C] -> [B, P, 3 C]: each position with the one before and the one after."""
        padded = F.pad(x, (0, 0, 1, 1))
        return torch.cat([padded[:, :-2], x, padded[:, 2:]], dim=-1)

    def forward(self, states: Tensor, mask: Tensor, ctx: PassContext) -> Tensor:
        """states [B, P, C], mask [B, P, 1] -> log(d + 1) [B, P]."""
        x = states * mask
        for number, (linear, norm) in enumerate(((self.first, self.first_norm), (self.second, self.second_norm))):
            x = norm(F.relu(linear(self._neighbours(x)))) * mask
            dropped = keep_mask(x, self.p, ctx, f"duration.{number}")
            x = x if dropped is None else x * dropped
        return self.out(x).squeeze(-1)


def duration_loss(predicted: Tensor, durations: Tensor, n_phonemes: Tensor) -> Tensor:
    """Sum of squared errors of log(d + 1) over the phonemes that exist.

    Args:
        predicted: [B, P]. durations: int64 [B, P]. n_phonemes: int64 [B].
    """
    exists = torch.arange(predicted.shape[1], device=predicted.device)[None, :] < n_phonemes[:, None]
    error = (predicted - torch.log1p(durations.to(predicted.dtype))) * exists
    return error.square().sum()


def duration_error(predicted: Tensor, durations: Tensor, n_phonemes: Tensor) -> Tensor:
    """Sum over each utterance's phonemes of |predicted - true| durations, float32 [B], in frames.

    Args:
        predicted: log(d + 1) [B, P]; read as synthesis reads it, at least one frame each. Others as for `duration_loss`.
    """
    exists = torch.arange(predicted.shape[1], device=predicted.device)[None, :] < n_phonemes[:, None]
    frames = torch.expm1(predicted.float()).clamp_min(1.0)
    return ((frames - durations).abs() * exists).sum(1)


def expand(durations: Tensor, n_frames: int) -> tuple[Tensor, Tensor]:
    """Which phoneme each frame belongs to, and where in it the frame lies.

    Args:
        durations: int64 [B, P]; a row may sum to less than n_frames, its last frames then belong to the last column.

    Returns: index int64 [B, T]; features float32 [B, T, 3]: r/d, (d-1-r)/d and log d of the r-th frame of a phoneme of d frames.
    """
    ends = durations.cumsum(1)
    time = torch.arange(n_frames, device=durations.device).expand(durations.shape[0], -1).contiguous()
    index = torch.searchsorted(ends, time, right=True).clamp_max(durations.shape[1] - 1)
    length = durations.gather(1, index).clamp_min(1)
    since = (time - (ends - durations).gather(1, index)).float()
    d = length.float()
    return index, torch.stack([since / d, (d - 1 - since) / d, d.log()], dim=-1)


class TextFront(nn.Module):
    """Phonemes, word starts, language and speaker to one condition vector a step.

    Args:
        config: of the model; the front is part of stage 0 whatever the number of stages.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, d = config.text_dim, config.d_model
        self.phoneme = nn.Embedding(config.n_phonemes, width)
        self.word_start = nn.Embedding(2, width)
        self.language = nn.Embedding(config.n_languages, width)
        self.speaker = nn.Linear(config.speaker_dim, width, bias=False)
        self.layers = nn.ModuleList(
            ConvNeXt(width, round(width * config.conv_mult), config.conv_kernel, config.dropout, f"text.{i}")
            for i in range(config.text_layers)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        self.duration = DurationPredictor(config)
        self.widen = nn.Linear(width, d, bias=False)
        self.place = nn.Linear(3, d)
        self.frame_layers = nn.ModuleList(
            ConvNeXt(d, round(d * config.conv_mult), config.conv_kernel, config.dropout, f"frame.{i}")
            for i in range(config.frame_layers)
        )
        self.frame_norm = nn.LayerNorm(d, bias=False)
        self.after = nn.Embedding(config.n_codebooks, d)  # condition of the steps after the last frame
        self.unconditional = nn.Embedding(1, d)

    def encode(
        self, phonemes: Tensor, word_starts: Tensor, n_phonemes: Tensor, speaker: Tensor, language: Tensor, ctx: PassContext
    ) -> tuple[Tensor, Tensor]:
        """Phoneme states [B, P, C] and the predictor's log(d + 1) [B, P].

        Args:
            phonemes, word_starts: int64 [B, P]. n_phonemes, language: int64 [B]. speaker: float32 [B, E].
        """
        exists = torch.arange(phonemes.shape[1], device=phonemes.device)[None, :] < n_phonemes[:, None]
        mask = exists.unsqueeze(-1).to(self.norm.weight.dtype)
        x = self.phoneme(phonemes) + self.word_start(word_starts)
        x = x + (self.language(language) + self.speaker(speaker))[:, None]
        for layer in self.layers:
            x = layer(x, mask, ctx)
        states = self.norm(x)
        return states, self.duration(states.detach(), mask, ctx)

    def condition(self, states: Tensor, durations: Tensor, n_frames: Tensor, dropped: Tensor | None, ctx: PassContext) -> Tensor:
        """Condition of every step [B, T + K, D].

        Args:
            states: [B, P, C]. durations: int64 [B, P] summing to n_frames int64 [B].
            dropped: bool [B], utterances that get the learnt vector instead; None: no one.
        """
        batch, columns, _ = states.shape
        frames = int(n_frames.max())
        index, features = expand(durations, frames)
        rows = torch.arange(batch, device=index.device)[:, None]
        # Widening before expanding is the same sum and four times less work: a phoneme lasts about four frames.
        # The gather runs in float32, also under autocast: its backward adds up the gradients of all frames of a phoneme.
        x = F.embedding(index + rows * columns, self.widen(states).flatten(0, 1).float()) + self.place(features)
        time = torch.arange(frames, device=index.device)[None, :]
        mask = (time < n_frames[:, None]).unsqueeze(-1).to(x.dtype)
        for layer in self.frame_layers:
            x = layer(x, mask, ctx)
        x = self.frame_norm(x)
        # One table of all vectors a step can have, and one look-up: frames, then what follows the last, then the learnt one.
        books = self.config.n_codebooks
        table = torch.cat([x.flatten(0, 1), self.after.weight, self.unconditional.weight])
        step = torch.arange(frames + books, device=index.device)[None, :]
        beyond = step - n_frames[:, None]  # [B, S]
        source = torch.where(beyond < 0, rows * frames + step, batch * frames + beyond.clamp(0, books - 1))
        if dropped is not None:
            source = torch.where(dropped[:, None], batch * frames + books, source)
        return F.embedding(source, table)

    def forward(self, batch: TextBatch, ctx: PassContext) -> tuple[Tensor, Tensor, Tensor]:
        """Condition [B, S, D], the duration loss (a sum over phonemes) and the duration error (a sum, in frames)."""
        states, predicted = self.encode(batch.phonemes, batch.word_starts, batch.n_phonemes, batch.speaker, batch.language, ctx)
        dropped = None
        if ctx.train and self.config.cond_dropout > 0:
            dropped = uniform((states.shape[0],), ctx, "condition", states.device) < self.config.cond_dropout
        condition = self.condition(states, batch.durations, batch.n_frames, dropped, ctx)
        error = duration_error(predicted.detach(), batch.durations, batch.n_phonemes).sum()
        return condition, duration_loss(predicted, batch.durations, batch.n_phonemes), error
