"""The footer says what pyarrow says of it, and a damaged one is an error: never the end of the process."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_dataset import made_up_row

from common.errors import Code, HocketError
from tokenizer.parquet_footer import MAX_FOOTER_BYTES, ColumnFacts, parse_footer, read_footer
from tokenizer.shards import MAX_EMBEDDING, read_shard, shard_bytes

ROWS = st.lists(st.tuples(st.text(max_size=9), st.lists(st.integers(0, 65535), max_size=5)), min_size=1, max_size=30)


@given(ROWS, st.integers(1, 40), st.booleans())
def test_it_says_what_pyarrow_says(rows: list[tuple[str, list[int]]], group: int, dictionary: bool) -> None:
    out = io.BytesIO()
    table = pa.table({"text": [text for text, _ in rows], "codes": pa.array([codes for _, codes in rows], pa.list_(pa.uint16()))})
    pq.write_table(table, out, row_group_size=group, use_dictionary=dictionary)
    metadata = pq.ParquetFile(io.BytesIO(out.getvalue())).metadata
    expected = [
        [
            ColumnFacts(
                column.path_in_schema,
                column.num_values,
                column.total_uncompressed_size,
                column.has_dictionary_page or any("DICT" in name for name in column.encodings),
            )
            for column in (metadata.row_group(index).column(place) for place in range(metadata.num_columns))
        ]
        for index in range(metadata.num_row_groups)
    ]
    assert read_footer(out.getvalue()) == expected


def test_of_a_file_only_the_end_is_read(tmp_path: Path) -> None:
    data = shard_bytes([made_up_row(number) for number in range(5)])
    (tmp_path / "s.parquet").write_bytes(data)
    assert read_footer(tmp_path / "s.parquet") == read_footer(data) == read_footer(memoryview(data))
    assert sum(column.path == "id" for group in read_footer(data) for column in group) == 1


@given(st.binary(max_size=300))
def test_noise_is_an_error(noise: bytes) -> None:
    try:
        parse_footer(noise)
    except ValueError:
        return
    assert parse_footer(noise) == [] or noise, "what it lets pass has all that is asked for"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"\x00\x00\x00\x00PAR2",
        (MAX_FOOTER_BYTES + 1).to_bytes(4, "little") + b"PAR1",
        b"\xff\xff\xff\x7fPAR1",
        b"\x49\xff\xff\xff\xff\x0f" + b"\x06\x00\x00\x00PAR1",  # a list of four thousand million entries
        b"\x4c" * 60 + b"\x3c\x00\x00\x00PAR1",  # structs in structs
        b"\x45" + b"\xff" * 12 + b"\x0d\x00\x00\x00PAR1",  # a number without an end
    ],
)
def test_hostile_footers_are_errors(data: bytes) -> None:
    with pytest.raises(ValueError, match="it"):
        read_footer(data)


FUZZ = """
import random, sys
from pathlib import Path
from common.errors import HocketError
from tokenizer.corpora.table import scan_table
from tokenizer.shards import read_shard
whole, folder, draw = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), random.Random(int(sys.argv[3]))
footer = int.from_bytes(whole[-8:-4], "little")
refused = 0
for _ in range(1500):
    damaged = bytearray(whole)
    for _ in range(draw.randint(1, 3)):
        damaged[draw.randrange(len(whole) - 8 - footer, len(whole))] = draw.randrange(256)
    try:
        if sys.argv[4] == "shard":
            read_shard(bytes(damaged))
        else:
            (folder / "t.parquet").write_bytes(damaged)
            scan_table(folder / "t.parquet")
    except HocketError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("kind", ["shard", "table"])
def test_no_damaged_footer_ends_the_process(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "whole"
    if kind == "shard":
        path.write_bytes(shard_bytes([made_up_row(number) for number in range(4)]))
    else:
        pq.write_table(pa.table({"path": ["a.wav"] * 3, "text": ["x", "y", "z"], "id": ["1", "2", "3"]}), path)
    seed = random.Random(kind).randrange(1000)
    command = [sys.executable, "-c", FUZZ, str(path), str(tmp_path), str(seed), kind]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert int(ran.stdout) > 500


def test_an_embedding_of_a_thousand_million_numbers_is_refused_before_room_is_made_for_it(tmp_path: Path) -> None:
    # One changed character of the schema that Arrow keeps in the footer is enough to ask for 16 GB.
    path = tmp_path / "whole"
    path.write_bytes(shard_bytes([made_up_row(number) for number in range(4)]))
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from common.errors import HocketError\nfrom tokenizer.shards import read_shard\n"
        "whole = open(sys.argv[1], 'rb').read()\n"
        "length = int.from_bytes(whole[-8:-4], 'little')\n"
        "for at in range(len(whole) - 8 - length, len(whole) - 8, 3):\n"
        "    for value in (57, 65, 81):\n"
        "        damaged = bytearray(whole); damaged[at] = value\n"
        "        try:\n            read_shard(bytes(damaged))\n"
        "        except HocketError as error:\n            assert 'malloc' not in error.detail, error.detail\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)


def test_embeddings_are_bounded() -> None:
    vector = np.zeros(MAX_EMBEDDING + 1, np.float32)
    vector[0] = 1
    with pytest.raises(HocketError) as caught:
        shard_bytes([made_up_row(1, speaker_embedding=vector)])
    assert caught.value.code is Code.SHARD_DAMAGED
    (row,) = read_shard(shard_bytes([made_up_row(1, speaker_embedding=vector[:-1])]))
    assert row.speaker_embedding is not None and len(row.speaker_embedding) == MAX_EMBEDDING
