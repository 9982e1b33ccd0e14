"""Embeddings of a recording's windows in a temporary file: written once, read block by block as often as needed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tokenizer.recordings.embed import DIM

RECORD = np.dtype([("track", "<i8"), ("centre", "<i8"), ("frames", "<i4"), ("vector", "<f4", (DIM,))])
BLOCK = 512  # records in memory at a time


class Spool:
    """Records of (track, centre in samples, frames used, embedding), in the order of their windows.

    What is known of a window when it is chosen comes first (`expect`), its embedding later (`embedded`), in the same order.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._waiting: list[NDArray] = []
        self._records = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._records

    def expect(self, tracks: NDArray[np.int64], centres: NDArray[np.int64], frames: NDArray[np.int64]) -> None:
        """Windows whose embeddings will come: [N] each."""
        records = np.zeros(len(tracks), RECORD)
        records["track"], records["centre"], records["frames"] = tracks, centres, frames
        self._waiting.append(records)

    def embedded(self, vectors: NDArray[np.float32]) -> None:
        """The embeddings [N, 256] of the first N windows that wait for theirs."""
        waiting = np.concatenate(self._waiting)
        done, self._waiting = waiting[: len(vectors)], [waiting[len(vectors) :].copy()]
        done["vector"] = vectors
        self._file.write(done.tobytes())
        self._records += len(done)

    def blocks(self) -> Iterator[NDArray]:
        """The records in blocks of at most BLOCK, sorted by time within each."""
        self._file.seek(0)
        while raw := self._file.read(BLOCK * RECORD.itemsize):
            records = np.frombuffer(raw, RECORD)
            yield records[np.argsort(records["centre"], kind="stable")]
