"""Tables of clips, a row each: CSV, TSV, JSON lines, Parquet. Read row by row, so that a large one needs no more memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from tokenizer.corpora.model import unreadable
from tokenizer.corpora.rows import SYNONYMS, RowReader, columns_of
from tokenizer.parquet_footer import read_footer

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
MAX_LINE = 1 << 20  # characters of a line
MAX_GROUP_BYTES = 1 << 30  # of the columns of a Parquet's row group that are read
CORRECT = "correct that line, or leave it out"
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
        raise unreadable(f"{path} has no rows", "check that it is the right file")
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
    folded = [name.strip().lower() for name in names]
    for name in columns.values():
        if folded.count(name.strip().lower()) > 1:
            raise unreadable(f"{path} has several columns of the name {name.strip()}", "leave one of them")
    if "audio" not in columns:
        known = ", ".join(SYNONYMS["audio"])
        found = ", ".join(names[:12])[:200]
        raise unreadable(f"{path} has no column for the recording ({found})", f"name it one of {known}")


def _delimiter(head: str, path: Path) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(",;\t|", key=head.count)


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Lines with their ends; one that never ends is not waited for."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise unreadable(f"line {number} of {path} is longer than {MAX_LINE} characters", CORRECT)
        yield line


def _csv(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file.readline(MAX_LINE), path)
            file.seek(0)
            lines = _lines(file, path)
            rows = _unquoted(lines, delimiter) if delimiter in "\t|" else _quoted(lines, delimiter)
            _, names = next(rows, (0, []))
            if names:
                _check_columns(path, columns_of(names), names)
            for number, row in rows:
                if len(row) != len(names):
                    detail = f"line {number} of {path} has {len(row)} fields, the header {len(names)}"
                    raise unreadable(detail, f"{CORRECT}; is {delimiter!r} what stands between its fields")
                yield f"line {number}", dict(zip(names, row, strict=True))
    except OSError as error:
        raise unreadable(f"{path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise unreadable(f"{path} is not UTF-8", "save it as UTF-8") from error
    except csv.Error as error:
        raise unreadable(f"{path}: {error}", "end every quotation, and double quotation marks inside of one") from error


def _quoted(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV (RFC 4180), each with the number of its last line."""
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    for row in rows:
        if row:
            yield rows.line_num, row


def _unquoted(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows between tabs or bars, one a line. Some programs quote such fields and some do not: marks are taken off a field that is
    quoted as a whole, and others are the text's own."""
    for number, line in enumerate(lines, start=1):
        if line := line.rstrip("\r\n"):
            yield number, [_without_marks(field) for field in line.split(delimiter)]


def _without_marks(field: str) -> str:
    inner = field[1:-1]
    is_quoted = len(field) >= 2 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else field


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
                    raise unreadable(f"line {number} of {path} is no JSON in UTF-8", "write one object a line") from error
                if not isinstance(row, dict):
                    raise unreadable(f"line {number} of {path} is no object", "write one object a line")
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
                if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                    detail = f"the column {name} of {path} is {str(kind)[:80]}"
                    raise unreadable(detail, "write texts and paths of recordings, not bytes or lists")
            _check_groups(path, set(columns.values()))
            number = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=list(columns.values())):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not UTF-8
        detail = f"{path} is no Parquet file that can be read ({str(error)[:120]})"
        raise unreadable(detail, "write it again, and check that it is whole") from error


def _check_groups(path: Path, names: set[str]) -> None:
    """Find out before it is unpacked that a row group would not fit in memory."""
    for group, columns in enumerate(read_footer(path)):
        size = sum(column.uncompressed_bytes for column in columns if column.path in names)
        if size > MAX_GROUP_BYTES:
            detail = f"row group {group} of {path} unpacks to {size} bytes, at most {MAX_GROUP_BYTES} are read"
            raise unreadable(detail, "write it in smaller row groups")
