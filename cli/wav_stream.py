"""WAV to a player while it is being made: a header that leaves the length open, then samples as they come."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

OPEN_LENGTH = 0xFFFFFFFF  # what players take as "until the stream ends"


def stream_wav(out: BinaryIO, blocks: Iterable[NDArray[np.float32]], sample_rate: int) -> None:
    """Write 16-bit mono WAV, flushed after every block; what is beyond full scale is clipped.

    A reader that goes away ends the writing quietly, as it does with any command in a pipe.

    Args:
        blocks: float32 [N] each.
    """
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    header = struct.pack("<4sI4s", b"RIFF", OPEN_LENGTH, b"WAVE") + form + struct.pack("<4sI", b"data", OPEN_LENGTH)
    try:
        out.write(header)
        for block in blocks:
            out.write((np.clip(block, -1.0, 1.0) * 32767).round().astype("<i2").tobytes())
            out.flush()
    except BrokenPipeError:
        return
