"""Shards: tokenised utterances in Parquet, one row each, `hocket-shard/1`.

A shard that comes from a peer is first checked against its CID by the reader; here its declared sizes are checked before
anything is decompressed, and every row before it is given out. No torch.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.files import atomic_write
from protocol.manifest import MAX_EMBEDDING
from tokenizer.parquet_footer import ColumnFacts, read_footer
from tokenizer.shard_decode import TEXTS, decode_rows
from tokenizer.utterance import Utterance

__all__ = [
    "Utterance", "group_rows", "open_shard", "read_group", "read_shard", "rescale", "shard_bytes", "shuffled_text", "write_shard",
]  # fmt: skip

FORMAT = "hocket-shard/1"
ROW_GROUP_BYTES = 2**20
MAX_SHARD_BYTES = 256 * 2**20  # decompressed; larger ones are refused before they are read
COMPRESSION = "zstd"
# Few values, often repeated: as a dictionary a code takes as many bits as its codebook needs, before compression.
DICTIONARIES = [
    "language", "speaker", "licence", "codes.list.element", "phonemes.list.element", "durations.list.element",
    "word_starts.list.element",
]  # fmt: skip


def _schema(embedding_size: int) -> pa.Schema:
    fields = [
        ("id", pa.string()),
        ("text", pa.string()),
        ("spoken", pa.string()),
        ("phonemes", pa.list_(pa.uint16())),
        ("durations", pa.list_(pa.uint16())),
        ("word_starts", pa.list_(pa.uint8())),
        ("align_score", pa.float32()),
        ("language", pa.string()),
        ("speaker", pa.string()),
        ("codes", pa.list_(pa.uint16())),
        ("n_frames", pa.uint32()),
        ("speaker_embedding", pa.list_(pa.float32(), embedding_size)),
        ("licence", pa.string()),
    ]
    return pa.schema(fields, metadata={"format": FORMAT})


def shard_bytes(rows: Sequence[Utterance]) -> bytes:
    """A shard with these rows; the same rows give the same bytes (for one version of pyarrow).

    Raises:
        HocketError: SHARD_DAMAGED if a row is not consistent; CORPUS_TOO_SMALL without rows.
    """
    if not rows:
        raise HocketError(Code.CORPUS_TOO_SMALL, "a shard without utterances")
    for row in rows:
        row.check()
    sizes = {len(row.speaker_embedding) for row in rows if row.speaker_embedding is not None}
    if len(sizes) > 1 or max(sizes, default=1) > MAX_EMBEDDING:
        raise HocketError(Code.SHARD_DAMAGED, f"speaker embeddings of {sorted(sizes)} numbers in one shard")
    schema = _schema(sizes.pop() if sizes else 1)
    stream = io.BytesIO()
    with pq.ParquetWriter(stream, schema, compression=COMPRESSION, use_dictionary=DICTIONARIES) as writer:
        start = 0
        while start < len(rows):
            stop, size = start, 0
            while stop < len(rows) and (stop == start or size + rows[stop].size_bytes <= ROW_GROUP_BYTES):
                size += rows[stop].size_bytes
                stop += 1
            writer.write_table(_table(rows[start:stop], schema), row_group_size=stop - start)
            start = stop
    return stream.getvalue()


def _table(rows: Sequence[Utterance], schema: pa.Schema) -> pa.Table:
    columns = {
        "phonemes": [row.phonemes for row in rows],
        "durations": [row.durations for row in rows],
        "word_starts": [row.word_starts for row in rows],
        "codes": [np.ascontiguousarray(row.codes).reshape(-1) for row in rows],
        "speaker_embedding": [row.speaker_embedding for row in rows],
    }
    arrays = [
        pa.array(columns.get(field.name) or [getattr(row, field.name) for row in rows], type=field.type) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_shard(path: Path, rows: Sequence[Utterance]) -> int:
    """Write a shard whole or not at all; its size in bytes. Raises what `shard_bytes` does, DISK_FULL, STATE_UNREADABLE."""
    data = shard_bytes(rows)
    atomic_write(path, data)
    return len(data)


def read_shard(source: bytes | memoryview | Path, *, codebook_size: int = 65536, n_symbols: int = 65536) -> list[Utterance]:
    """The utterances of a shard, each checked.

    Args:
        source: bytes of a shard, or its path.
        codebook_size, n_symbols: codes and phoneme ids must be below these.

    Raises:
        HocketError: SHARD_DAMAGED with the reason.
    """
    with open_shard(source) as file:
        return _read(file, None, codebook_size, n_symbols)


@contextmanager
def open_shard(source: bytes | memoryview | Path) -> Iterator[pq.ParquetFile]:
    """A shard whose header has been checked; of a path only the footer is read.

    Raises:
        HocketError: SHARD_DAMAGED.
    """
    try:
        groups = read_footer(source)
        file = pq.ParquetFile(source if isinstance(source, Path) else pa.BufferReader(source))
        _check_header(file, groups)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise HocketError(Code.SHARD_DAMAGED, f"it is not a readable Parquet file ({str(error)[:120]})") from error
    try:
        yield file
    finally:
        file.close()


def group_rows(file: pq.ParquetFile) -> list[int]:
    """Rows of each row group of an opened shard."""
    return [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]


def read_group(file: pq.ParquetFile, group: int, *, codebook_size: int = 65536, n_symbols: int = 65536) -> list[Utterance]:
    """The utterances of one row group of an opened shard, each checked; nothing else of the file is read.

    Raises:
        HocketError: SHARD_DAMAGED.
    """
    return _read(file, group, codebook_size, n_symbols)


def _read(file: pq.ParquetFile, group: int | None, codebook_size: int, n_symbols: int) -> list[Utterance]:
    try:
        table = file.read(use_threads=False) if group is None else file.read_row_group(group, use_threads=False)
        table.validate(full=True)  # offsets and UTF-8, which reading alone takes on trust
    except (OSError, pa.ArrowException, ValueError) as error:
        raise HocketError(Code.SHARD_DAMAGED, f"it is not a readable Parquet file ({str(error)[:120]})") from error
    return decode_rows(table, codebook_size=codebook_size, n_symbols=n_symbols)


def _check_header(file: pq.ParquetFile, columns: list[list[ColumnFacts]]) -> None:
    metadata, schema = file.metadata, file.schema_arrow
    if (schema.metadata or {}).get(b"format") != FORMAT.encode():
        raise HocketError(Code.SHARD_DAMAGED, f"it is not of the format {FORMAT}")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    values = sum(column.n_values for group in columns for column in group)
    # Repeated values take almost no room in a file, so their number is bounded as well as their bytes.
    texts = sum(_most_text_bytes(group) for group in columns)
    if max(sum(group.total_byte_size for group in groups), 4 * values, texts) > MAX_SHARD_BYTES:
        raise HocketError(Code.SHARD_DAMAGED, f"it says to hold more than {MAX_SHARD_BYTES} bytes")
    embedding = schema.field("speaker_embedding").type if "speaker_embedding" in schema.names else None
    size = embedding.list_size if isinstance(embedding, pa.FixedSizeListType) else 0
    if not 1 <= size <= MAX_EMBEDDING or not schema.equals(_schema(size), check_metadata=False):
        raise HocketError(Code.SHARD_DAMAGED, f"its columns are not those of {FORMAT}")


def _most_text_bytes(group: list[ColumnFacts]) -> int:
    """Bound of what a row group's texts take once read: with a dictionary, each row may name its longest entry."""
    texts = (column for column in group if column.path in TEXTS and column.has_dictionary)
    return sum(column.n_values * column.uncompressed_bytes for column in texts)


def shuffled_text(utterances: Sequence[Utterance], seed: int) -> list[Utterance]:
    """The same codes, each with the text of another utterance: what a model that reads its text must find harder.

    The other text's durations are scaled so that they sum to the codes' frames, each at least 1.

    Args:
        utterances: at least two that differ in phonemes.
        seed: of the pairing; other seeds give other pairings.

    Raises:
        HocketError: CORPUS_TOO_SMALL if an utterance finds no other text with no more phonemes than it has frames.
    """
    order = [int(index) for index in np.random.default_rng(seed).permutation(len(utterances))]
    result: list[Utterance | None] = [None] * len(order)
    for place, index in enumerate(order):
        own = utterances[index]
        for step in range(1, len(order)):
            other = utterances[order[(place + step) % len(order)]]
            if len(other.phonemes) <= own.n_frames and not np.array_equal(other.phonemes, own.phonemes):
                result[index] = replace(
                    own,
                    text=other.text,
                    spoken=other.spoken,
                    phonemes=other.phonemes,
                    word_starts=other.word_starts,
                    durations=rescale(other.durations, own.n_frames),
                )
                break
        else:
            raise HocketError(Code.CORPUS_TOO_SMALL, f"no other text fits the {own.n_frames} frames of {own.id}")
    return [utterance for utterance in result if utterance is not None]


def rescale(durations: NDArray[np.uint16], n_frames: int) -> NDArray[np.uint16]:
    """Durations in about the same proportions that sum to `n_frames`, each at least 1; ValueError if there are more of them."""
    p = len(durations)
    if p > n_frames or p == 0:
        raise ValueError(f"{p} durations cannot share {n_frames} frames")
    ends = np.cumsum(durations, dtype=np.int64)
    # Each gets one frame; the rest is shared in proportion, rounded at the ends so that the sum is exact.
    shared = ends * (n_frames - p) // ends[-1] + np.arange(1, p + 1)
    return np.diff(shared, prepend=0).astype(np.uint16)
