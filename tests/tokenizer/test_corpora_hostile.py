"""Tables, folders and tars that anyone may have made: nothing leaves the folder, nothing is guessed, nothing falls over."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.audio import read_audio
from tokenizer.corpora import table
from tokenizer.corpus import Corpus, scan_corpus

SLOW_FIXTURE = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder "corpus" with a.wav, and something outside of it."""
    made = tmp_path / "corpus"
    made.mkdir()
    soundfile.write(made / "a.wav", sound(), 16000)
    (tmp_path / "secret.txt").write_text("the secret")
    return made


def sound() -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(1600) * 0.1).astype(np.float32)


def wav() -> bytes:
    out = io.BytesIO()
    soundfile.write(out, sound(), 16000, format="WAV")
    return out.getvalue()


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(found: Corpus) -> dict[str, str]:
    assert all("\n" not in item.line() and item.line().encode() for item in found.refused), "one line each, in UTF-8"
    return {item.id: item.line() for item in found.refused}


def error_of(path: Path) -> HocketError:
    with pytest.raises(HocketError) as caught:
        scan_corpus(path)
    assert caught.value.code is Code.CORPUS_UNREADABLE and caught.value.line().encode()
    return caught.value


CELLS: list[tuple[dict[str, Any], str]] = [
    ({"path": "."}, "no file"),
    ({"path": "/"}, "no file"),
    ({"path": ".."}, "outside"),
    ({"path": "b/../../secret.txt"}, "outside"),
    ({"path": "../corpus/a.wav/../../secret.txt"}, ""),
    ({"path": "\ud800.wav"}, "not UTF-8"),
    ({"path": "a\n.wav"}, "control characters"),
    ({"path": ["a.wav"]}, "list"),
    ({"path": {"bytes": "x"}}, "dict"),
    ({"path": 5}, "does not exist"),
    ({"path": True}, "bool"),
    ({"text": {"en": "x"}}, "dict"),
    ({"text": ["x", "y"]}, "list"),
    ({"text": False}, "bool"),
    ({"text": "half \ud83d"}, "surrogate"),
    ({"text": "a\0b"}, "NUL"),
    ({"text": "x" * 200_000}, "200000 characters"),
    ({"id": "a\nH201 forged"}, "control characters"),
    ({"id": "x" * 1000}, "1000 characters"),
    ({"speaker": "A\u2028B"}, "control characters"),
    ({"language": "JP"}, "ja"),
    ({"start": "nan"}, "seconds"),
    ({"start": -1}, "seconds"),
    ({"start": 1, "end": 1}, "before its start"),
    ({"end": 1e300}, "seconds"),
    ({"subtitles": "../secret.txt"}, "outside"),
]


@pytest.mark.parametrize(("cell", "part"), CELLS, ids=[str(cell)[:40] for cell, _ in CELLS])
def test_a_cell_that_does_not_fit_costs_its_row_alone(folder: Path, cell: dict[str, Any], part: str) -> None:
    rows = [{"id": "first", "path": "a.wav", "text": "x"}, {"path": "a.wav", "text": "y", **cell}]
    found = scan_corpus(write(folder / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert [clip.id for clip in found.clips] == ["first"] and len(refused(found)) == 1
    assert part in next(iter(refused(found).values())) and "line 2" in found.refused[0].reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
COLUMNS = st.sampled_from(["path", "text", "id", "speaker", "language", "start", "end", "duration", "licence", "subtitles"])


@given(st.lists(st.dictionaries(COLUMNS, JSON, max_size=6), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_FIXTURE)
def test_whatever_rows_hold_each_is_a_clip_or_a_refusal(folder: Path, rows: list[dict[str, object]]) -> None:
    write(folder / "t.jsonl", "".join(json.dumps({"path": "a.wav", **row}) + "\n" for row in rows))
    found = scan_corpus(folder / "t.jsonl")
    assert len(found.clips) + len(found.recordings) + len(refused(found) or found.refused) <= len(rows)
    assert len(found.clips) + len(found.recordings) + len(found.refused) == len(rows)
    assert all(isinstance(clip.text, str) and clip.text.encode() and clip.audio.path.is_file() for clip in found.clips)


WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\t|\u2028\u2029"), max_size=20)


@given(st.lists(WORDS, min_size=1, max_size=8), st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=SLOW_FIXTURE)
def test_tabs_with_quotation_marks_or_without(folder: Path, texts: list[str], quoted: bool) -> None:
    with (folder / "t.tsv").open("w", encoding="utf-8", newline="") as file:
        if quoted:
            writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
            writer.writerows([["id", "path", "sentence"], *([f"r{n}", "a.wav", text] for n, text in enumerate(texts))])
        else:
            file.writelines(["id\tpath\tsentence\n", *(f"r{n}\ta.wav\t{text} end\n" for n, text in enumerate(texts))])
    found = scan_corpus(folder / "t.tsv")
    wanted = {f"r{n}": (text if quoted else f"{text} end").strip() for n, text in enumerate(texts)}
    assert {clip.id: clip.text for clip in found.clips} == {name: text for name, text in wanted.items() if text}


def test_marks_in_unquoted_tables_are_the_texts_own(folder: Path) -> None:
    rows = 'id\tpath\tsentence\na\ta.wav\t"Hi" she said\nb\ta.wav\t"Unended\nc\ta.wav\t"""Why?"" he asked."\n'
    found = scan_corpus(write(folder / "t.tsv", rows))
    assert [clip.text for clip in found.clips] == ['"Hi" she said', '"Unended', '"Why?" he asked.']


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_ends_of_lines_delimiters_and_marks_of_order(folder: Path, end: str, delimiter: str, mark: str) -> None:
    rows = [["ID", " Path", "Sentence"], ["x", "a.wav", "One."], [], ["y", "a.wav", "Two."]]
    write(folder / "t.csv", mark + end.join(delimiter.join(row) for row in rows) + end)
    assert [(clip.id, clip.text) for clip in scan_corpus(folder / "t.csv").clips] == [("x", "One."), ("y", "Two.")]


def test_quoted_fields_hold_ends_of_lines_and_delimiters(folder: Path) -> None:
    found = scan_corpus(write(folder / "t.csv", 'path,text,id\na.wav,"One,\ntwo ""three"".",x\na.wav,four,y\n'))
    assert [(clip.id, clip.text) for clip in found.clips] == [("x", 'One,\ntwo "three".'), ("y", "four")]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("t.csv", b"path,text,text\na.wav,x,y\n", "several columns"),
        ("t.csv", b"path,text\n", "no rows"),
        ("t.csv", "path,text\na.wav,x\n".encode("utf-16"), "UTF-8"),
        ("t.csv", "path,text\na.wav,\xe9\n".encode("latin-1"), "UTF-8"),
        ("t.csv", b"path,text\na.wav,one, two\n", "line 2"),
        ("t.csv", b'path,text\na.wav,"x" y\n', "double quotation marks"),
        ("t.csv", b"path;text\na.wav,x\n", "line 2"),
        ("t.tsv", b"path,text\na.wav,x\n", "no column for the recording"),
        ("t.csv", b"path,text\n" + b"x" * (1 << 21), "line 2"),
        ("t.csv", b"\0" * 4096, "no column"),
        ("t.jsonl", b'{"path": "a.wav", "text": "x"}\n{"path"\n', "line 2"),
        ("t.jsonl", b'{"path": "a.wav", "text": "\xff"}\n', "line 1"),
        ("t.jsonl", b"9" * 5000 + b"\n", "line 1"),
        ("t.jsonl", b'{"wav_file_of_the_clip": "a.wav"}\n', "no column for the recording"),
        ("t.json", b"[]", "one object a line"),
        ("t.tar", b"\0" * 700, "t.tar"),
        ("t.zip", b"PK\x03\x04", "no corpus"),
    ],
)
def test_tables_that_are_none_say_what_to_do(folder: Path, name: str, content: bytes, part: str) -> None:
    if name == "t.tar" and not content.strip(b"\0"):
        with pytest.raises(HocketError):
            scan_corpus(write(folder / name, content))
        return
    error = error_of(write(folder / name, content))
    assert part in error.line() and "LJSpeech" not in error.remedy


def test_a_line_of_100_mb_is_not_read(folder: Path) -> None:
    with (folder / "t.jsonl").open("wb") as file:
        file.write(b'{"path": "a.wav", "text": "')
        file.truncate(100 * 2**20)
    tracemalloc.start()
    error = error_of(folder / "t.jsonl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "line 1" in error.detail and peak < 8 * 2**20


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_large_table_is_read_row_by_row(folder: Path, suffix: str) -> None:
    path = folder / f"t.{suffix}"
    rows = [{"id": f"r{n}", "path": "a.wav", "text": f"row {n}", "note": "not read " * 200} for n in range(4000)]
    if suffix == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    scan_corpus(path)  # what is imported on the way is no part of it
    tracemalloc.start()
    found = scan_corpus(path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.clips) == 4000 and kept / 4000 < 2000
    assert peak - kept < 3 * 2**20, "the table has 7 MB"


def test_parquet_of_other_shapes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "t.parquet"
    good = {"path": ["a.wav"], "text": ["x"]}
    pq.write_table(pa.table({**good, "words": [[{"word": "x"}]]}), path)
    assert len(scan_corpus(path).clips) == 1, "nested columns that are not read do no harm"
    pq.write_table(pa.table({"path": ["a.wav"], "text": pa.array(["x"]).dictionary_encode()}), path)
    assert scan_corpus(path).clips[0].text == "x"
    for column in (pa.array([b"x"]), pa.array([["x"]]), pa.array([{"en": "x"}])):
        pq.write_table(pa.table({"path": ["a.wav"], "text": column}), path)
        assert "texts and paths" in error_of(path).remedy
    pq.write_table(pa.table([pa.array(["a.wav"]), pa.array(["x"]), pa.array(["y"])], names=["path", "text", "text"]), path)
    assert "several columns" in error_of(path).detail
    pq.write_table(pa.table({"path": ["a.wav"] * 999, "text": ["x" * 100] * 999}), path, use_dictionary=False)
    monkeypatch.setattr(table, "MAX_GROUP_BYTES", 10_000)
    assert "smaller row groups" in error_of(path).remedy


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=SLOW_FIXTURE)
def test_a_damaged_parquet_is_refused_or_read(folder: Path, data: st.DataObject) -> None:
    path = folder / "t.parquet"
    pq.write_table(pa.table({"path": ["a.wav"] * 3, "text": ["x", "y", "z"], "id": ["1", "2", "3"]}), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        scan_corpus(path)
    except HocketError as error:
        assert error.code in (Code.CORPUS_UNREADABLE, Code.CORPUS_TOO_SMALL)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def tar_of(path: Path, *members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            add(tar, name, data)
    return path


def with_size(path: Path, field: bytes) -> Path:
    """The tar with another size in its first member's header, and a sum that fits it."""
    data = bytearray(path.read_bytes())
    data[124:136] = field
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return write(path, bytes(data))


GOOD = (("good.wav", wav()), ("good.txt", b"Words."))
TARS: dict[str, tuple[list[tuple[str, bytes]], str]] = {
    "absolute": ([("/tmp/x.wav", wav()), ("/tmp/x.txt", b"x")], "leaves"),
    "parent": ([("a/../../x.wav", wav()), ("a/../../x.txt", b"x")], "leaves"),
    "two texts": ([("x.wav", wav()), ("x.txt", b"x"), ("x.txt", b"y")], "twice"),
    "two sounds": ([("x.wav", wav()), ("x.flac", wav()), ("x.txt", b"y")], "2 recordings"),
    "no sound": ([("x.txt", b"y")], "0 recordings"),
    "a name of two lines": ([("x\ny.wav", wav()), ("x\ny.txt", b"y")], "control characters"),
    "a text that is none": ([("x.wav", wav()), ("x.json", b'{"text": ["y"]}')], "list"),
    "a text with NUL": ([("x.wav", wav()), ("x.txt", b"a\0b")], "NUL"),
    "a text of 2 MiB": ([("x.wav", wav()), ("x.txt", b"a " * 2**20)], "bytes"),
    "a text of blanks": ([("x.wav", wav()), ("x.txt", b" \n")], "empty"),
    "an odd language": ([("x.wav", wav()), ("x.json", b'{"text": "y", "language": "JP"}')], "ja"),
    "a list": ([("x.wav", wav()), ("x.json", b"[1]")], "no object"),
    "deep": ([("x.wav", wav()), ("x.json", b"[" * 100_000)], "no JSON"),
    "many members": ([("x.wav", wav()), *((f"x.{n}", b"") for n in range(200))], "more than"),
    "no text": ([("x.wav", wav())], "no text"),
}


@pytest.mark.parametrize("kind", TARS)
def test_a_sample_that_does_not_fit_costs_itself_alone(folder: Path, kind: str) -> None:
    members, part = TARS[kind]
    found = scan_corpus(tar_of(folder / "t.tar", *members, *GOOD))
    assert [(clip.id, clip.text) for clip in found.clips] == [("good", "Words.")]
    assert len(refused(found)) == 1 and part in next(iter(refused(found).values()))
    assert np.allclose(read_audio(found.clips[0].audio, 16000), sound(), atol=1e-4)


def test_names_that_are_no_utf_8_are_refused(folder: Path) -> None:
    with tarfile.open(folder / "t.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        add(tar, "\xe9.wav", wav())
        add(tar, "\xe9.txt", b"x")
        add(tar, "good.wav", wav())
        add(tar, "good.txt", b"Words.")
    assert list(refused(scan_corpus(folder / "t.tar"))) == ["\\udce9"]
    name = os.fsencode(folder) + b"/corpus2"
    os.mkdir(name)
    for suffix, data in ((b".wav", wav()), (b".txt", b"x")):
        Path(os.fsdecode(name + b"/\xe9" + suffix)).write_bytes(data)
    assert list(refused(scan_corpus(folder / "corpus2"))) == ["\\udce9"]


SIZES = [b"\xff" * 10 + b"\xfe\x00", b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-0000000001\0"]


@pytest.mark.parametrize("field", SIZES)
def test_sizes_that_cannot_be(folder: Path, field: bytes) -> None:
    assert "tar" in error_of(with_size(tar_of(folder / "t.tar", *GOOD, *GOOD), field)).detail


def test_an_extended_header_that_never_ends_is_not_read(folder: Path) -> None:
    path = with_size(tar_of(folder / "t.tar", ("x" * 300, b""), form=tarfile.GNU_FORMAT), b"00400000000\0")  # 64 MiB
    with path.open("r+b") as file:
        file.truncate(70 * 2**20)
    tracemalloc.start()
    error_of(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=SLOW_FIXTURE)
def test_a_damaged_tar_is_refused_or_read(folder: Path, data: st.DataObject) -> None:
    content = bytearray(tar_of(folder / "t.tar", ("a.txt", b"One."), ("a.wav", wav()), ("b.json", b"{}")).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 1100))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(content)))
    try:
        scan_corpus(write(folder / "t.tar", bytes(content[:cut])))
    except HocketError as error:
        assert error.code in (Code.CORPUS_UNREADABLE, Code.CORPUS_TOO_SMALL)


def test_what_a_mac_adds_is_left_out(folder: Path) -> None:
    found = scan_corpus(tar_of(folder / "t.tar", ("._good.wav", b"x"), GOOD[0], ("._good.txt", b"x"), GOOD[1]))
    assert [clip.id for clip in found.clips] == ["good"] and found.refused == []
    (folder / "t.tar").unlink()
    for name in ("._a.wav", "._a.txt"):
        write(folder / name, b"x")
    write(folder / "a.txt", b"Words.")
    found = scan_corpus(folder)
    assert [clip.id for clip in found.clips] == ["a"] and found.refused == []


@pytest.mark.parametrize("suffix", [".txt", ".lab", ".vtt", ".srt"])
def test_texts_do_not_leave_the_folder(folder: Path, suffix: str) -> None:
    (folder / "a").with_suffix(suffix).symlink_to(folder.parent / "secret.txt")
    assert "leaves the folder" in refused(scan_corpus(folder))["a"]


def test_texts_without_recordings_are_counted(folder: Path) -> None:
    for name in ("a.txt", "README.txt", "LICENSE.txt", "heldout.txt"):
        write(folder / name, b"a\n")
    assert scan_corpus(folder).refused == []
    write(folder / "b.lab", b"forgotten")
    write(folder / "c.srt", b"forgotten")
    assert set(refused(scan_corpus(folder))) == {"b.lab", "c.srt"}


MISUNDERSTOOD = [("list.csv", "column names"), ("transcripts.txt", "beside it"), ("all.json", "column names")]


@pytest.mark.parametrize(("name", "part"), MISUNDERSTOOD)
def test_recordings_whose_texts_are_not_understood_are_not_taken_for_long_ones(folder: Path, name: str, part: str) -> None:
    assert len(scan_corpus(folder).recordings) == 1
    write(folder / name, b"a.wav,Hello there.\n")
    error = error_of(folder)
    assert name in error.detail and part in error.remedy


def test_one_recording_with_what_lies_beside_it(folder: Path) -> None:
    assert [one.id for one in scan_corpus(folder / "a.wav").recordings] == ["a"]
    write(folder / "a.txt", b"Words.")
    assert [(clip.id, clip.text) for clip in scan_corpus(folder / "a.wav").clips] == [("a", "Words.")]
    write(folder / "a.vtt", b"WEBVTT\n")
    assert "both belong" in error_of(folder / "a.wav").detail
    (folder / "link.wav").symlink_to(folder / "a.wav")
    assert [one.id for one in scan_corpus(folder / "link.wav").recordings] == ["link"], "a link that is named is meant"


def test_what_was_found_is_said_and_two_layouts_are_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    layouts: dict[str, Callable[[], Path]] = {
        "recording": lambda: folder / "a.wav",
        "folder": lambda: folder,
        "table": lambda: write(folder / "t.csv", b"path,text\na.wav,Hello.\n"),
        "webdataset": lambda: tar_of(folder / "t.tar", *GOOD),
    }
    for layout, make in layouts.items():
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert scan_corpus(make()).layout == layout
        assert str(folder) in caplog.text and "clips" in caplog.text
    error = error_of(folder)
    assert "t.csv" in error.detail and "tars" in error.detail and "recordings" in error.detail and "name the one" in error.remedy
    assert len(scan_corpus(folder / "t.csv").clips) == len(scan_corpus(folder / "t.tar").clips) == 1
