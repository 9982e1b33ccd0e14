"""How large a file can be that an audit asks for: known before a byte of it is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.audit_state import Kind

STATES = 6                          # weights and two moments, before and after
REQUEST_MOST_BYTES = 8 << 20        # two signed messages without their tensors
ALLOWANCE_BYTES = 1 << 20           # header and `about`
SLACK_FRAMES = 64                   # delayed codebooks, padding
SIDE_BYTES_PER_FRAME = 512          # codes and the arrays of a batch, generously
EMBEDDING_BYTES = 16_384            # of one utterance


def most_bytes(kind: Kind, model: Mapping[str, Any], state_bytes: int, tensors: int, rows: int) -> int:
    """The size beyond which a file cannot be what was asked for.

    Args:
        model: the model's configuration. state_bytes, tensors: of the stage's weights.
        rows: utterances that its microbatches may hold; none is longer than the model allows.
    """
    if kind is Kind.REQUEST:
        return REQUEST_MOST_BYTES
    frames = int(model.get("max_frames", 0)) + int(model.get("n_codebooks", 0)) + SLACK_FRAMES
    # Hidden states and their gradient, float32 [rows, frames, d_model] each, and what else travels.
    per_frame = 8 * int(model.get("d_model", 0)) + SIDE_BYTES_PER_FRAME
    passes = rows * (frames * per_frame + EMBEDDING_BYTES) + ALLOWANCE_BYTES
    return passes if kind is Kind.PASS else STATES * (state_bytes + tensors * 1024) + passes
