"""Rows of a shard out of whole columns: one check and one copy a column, then a view for each row.

Looking into an Arrow table cell by cell takes a hundred times as long as reading it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.utterance import Utterance

LISTS: dict[str, type[np.generic]] = {
    "phonemes": np.uint16,
    "durations": np.uint16,
    "word_starts": np.uint8,
    "codes": np.uint16,
}
TEXTS = ("id", "text", "spoken", "language", "speaker", "licence")


def decode_rows(table: pa.Table, *, codebook_size: int, n_symbols: int) -> list[Utterance]:
    """The rows of a table of the shard schema that has been validated.

    Args:
        codebook_size, n_symbols: codes and phoneme ids must be below these.

    Raises:
        HocketError: SHARD_DAMAGED with the row.
    """
    if table.num_rows == 0:
        return []
    for name in table.schema.names:
        if name != "speaker_embedding" and table.column(name).null_count:
            raise HocketError(Code.SHARD_DAMAGED, f"the column {name} has empty rows")
    texts = {name: table.column(name).to_pylist() for name in TEXTS}
    frames = table.column("n_frames").to_numpy().astype(np.int64)
    scores = table.column("align_score").to_numpy().astype(np.float64)
    lists = {name: _lists(table.column(name), kind) for name, kind in LISTS.items()}
    embeddings = _embeddings(table.column("speaker_embedding"))
    _check_whole(texts["id"], frames, scores, lists, embeddings, codebook_size, n_symbols)
    pieces = {name: [values[start:stop] for start, stop in pairwise(ends)] for name, (values, ends) in lists.items()}
    return [
        Utterance(
            id=texts["id"][row],
            text=texts["text"][row],
            spoken=texts["spoken"][row],
            phonemes=pieces["phonemes"][row],
            durations=pieces["durations"][row],
            word_starts=pieces["word_starts"][row],
            align_score=float(scores[row]),
            language=texts["language"][row],
            speaker=texts["speaker"][row],
            codes=pieces["codes"][row].reshape(-1, int(frames[row])),
            n_frames=int(frames[row]),
            speaker_embedding=embeddings[row],
            licence=texts["licence"][row],
        )
        for row in range(table.num_rows)
    ]


def _lists(column: pa.ChunkedArray, kind: type[np.generic]) -> tuple[NDArray[Any], list[int]]:
    """Values of a list column, copied once, and the end of each row's, 0 first."""
    array = column.combine_chunks()
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    values: list[NDArray[Any]] = []
    lengths: list[NDArray[np.int64]] = []
    for chunk in chunks:
        flat = chunk.flatten()
        if flat.null_count:
            raise HocketError(Code.SHARD_DAMAGED, "a list has an empty place")
        values.append(flat.to_numpy(zero_copy_only=False).astype(kind, copy=True))
        lengths.append(np.diff(chunk.offsets.to_numpy(zero_copy_only=False).astype(np.int64)))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    return np.concatenate(values), ends.tolist()


def _embeddings(column: pa.ChunkedArray) -> list[NDArray[np.float32] | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    found: list[NDArray[np.float32] | None] = []
    for cell in column:
        if not cell.is_valid:
            found.append(None)
            continue
        if cell.values.null_count:
            raise HocketError(Code.SHARD_DAMAGED, "a list has an empty place")
        found.append(cell.values.to_numpy(zero_copy_only=False).astype(np.float32, copy=True))
    return found


def _check_whole(
    ids: list[str],
    frames: NDArray[np.int64],
    scores: NDArray[np.float64],
    lists: dict[str, tuple[NDArray[Any], list[int]]],
    embeddings: list[NDArray[np.float32] | None],
    codebook_size: int,
    n_symbols: int,
) -> None:
    """What `Utterance.check` asks of a row, asked of all rows at once.

    Raises:
        HocketError: SHARD_DAMAGED with the first row that does not hold.
    """
    count = {name: np.diff(ends) for name, (_, ends) in lists.items()}
    p, codes = count["phonemes"], count["codes"]
    _refuse(ids, (frames == 0) | (codes == 0) | (codes % np.maximum(frames, 1) != 0), "its codes are not a whole number of books")
    odd = (p == 0) | (count["durations"] != p) | (count["word_starts"] != p)
    _refuse(ids, odd, "phonemes, durations and word starts do not belong together")
    starts = lists["phonemes"][1][:-1]
    ends = lists["codes"][1][:-1]
    # Every row has at least one value here, so that each sum is of its own row.
    _refuse(ids, _least(lists["phonemes"][0], starts) == 0, "phonemes, durations and word starts do not belong together")
    sums = np.add.reduceat(lists["durations"][0].astype(np.int64), starts)
    short = (sums != frames) | (_least(lists["durations"][0], starts) == 0)
    _refuse(ids, short, "durations do not sum to its frames, or one is 0")
    _refuse(ids, ~np.isfinite(scores), "its alignment score is not finite")
    beyond = (np.maximum.reduceat(lists["codes"][0], ends) >= codebook_size) | (
        np.maximum.reduceat(lists["phonemes"][0], starts) >= n_symbols
    )
    _refuse(ids, beyond, "a code or phoneme id is out of range")
    bad = np.array([vector is not None and not np.isfinite(vector).all() for vector in embeddings])
    _refuse(ids, bad, "its speaker embedding is not finite")


def _least(values: NDArray[Any], starts: list[int]) -> NDArray[Any]:
    least: NDArray[Any] = np.minimum.reduceat(values, starts)
    return least


def _refuse(ids: list[str], wrong: NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        raise HocketError(Code.SHARD_DAMAGED, f"{ids[int(np.argmax(wrong))]}: {what}")
