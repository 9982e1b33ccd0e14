"""The decoder: code embeddings and causal transformer blocks with rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts import delay
from tts.config import ModelConfig
from tts.dropout import PassContext, add_branch, keep_mask, uniform

ROTARY_BASE = 10_000.0


class CodeEmbedding(nn.Module):
    """Sum of the embeddings of a step's K input codes; each codebook has its own table, with rows for EOS and BOS."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_codebooks * (config.codebook_size + 2), config.d_model))

    def corrupt(self, codes: Tensor, ctx: PassContext) -> Tensor:
        """Replace a share of the codes by random ones in training, so that the model learns to go on after its own mistakes.

        Args:
            codes: int64 [B, K, T].
        """
        share = self.config.code_corruption
        if not ctx.train or share == 0:
            return codes
        draws = uniform((2, *codes.shape), ctx, "corruption", codes.device)
        random = (draws[1] * self.config.codebook_size).long().clamp_max(self.config.codebook_size - 1)
        return torch.where(draws[0] < share, random, codes)

    def embed(self, inputs: Tensor) -> Tensor:
        """inputs int64 [B, K, S] -> [B, S, D]."""
        batch, books, steps = inputs.shape
        offsets = torch.arange(books, device=inputs.device) * (self.config.codebook_size + 2)
        bags = inputs.transpose(1, 2).reshape(batch * steps, books) + offsets
        return F.embedding_bag(bags, self.weight, mode="sum").view(batch, steps, -1)

    def forward(self, codes: Tensor, n_frames: Tensor, ctx: PassContext) -> Tensor:
        """codes int64 [B, K, T], n_frames int64 [B] -> [B, T + K, D]."""
        seen = self.corrupt(codes, ctx)
        return self.embed(delay.inputs(seen, n_frames, bos=self.config.bos, eos=self.config.eos))


def rotary(first: int, count: int, head_dim: int, device: torch.device) -> Tensor:
    """Rotations of positions first .. first + count - 1: complex64 [count, 1, head_dim / 2]."""
    frequency = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angle = torch.arange(first, first + count, dtype=torch.float32, device=device)[:, None] * frequency
    return torch.polar(torch.ones_like(angle), angle).unsqueeze(1)


@dataclass
class LayerCache:
    """Keys and values of one block, room for all steps: [B, H, S, head_dim]."""

    keys: Tensor
    values: Tensor


class Block(nn.Module):
    """Causal self-attention and a gated feed-forward layer, each normalised before and added to its input.

    Args:
        index: of the block in the whole model; names its random masks.
    """

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        d = config.d_model
        self.p, self.heads, self.index = config.dropout, config.n_heads, index
        self.attention_norm = nn.LayerNorm(d, bias=False)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.ffn_norm = nn.LayerNorm(d, bias=False)
        self.up = nn.Linear(d, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, d, bias=False)

    def _project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, S, D] -> rotated queries and keys, and values, each [B, H, S, head_dim]."""
        batch, steps, d = x.shape
        turned, value = self.qkv(self.attention_norm(x)).split([2 * d, d], dim=-1)
        # Queries and keys turn together; a pair of neighbouring channels is one complex number.
        pairs = torch.view_as_complex(turned.float().reshape(batch, steps, 2 * self.heads, -1, 2))
        turned = torch.view_as_real(pairs * rotation).flatten(3).to(value.dtype)  # [B, S, 2 H, head_dim]
        query, key = turned.transpose(1, 2).split(self.heads, dim=1)
        return query, key, value.view(batch, steps, self.heads, -1).transpose(1, 2)

    def _feed_forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(self.ffn_norm(x)).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)

    def forward(self, x: Tensor, rotation: Tensor, ctx: PassContext) -> Tensor:
        """x [B, S, D] -> [B, S, D].

        Padding needs no mask: it lies after an utterance's last step, where causal attention does not look.
        """
        query, key, value = self._project(x, rotation)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = add_branch(x, self.out(mixed.transpose(1, 2).flatten(2)), self.p, ctx, f"block.{self.index}.attention")
        return add_branch(x, self._feed_forward(x), self.p, ctx, f"block.{self.index}.ffn")

    def step(self, x: Tensor, rotation: Tensor, cache: LayerCache, position: int) -> Tensor:
        """One step with the keys and values of those before: x [B, 1, D] -> [B, 1, D]; writes the cache at `position`."""
        query, key, value = self._project(x, rotation)
        cache.keys[:, :, position : position + 1] = key
        cache.values[:, :, position : position + 1] = value
        seen = position + 1
        mixed = F.scaled_dot_product_attention(query, cache.keys[:, :, :seen], cache.values[:, :, :seen])
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self._feed_forward(x)

    def empty_cache(self, batch: int, steps: int) -> LayerCache:
        shape = (batch, self.heads, steps, self.qkv.in_features // self.heads)
        weight = self.qkv.weight
        return LayerCache(weight.new_zeros(shape), weight.new_zeros(shape))


def input_dropout(hidden: Tensor, p: float, ctx: PassContext) -> Tensor:
    """Dropout of the decoder's input."""
    mask = keep_mask(hidden, p, ctx, "input")
    return hidden if mask is None else hidden * mask
