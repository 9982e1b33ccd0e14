"""The draw of one code: a function of where it is spoken, never of what was drawn before or beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def unit_draw(seed: int, utterance: int, frame: int, codebook: int) -> float:
    """A number in [0, 1) for one code.

    So an utterance comes out the same alone, in a batch, streamed, or after others.
    """
    digest = hashlib.blake2b(f"speak/{seed}/{utterance}/{frame}/{codebook}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def choose(logits: Tensor, draws: Sequence[float], temperature: float, top_k: int) -> Tensor:
    """One code a row.

    Args:
        logits: float [N, card]. draws: N numbers in [0, 1).
        temperature: 0 takes the likeliest code. top_k: how many of the likeliest may be drawn; 0 for all.

    Returns: int64 [N].
    """
    if temperature <= 0:
        return logits.argmax(-1)
    kept = min(top_k, logits.shape[-1]) if top_k > 0 else logits.shape[-1]
    values, codes = logits.double().topk(kept, dim=-1)
    cumulated = (values / temperature).softmax(-1).cumsum(-1)
    drawn = torch.tensor(draws, dtype=cumulated.dtype, device=cumulated.device)[:, None]
    place = (cumulated <= drawn * cumulated[:, -1:]).sum(-1, keepdim=True).clamp_max(kept - 1)
    return codes.gather(-1, place).squeeze(-1)
