"""Tables of clips, a row each: CSV, TSV, JSON lines, Parquet. Read row by row, so that a large one needs no more memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizer.corpora.model import unreadable
from tokenizer.corpora.rows import SYNONYMS, RowReader, columns_of

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
MAX_LINE = 1 << 20  # characters of a line, or of a field of a CSV
ROWS_AT_A_TIME = 1024


def scan_table(path: Path) -> RowReader:
    """The clips of a table, in its order, with what was refused.

    Raises:
        HocketError: CORPUS_UNREADABLE with the line.
    """
    suffix = path.suffix.lower()
    reader: RowReader | None = None
    rows = _parquet(path) if suffix == ".parquet" else _json_lines(path) if suffix in (".jsonl", ".ndjson") else _csv(path)
    for where, row in rows:
        if reader is None or suffix in (".jsonl", ".ndjson"):
            columns = columns_of(list(row))
            if reader is None:
                _check_columns(path, columns, list(row))
                reader = RowReader(path.parent, columns)
            reader.columns = {**reader.columns, **columns}
        reader.take(row, where)
    if reader is None:
        raise unreadable(f"{path} has no rows")
    return reader


def is_table(path: Path) -> bool:
    """Whether a CSV begins with a header that names a recording's column."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            head = file.readline(MAX_LINE)
    except OSError as error:
        raise unreadable(f"{path} ({error.strerror})") from error
    return "audio" in columns_of(head.strip().split(_delimiter(head, path)))


def _check_columns(path: Path, columns: Mapping[str, str], names: list[str]) -> None:
    if "audio" not in columns:
        known = ", ".join(SYNONYMS["audio"])
        found = ", ".join(names[:12])[:200]
        raise unreadable(f"{path} has no column for the recording ({found})", f"name it one of {known}")


def _delimiter(head: str, path: Path) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(",;\t|", key=head.count)


def _csv(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    csv.field_size_limit(MAX_LINE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(MAX_LINE)
            file.seek(0)
            rows = csv.reader(file, delimiter=_delimiter(head, path), strict=True)
            names = next(rows, [])
            for row in rows:
                if not row:
                    continue
                if len(row) != len(names):
                    raise unreadable(f"line {rows.line_num} of {path} has {len(row)} fields, the header {len(names)}")
                yield f"line {rows.line_num}", dict(zip(names, row, strict=True))
    except OSError as error:
        raise unreadable(f"{path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise unreadable(f"{path} is not UTF-8", "save it as UTF-8") from error
    except csv.Error as error:
        raise unreadable(f"{path}: {error}") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise unreadable(f"line {number} of {path} is longer than {MAX_LINE} bytes", "write one object a line")
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise unreadable(f"line {number} of {path} is no JSON in UTF-8") from error
                if not isinstance(row, dict):
                    raise unreadable(f"line {number} of {path} is no object")
                yield f"line {number}", row
    except OSError as error:
        raise unreadable(f"{path} ({error.strerror})") from error


def _parquet(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = columns_of(file.schema_arrow.names)
            _check_columns(path, columns, file.schema_arrow.names)
            for name in columns.values():
                kind = file.schema_arrow.field(name).type
                if pa.types.is_nested(kind):
                    raise unreadable(f"the column {name} of {path} is {kind}", "write paths of recordings, not their bytes")
            number = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=list(columns.values())):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, pa.ArrowException) as error:
        raise unreadable(f"{path} is no Parquet file that can be read ({str(error)[:120]})") from error
