"""The rows of a dataset, of aligned clips and of those without transcript; long clips are cut at pauses. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenizer.align_stage import Aligned
from tokenizer.cuts import cut_at_pauses, piece_arrays
from tokenizer.dataset_writer import Row
from tokenizer.encode_jobs import Encoded
from tokenizer.items import Item
from tokenizer.phonemes import inventory_for

logger = logging.getLogger(__name__)

MAX_CLIP_S = 20.0
MIN_PIECE_S = 1.0


def rows_of(
    items: Sequence[Item], encoded: Sequence[Encoded], aligned: Mapping[str, Aligned], frame_rate: float, max_clip_s: float
) -> list[Row]:
    """Rows in the order of the items. A clip that is refused has none; one longer than `max_clip_s` has one for each piece.

    A clip without transcript is one row with the phoneme END over all its frames and a score of 0.
    """
    paths: dict[int, tuple[NDArray[np.uint16], float]] = {}
    for found in aligned.values():
        for place, index in enumerate(found.indices):
            if place not in found.judged.refused:
                paths[index] = (found.durations[place], found.scores[place])
    rows: list[Row] = []
    for index, (item, result) in enumerate(zip(items, encoded, strict=True)):
        if result.code is not None:
            continue
        if not item.transcribed:
            whole = np.array([result.frames], np.uint16)
            rows.append(_row(index, item, whole, 0.0, result.frames))
        elif index in paths:
            durations, score = paths[index]
            if result.frames > max_clip_s * frame_rate:
                rows += _pieces(index, item, durations, score, frame_rate, max_clip_s)
            else:
                rows.append(_row(index, item, durations, score, result.frames))
    return rows


def _row(index: int, item: Item, durations: NDArray[np.uint16], score: float, frames: int) -> Row:
    return Row(index, item.id, item.text, item.spoken, item.phonemes, durations, item.word_starts, score, slice(0, frames))


def _pieces(
    index: int, item: Item, durations: NDArray[np.uint16], score: float, frame_rate: float, max_clip_s: float
) -> Iterator[Row]:
    """The pieces of a clip; the whole clip where it has no pause to cut at, or where its words cannot be told apart."""
    symbols = inventory_for([item.language]).symbols
    spoken, written = item.spoken.split(), item.text.split()
    cuts = cut_at_pauses(
        item.phonemes, durations, item.word_starts, symbols=symbols, frame_rate=frame_rate, max_s=max_clip_s,
        min_s=min(MIN_PIECE_S, max_clip_s / 2),
    )  # fmt: skip
    if len(cuts) == 1 or len(spoken) != int(item.word_starts.sum()):
        logger.warning("%s lasts %.1f s and cannot be cut at a pause", item.id, int(durations.sum()) / frame_rate)
        yield _row(index, item, durations, score, int(durations.sum(dtype=np.int64)))
        return
    for number, cut in enumerate(cuts, start=1):
        ids, lengths, starts = piece_arrays(cut, item.phonemes, durations, item.word_starts, symbols=symbols)
        words = " ".join(spoken[cut.words])
        # Where numbers and the like are written out, the words of the text are not those that are said.
        text = " ".join(written[cut.words]) if len(written) == len(spoken) else words
        yield Row(index, f"{item.id}-part{number}", text, words, ids, lengths, starts, score, cut.frames)
