"""Every layout gives the same clips, and what does not fit is named, whoever wrote it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.audio import read_audio
from tokenizer.corpus import Corpus, scan_corpus

TEXTS = {"a1": "Hello there.", "b2": "Guten Tag, wie geht es?", "c3": 'She said "no", then left.'}
LANGUAGES = {"a1": "en-US", "b2": "de", "c3": "en"}


def sound(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(1600) * 0.1).astype(np.float32)


def recordings(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(TEXTS):
        soundfile.write(folder / f"{name}.flac", sound(number), 16000)


def rows() -> list[dict[str, str]]:
    return [
        {"path": f"wavs/{name}.flac", "sentence": text, "locale": LANGUAGES[name], "id": name} for name, text in TEXTS.items()
    ]


def make_ljspeech(root: Path) -> Path:
    recordings(root / "wavs")
    (root / "metadata.csv").write_text("".join(f"{name}|{text}\n" for name, text in TEXTS.items()))
    return root


def make_csv(root: Path) -> Path:
    recordings(root / "wavs")
    lines = ["\ufeffid,path,sentence,locale"]
    for row in rows():
        quoted = row["sentence"].replace('"', '""')
        lines.append(f'{row["id"]},{row["path"]},"{quoted}",{row["locale"]}')
    (root / "clips.csv").write_text("\r\n".join(lines) + "\r\n", newline="")
    return root


def make_tsv(root: Path) -> Path:
    recordings(root / "wavs")
    lines = ["id\tpath\tsentence\tlocale"]
    for row in rows():
        quoted = row["sentence"].replace('"', '""')
        lines.append(f'{row["id"]}\t{row["path"]}\t"{quoted}"\t{row["locale"]}')
    (root / "validated.tsv").write_text("\n".join(lines) + "\n")
    return root / "validated.tsv"


def make_jsonl(root: Path) -> Path:
    recordings(root / "wavs")
    renamed = [{"audio_filepath": row["path"], "text": row["sentence"], "lang": row["locale"], "id": row["id"]} for row in rows()]
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    return root / "manifest.jsonl"


def make_parquet(root: Path) -> Path:
    recordings(root / "wavs")
    pq.write_table(pa.Table.from_pylist(rows()), root / "clips.parquet")
    return root


def make_folder(root: Path) -> Path:
    recordings(root)
    for number, (name, text) in enumerate(TEXTS.items()):
        (root / name).with_suffix((".txt", ".lab")[number % 2]).write_text(text + "\n")
    return root


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def make_tar(root: Path) -> Path:
    recordings(root / "wavs")
    with tarfile.open(root / "part-0.tar", "w") as tar:
        for name, text in TEXTS.items():
            add(tar, f"{name}.flac", (root / "wavs" / f"{name}.flac").read_bytes())
            add(tar, f"{name}.json", json.dumps({"text": text, "language": LANGUAGES[name]}).encode())
    return root / "part-0.tar"


MAKERS = [make_ljspeech, make_csv, make_tsv, make_jsonl, make_parquet, make_folder, make_tar]


@pytest.mark.parametrize("make", MAKERS)
def test_every_layout_gives_the_same_clips(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    root = tmp_path / "corpus"
    root.mkdir()
    found = scan_corpus(make(root))
    assert found.refused == [] and found.recordings == []
    assert {clip.id: clip.text for clip in found.clips} == TEXTS
    if make not in (make_ljspeech, make_folder):
        assert {clip.id: clip.language for clip in found.clips} == LANGUAGES
    for number, clip in enumerate(found.clips):
        assert np.allclose(read_audio(clip.audio, 16000), sound(number), atol=1e-4)


def refusals(found: Corpus) -> dict[str, Code]:
    return {item.id: item.code for item in found.refused}


def test_parts_of_recordings_are_clips(tmp_path: Path) -> None:
    recordings(tmp_path / "wavs")
    (tmp_path / "t.csv").write_text(
        "file;text;start;end;duration;speaker\nwavs/a1.flac;one;0.01;0.05;;X\nwavs/a1.flac;two;0.05;;0.02;Y\n"
        "wavs/a1.flac;three;0.2;0.1;;\nwavs/a1.flac;four;soon;;;\n"
    )
    found = scan_corpus(tmp_path / "t.csv")
    assert [(clip.text, clip.start_s, clip.stop_s, clip.speaker) for clip in found.clips] == [
        ("one", 0.01, 0.05, "X"), ("two", 0.05, pytest.approx(0.07), "Y"),
    ]  # fmt: skip
    assert len({clip.id for clip in found.clips}) == 2
    assert sorted(refusals(found).values()) == [Code.TEXT_AUDIO_MISMATCH] * 2


def test_rows_that_do_not_fit_are_refused_one_by_one(tmp_path: Path) -> None:
    recordings(tmp_path / "corpus" / "wavs")
    (tmp_path / "outside.wav").write_bytes(b"")
    (tmp_path / "corpus" / "link.flac").symlink_to(tmp_path / "outside.wav")
    bad = [
        {"id": "leaves", "path": "../outside.wav", "text": "x"},
        {"id": "absolute", "path": "/etc/hostname", "text": "x"},
        {"id": "link", "path": "link.flac", "text": "x"},
        {"id": "absent", "path": "wavs/none.flac", "text": "x"},
        {"id": "folder", "path": "wavs", "text": "x"},
        {"id": "nul", "path": "wavs/a1.flac\0", "text": "x"},
        {"id": "long", "path": "x" * 5000, "text": "x"},
        {"id": "none", "path": None, "text": "x"},
        {"id": "country", "path": "wavs/a1.flac", "text": "x", "language": "JP"},
        {"id": "textless", "path": "wavs/a1.flac", "text": " "},
        {"id": "good", "path": "wavs/a1.flac", "text": "x"},
        {"id": "good", "path": "wavs/b2.flac", "text": "y"},
    ]
    (tmp_path / "corpus" / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad))
    found = scan_corpus(tmp_path / "corpus" / "m.jsonl")
    assert [clip.id for clip in found.clips] == ["good"]
    codes = refusals(found)
    assert len(found.refused) == len(bad) - 1, "nothing is lost"
    assert codes.pop("country") is Code.LANGUAGE_REFUSED and codes.pop("textless") is Code.NO_PHONEMES
    assert set(codes.values()) == {Code.TEXT_AUDIO_MISMATCH}
    assert all(item.line().count("\n") == 0 and "line" in item.reason for item in found.refused)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("t.csv", b"name,words\na,b\n", "no column for the recording"),
        ("t.csv", b"path,text\nwavs/a.wav,one,two\n", "line 2"),
        ("t.csv", b"path,text\nwavs/a.wav,\xff\xfe\n", "UTF-8"),
        ("t.csv", b'path,text\nwavs/a.wav,"open\n', "t.csv"),
        ("t.csv", b"path,text\nwavs/a.wav," + b"x" * (1 << 20) + b"x\n", "t.csv"),
        ("t.csv", b"", "no rows"),
        ("t.jsonl", b'{"path": "a.wav"\n', "line 1"),
        ("t.jsonl", b"[1]\n", "line 1"),
        ("t.jsonl", b'{"path": "a", "text": "' + b"x" * (1 << 20) + b'"}\n', "longer than"),
        ("t.jsonl", b"[" * 100_000 + b"\n", "line 1"),
        ("t.parquet", b"PAR1 but no more", "Parquet"),
        ("t.tar", b"\x1f\x8b\x08\x00", "tar"),
        ("t.tar", b"no tar" * 1000, "tar"),
        ("t.doc", b"x", "no corpus"),
    ],
)
def test_tables_and_tars_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, part: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HocketError) as caught:
        scan_corpus(tmp_path / name)
    assert caught.value.code is Code.CORPUS_UNREADABLE and part in caught.value.line() and "\n" not in caught.value.line()


def test_bytes_of_sound_in_a_table_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"audio": {"bytes": b"x", "path": "a"}, "text": "x"}])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(HocketError) as caught:
        scan_corpus(tmp_path / "t.parquet")
    assert "struct" in caught.value.detail


def test_members_of_tars_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    recordings(tmp_path / "w")
    data = (tmp_path / "w" / "a1.flac").read_bytes()
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        add(tar, "../out.flac", data)
        add(tar, "../out.txt", b"x")
        add(tar, "two.flac", data)
        add(tar, "two.wav", data)
        add(tar, "mute.txt", b"words")
        link = tarfile.TarInfo("link.flac")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        add(tar, "odd.flac", data)
        add(tar, "odd.txt", b"\xff\xfe")
        add(tar, "good.flac", data)
        add(tar, "good.txt", b"Words.\n")
        add(tar, "bare.flac", data)
    found = scan_corpus(tmp_path / "t.tar")
    assert [clip.id for clip in found.clips] == ["good"]
    assert set(refusals(found)) == {"../out", "two", "mute", "link", "odd", "bare"}


def test_a_tar_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = make_tar(tmp_path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(HocketError) as caught:
        scan_corpus(path)
    assert caught.value.code is Code.CORPUS_UNREADABLE


def test_recordings_with_subtitles_and_without_texts(tmp_path: Path) -> None:
    recordings(tmp_path / "one")
    (tmp_path / "one" / "a1.vtt").write_text("WEBVTT\n")
    found = scan_corpus(tmp_path / "one")
    named = {one.id: one.subtitles and one.subtitles.name for one in found.recordings}
    assert named == {"a1": "a1.vtt", "b2": None, "c3": None}
    alone = scan_corpus(tmp_path / "one" / "a1.flac")
    assert [one.id for one in alone.recordings] == ["a1"] and alone.recordings[0].subtitles is not None
    (tmp_path / "one" / "b2.txt").write_text("Hello.")
    mixed = scan_corpus(tmp_path / "one")
    assert [clip.id for clip in mixed.clips] == ["b2"] and set(refusals(mixed)) == {"c3"}, "a forgotten text is no long recording"
    (tmp_path / "one" / "a1.txt").write_text("Hello.")
    assert "a1" in refusals(scan_corpus(tmp_path / "one"))


def test_the_folder_names_the_speaker(tmp_path: Path) -> None:
    recordings(tmp_path / "ann")
    for name in TEXTS:
        (tmp_path / "ann" / f"{name}.txt").write_text("Hello.")
    assert {clip.speaker for clip in scan_corpus(tmp_path).clips} == {"ann"}


def test_what_could_be_two_things_is_refused(tmp_path: Path) -> None:
    make_ljspeech(tmp_path)
    make_csv(tmp_path)
    with pytest.raises(HocketError) as caught:
        scan_corpus(tmp_path)
    assert "several ways" in caught.value.detail and "clips.csv" in caught.value.detail
    assert len(scan_corpus(tmp_path / "clips.csv").clips) == 3


CELL = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=30)


@given(st.lists(CELL, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_row_of_a_table_is_lost(tmp_path: Path, texts: list[str]) -> None:
    import csv

    if not (tmp_path / "a.wav").exists():
        soundfile.write(tmp_path / "a.wav", sound(0), 16000)
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "path", "text"])
        writer.writerows([f"r{number}", "a.wav", text] for number, text in enumerate(texts))
    found = scan_corpus(tmp_path / "t.csv")
    assert len(found.clips) + len(found.refused) == len(texts)
    assert {clip.id: clip.text for clip in found.clips} == {f"r{n}": text.strip() for n, text in enumerate(texts) if text.strip()}
