"""Shards: what is written is read back, what is damaged is refused, and texts can be shuffled."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.shards import ROW_GROUP_BYTES, Utterance, read_shard, rescale, shard_bytes, shuffled_text, write_shard


def utterance(seed: int, *, books: int = 4, phonemes: int = 0, embedding: int | None = None, frames: int = 0) -> Utterance:
    """Random but consistent; as many phonemes and frames as wanted, or as come."""
    draw = np.random.default_rng(seed)
    p = phonemes or int(draw.integers(1, 30))
    durations = draw.integers(1, 9, size=p).astype(np.uint16)
    if frames:
        durations = rescale(durations, frames)
    total = int(durations.sum())
    vector = None
    if embedding:
        vector = draw.normal(size=embedding).astype(np.float32)
        vector /= np.linalg.norm(vector)
    return Utterance(
        id=f"clip-{seed}",
        text=f"Text | of “{seed}”\n",
        spoken=f"text of {seed}",
        phonemes=draw.integers(1, 70, size=p).astype(np.uint16),
        durations=durations,
        word_starts=draw.integers(0, 2, size=p).astype(np.uint8),
        align_score=float(np.float32(-draw.random())),
        language="en-US",
        speaker="someone",
        codes=draw.integers(0, 256, size=(books, total)).astype(np.uint16),
        n_frames=total,
        speaker_embedding=vector,
        licence="CC0-1.0",
    )


def same(one: Utterance, two: Utterance) -> bool:
    for part in fields(Utterance):
        left, right = getattr(one, part.name), getattr(two, part.name)
        if isinstance(left, np.ndarray):
            if left.dtype != right.dtype or not np.array_equal(left, right):
                return False
        elif left != right:
            return False
    return True


SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True)


@given(SEEDS, st.sampled_from([1, 4, 8]), st.sampled_from([None, 1, 16]))
def test_round_trip(seeds: list[int], books: int, embedding: int | None) -> None:
    rows = [utterance(seed, books=books, embedding=embedding if seed % 3 else None) for seed in seeds]
    data = shard_bytes(rows)
    read = read_shard(data)
    assert len(read) == len(rows) and all(same(one, two) for one, two in zip(rows, read, strict=True))
    assert shard_bytes(read) == data, "equal rows give equal bytes, for shards are named by their hash"


def test_the_file_is_what_the_format_says(tmp_path: Path) -> None:
    rows = [utterance(seed, books=8, phonemes=400, frames=30000) for seed in range(6)]
    size = write_shard(tmp_path / "s.parquet", rows)
    assert size == (tmp_path / "s.parquet").stat().st_size
    file = pq.ParquetFile(tmp_path / "s.parquet")
    assert file.schema_arrow.metadata[b"format"] == b"hocket-shard/1"
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    assert len(groups) > 1 and all(group.total_byte_size <= ROW_GROUP_BYTES for group in groups)
    assert {groups[0].column(column).compression for column in range(groups[0].num_columns)} == {"ZSTD"}
    assert all(same(one, two) for one, two in zip(rows, read_shard(tmp_path / "s.parquet"), strict=True))


BREAKS: dict[str, dict[str, Any]] = {
    "durations that do not sum": {"durations": np.array([1, 2], np.uint16)},
    "a duration of zero": {"durations": np.array([0, 4], np.uint16)},
    "padding among the phonemes": {"phonemes": np.array([0, 1], np.uint16)},
    "word starts of another length": {"word_starts": np.array([1], np.uint8)},
    "codes of another length": {"codes": np.zeros((2, 5), np.uint16)},
    "no frames": {"codes": np.zeros((2, 0), np.uint16), "n_frames": 0},
    "no phonemes": {name: np.zeros(0, np.uint16) for name in ("phonemes", "durations", "word_starts")},
    "a score that is no number": {"align_score": float("nan")},
    "an embedding that is not finite": {"speaker_embedding": np.array([np.inf], np.float32)},
}


@pytest.mark.parametrize("what", BREAKS)
def test_inconsistent_rows_are_never_written(what: str) -> None:
    good = replace(
        utterance(0), phonemes=np.array([1, 2], np.uint16), durations=np.array([2, 2], np.uint16),
        word_starts=np.array([1, 0], np.uint8), codes=np.zeros((2, 4), np.uint16), n_frames=4,
    )  # fmt: skip
    shard_bytes([good])
    with pytest.raises(HocketError) as caught:
        shard_bytes([replace(good, **BREAKS[what])])
    assert caught.value.code is Code.SHARD_DAMAGED


def rewritten(change: Any) -> bytes:
    """A valid shard's table, changed and written again by pyarrow alone."""
    table = change(pq.read_table(io.BytesIO(shard_bytes([utterance(1), utterance(2)]))))
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def with_column(name: str, values: list[Any]) -> Any:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        return table.set_column(place, table.schema.field(name), pa.array(values, type=table.schema.field(name).type))

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.replace_schema_metadata({}),
        lambda table: table.replace_schema_metadata({"format": "hocket-shard/2"}),
        lambda table: table.drop_columns(["codes"]),
        lambda table: table.append_column("extra", pa.array([1, 2])),
        lambda table: table.cast(table.schema.set(10, pa.field("n_frames", pa.int64()))),
        with_column("text", ["a", None]),
        with_column("codes", [None, [1]]),
        with_column("codes", [[1, None], [1, 2]]),
        with_column("durations", [[1], [2]]),
        with_column("n_frames", [0, 0]),
        with_column("n_frames", [7, 2**31]),
    ],
)
def test_other_tables_are_refused(change: Any) -> None:
    with pytest.raises(HocketError) as caught:
        read_shard(rewritten(change))
    assert caught.value.code is Code.SHARD_DAMAGED


@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_consistent_rows(data: st.DataObject) -> None:
    whole = bytearray(shard_bytes([utterance(3), utterance(4)]))
    kind = data.draw(st.sampled_from(["cut", "flip", "noise"]))
    if kind == "cut":
        damaged = bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    elif kind == "flip":
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        damaged = bytes(whole)
    else:
        damaged = data.draw(st.binary(max_size=200))
    try:
        rows = read_shard(damaged)
    except HocketError as error:
        assert error.code is Code.SHARD_DAMAGED
        assert kind != "noise" or "Parquet" in error.detail
    else:
        assert kind == "flip"
        for row in rows:
            row.check()


def test_every_byte_may_have_its_highest_bit_flipped() -> None:
    """Found by chance once: a text that is no longer UTF-8 is a damaged shard, not a fault of ours."""
    whole = shard_bytes([utterance(3), utterance(4)])
    details = set()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 128
        try:
            read_shard(bytes(damaged))
        except HocketError as error:
            assert error.code is Code.SHARD_DAMAGED
            details.add(error.detail)
    assert any("UTF8" in detail or "UTF-8" in detail for detail in details), details


def test_codes_and_phonemes_out_of_range_are_refused() -> None:
    row = utterance(5)
    data = shard_bytes([row])
    assert len(read_shard(data, codebook_size=256, n_symbols=70)) == 1
    for limits in ({"codebook_size": int(row.codes.max())}, {"n_symbols": int(row.phonemes.max())}):
        with pytest.raises(HocketError, match="out of range"):
            read_shard(data, **limits)


def test_a_table_that_unpacks_to_too_much_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    data = shard_bytes([utterance(6)])
    monkeypatch.setattr("tokenizer.shards.MAX_SHARD_BYTES", 100)
    with pytest.raises(HocketError, match="more than 100 bytes"):
        read_shard(data)


def test_a_long_text_that_many_rows_name_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte of dictionary and runs, of which the footer tells nothing but the truth, and 10 MB once read."""
    rows = 100
    table = pa.concat_tables([pq.read_table(io.BytesIO(shard_bytes([utterance(1)])))] * rows)
    place = table.schema.get_field_index("text")
    table = table.set_column(place, table.schema.field(place), pa.array(["x" * 100_000] * rows))
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    data = stream.getvalue()
    assert len(data) < 20_000 and len(read_shard(data)) == rows
    monkeypatch.setattr("tokenizer.shards.MAX_SHARD_BYTES", 4_000_000)
    with pytest.raises(HocketError, match="more than 4000000 bytes"):
        read_shard(data)


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HocketError) as caught:
        write_shard(tmp_path / "s.parquet", [utterance(7)])
    assert caught.value.code is Code.DISK_FULL
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(0, 400))
def test_rescaled_durations_sum_exactly(durations: list[int], extra: int) -> None:
    frames = len(durations) + extra
    scaled = rescale(np.array(durations, np.uint16), frames)
    assert scaled.sum() == frames and scaled.min() >= 1 and len(scaled) == len(durations)
    for duration in set(durations):
        same = [int(value) for value, before in zip(scaled, durations, strict=True) if before == duration]
        assert max(same) - min(same) <= 1, "equal durations stay equal but for rounding"


def test_more_durations_than_frames_cannot_be() -> None:
    with pytest.raises(ValueError, match="cannot share"):
        rescale(np.array([1, 1, 1], np.uint16), 2)


@given(st.integers(2, 12), st.integers(0, 2**32))
def test_shuffled_texts_belong_to_others_and_fit(count: int, seed: int) -> None:
    rows = [utterance(index, phonemes=10 + index, frames=60 + index) for index in range(count)]
    shuffled = shuffled_text(rows, seed)
    for own, other in zip(rows, shuffled, strict=True):
        other.check()
        assert own.id == other.id and np.array_equal(own.codes, other.codes)
        assert not np.array_equal(own.phonemes, other.phonemes)
        donor = next(row for row in rows if row.text == other.text)
        assert np.array_equal(donor.phonemes, other.phonemes) and np.array_equal(donor.word_starts, other.word_starts)
    assert [row.text for row in shuffled_text(rows, seed)] == [row.text for row in shuffled]


def test_shuffles_of_other_seeds_differ() -> None:
    rows = [utterance(index, frames=60) for index in range(20)]
    orders = {tuple(row.text for row in shuffled_text(rows, seed)) for seed in range(3)}
    assert len(orders) == 3


def test_shuffling_needs_another_text_that_fits() -> None:
    long, short = utterance(1, phonemes=20), utterance(2, phonemes=3, frames=5)
    for rows in ([long], [long, short], [long, replace(long, id="again")]):
        with pytest.raises(HocketError) as caught:
            shuffled_text(rows, 0)
        assert caught.value.code is Code.CORPUS_TOO_SMALL


def test_data_rooms_need_neither_torch_nor_hivemind() -> None:
    rooms = "shards, order, reader, corpus, languages, phonemes"
    program = (
        f"import sys; from tokenizer import {rooms};"
        "assert not {'torch', 'hivemind', 'transformers', 'gruut'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
