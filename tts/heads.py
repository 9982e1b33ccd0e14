"""The last stage's end: final norm, one linear head a codebook, cross-entropy as sums and counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts import delay
from tts.config import ModelConfig


class Heads(nn.Module):
    """K heads over `codebook_size` codes and EOS, as one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.d_model, bias=False)
        self.weight = nn.Parameter(torch.empty(config.n_codebooks * (config.codebook_size + 1), config.d_model))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, S, D] -> float32 [B, S, K, card + 1]."""
        batch, steps, _ = hidden.shape
        flat = F.linear(self.norm(hidden), self.weight)
        return flat.view(batch, steps, self.config.n_codebooks, self.config.codebook_size + 1).float()

    def scores(self, hidden: Tensor, codes: Tensor, n_frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What becomes of every code, and of one EOS a codebook; arguments as for `forward`.

        Returns, each [B, S, K]: the cross-entropy, float32, 0 where a step has no code; whether it has one; whether that is the
            likeliest.
        """
        logits = self.logits(hidden)
        target = delay.targets(codes, n_frames, eos=self.config.eos).transpose(1, 2)  # [B, S, K]
        each = F.cross_entropy(logits.flatten(0, 2), target.flatten(), reduction="none", ignore_index=delay.IGNORED)
        return each.view(target.shape), target != delay.IGNORED, logits.detach().argmax(-1) == target

    def forward(self, hidden: Tensor, codes: Tensor, n_frames: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cross-entropy of every code and of one EOS a codebook.

        Args:
            hidden: [B, S, D]. codes: int64 [B, K, T]. n_frames: int64 [B].

        Returns: per codebook the sum of the cross-entropy, float32 [K], the number of codes, int64 [K], and how many of them
            are the likeliest one, int64 [K]; and the objective, the weighted sum over codebooks, a scalar with a gradient.
        """
        each, counted, hit = self.scores(hidden, codes, n_frames)
        ce = each.view(-1, self.config.n_codebooks).sum(0)
        weights = torch.tensor(self.config.weights, dtype=ce.dtype, device=ce.device)
        return ce.detach(), counted.sum((0, 1)), hit.sum((0, 1)), (ce * weights).sum()
