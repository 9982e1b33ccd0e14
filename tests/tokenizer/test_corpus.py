"""Corpora in LJSpeech layout: what matches is read, what does not is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from common.errors import Code, HocketError
from tokenizer.corpus import read_ljspeech, refusal_error, scan_corpus


def make(folder: Path, table: str | bytes, recordings: list[str]) -> Path:
    (folder / "wavs").mkdir(parents=True)
    (folder / "metadata.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    for name in recordings:
        soundfile.write(folder / "wavs" / name, np.zeros(160, np.float32), 16000)
    return folder


def test_normalised_text_comes_first(tmp_path: Path) -> None:
    table = "\ufeffa|Mr. X|Mister X\r\nb|two\nc|three|\n\n"
    clips = read_ljspeech(make(tmp_path / "c", table, ["a.wav", "b.flac", "c.ogg"]))
    assert [(clip.id, clip.text, clip.path.name) for clip in clips] == [
        ("a", "Mister X", "a.wav"), ("b", "two", "b.flac"), ("c", "three", "c.ogg"),
    ]  # fmt: skip


def test_what_a_corpus_says_of_itself(tmp_path: Path) -> None:
    folder = make(tmp_path / "voice-x", "a|one\nb|two\n", ["a.wav", "b.wav"])
    plain = scan_corpus(folder)
    assert (plain.speaker, plain.language, plain.licence, plain.heldout) == ("voice-x", None, "unknown", None)
    (folder / "corpus.json").write_text('{"speaker": "X", "language": "en-US", "licence": "CC0-1.0"}')
    (folder / "heldout.txt").write_text("b\n")
    told = scan_corpus(folder)
    assert (told.speaker, told.language, told.licence, told.heldout) == ("X", "en-US", "CC0-1.0", ["b"])


def test_the_first_clips_of_a_corpus_are_a_corpus(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", "a|one\nb|two\nc|three\nd|four\n", ["a.wav", "b.wav", "c.wav"])
    (folder / "heldout.txt").write_text("b\nc\n")
    whole = scan_corpus(folder)
    assert [one.id for one in whole.refused] == ["d"]
    part = whole.first(2)
    assert ([one.id for one in part.clips], part.heldout, part.refused) == (["a", "b"], ["b"], [])
    assert whole.first(1).heldout is None and whole.first(1).path == whole.path
    assert [one.id for one in whole.first(100).clips] == ["a", "b", "c"]
    # A name that is nowhere is not forgotten.
    (folder / "heldout.txt").write_text("b\nbb\n")
    assert scan_corpus(folder).first(1).heldout == ["bb"]


@pytest.mark.parametrize(
    ("table", "recordings", "refused"),
    [
        ("a|one\nb|two\n", ["a.wav"], {"b": Code.TEXT_AUDIO_MISMATCH}),
        ("a|one\n", ["a.wav", "z.wav"], {"z": Code.TEXT_AUDIO_MISMATCH}),
        ("a|one\na|again\n", ["a.wav"], {"a": Code.TEXT_AUDIO_MISMATCH}),
        ("a|one\nb| \n", ["a.wav", "b.wav"], {"b": Code.NO_PHONEMES}),
        ("a|one\n../a|two\n", ["a.wav"], {"../a": Code.TEXT_AUDIO_MISMATCH}),
    ],
)
def test_what_does_not_match_is_refused_by_name(
    tmp_path: Path, table: str, recordings: list[str], refused: dict[str, Code]
) -> None:
    folder = make(tmp_path / "c", table, recordings)
    found = scan_corpus(folder)
    assert {item.id: item.code for item in found.refused} == refused
    assert [clip.id for clip in found.clips] == ["a"]
    with pytest.raises(HocketError) as caught:
        read_ljspeech(folder)
    assert caught.value.code in refused.values()
    assert next(iter(refused)) in caught.value.line()


@pytest.mark.parametrize("table", ["just a line\n", "a|b|c|d\n", "|text\n", b"a|\xff\xfe\n"])
def test_tables_that_are_none(tmp_path: Path, table: str | bytes) -> None:
    folder = make(tmp_path / "c", table, ["a.wav"])
    with pytest.raises(HocketError) as caught:
        scan_corpus(folder)
    assert caught.value.code is Code.CORPUS_UNREADABLE
    assert "metadata.csv" in caught.value.line() and "\n" not in caught.value.line()


def test_folders_that_are_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "no-wavs").mkdir()
    (tmp_path / "no-wavs" / "metadata.csv").write_text("a|b\n")
    twice = make(tmp_path / "twice", "a|one\n", ["a.wav", "a.flac"])
    facts = make(tmp_path / "facts", "a|one\n", ["a.wav"])
    (facts / "corpus.json").write_text('{"speaker": 5}')
    for folder in (tmp_path / "absent", tmp_path / "bare", tmp_path / "no-wavs", twice, facts):
        with pytest.raises(HocketError) as caught:
            scan_corpus(folder)
        assert caught.value.code is Code.CORPUS_UNREADABLE
    with pytest.raises(HocketError) as caught:
        scan_corpus(make(tmp_path / "empty", "", []))
    assert caught.value.code is Code.CORPUS_TOO_SMALL


def test_many_refusals_make_one_line(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", "".join(f"n{number}|text\n" for number in range(50)), ["x.wav"])
    error = refusal_error(scan_corpus(folder).refused, 51)
    assert error.code is Code.TEXT_AUDIO_MISMATCH
    assert "51 of 51 clips" in error.line() and "and 46 more" in error.line() and len(error.line()) < 500
