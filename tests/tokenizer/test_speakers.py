"""The voices of a dataset: when speakers are embedded, what their means are, and which clips get them."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from made_up_dataset import made_up_row, write_dataset
from two_voices import two_voice_corpus
from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError
from protocol.identity import MemberKey
from protocol.manifest import MAX_VOICES, DatasetManifest, canonical_json, read_manifest, sign_document
from tokenizer.audio_source import AudioSource
from tokenizer.codec import Codec, load_codec
from tokenizer.corpora.model import Clip, Corpus, Recording
from tokenizer.dataset_folder import open_dataset
from tokenizer.pipeline import tokenize
from tokenizer.recordings import extras
from tokenizer.speakers import DatasetVoices, MeanVoice, embeds_speakers, listed_voices, mean_voices, speakers_of

pytestmark = pytest.mark.timeout(300)
runner = CliRunner()
needs_voices = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("resemblyzer", "librosa", "webrtcvad")),
    reason="the extra `recordings` is not installed",
)

SIZE = 6
units = arrays.arrays(np.float64, SIZE, elements=st.floats(-1, 1)).filter(lambda v: np.linalg.norm(v) > 0.1)
clips = st.lists(st.tuples(st.sampled_from("abc"), st.none() | units.map(lambda v: (v / np.linalg.norm(v)).astype(np.float32))))


def corpus_of(*speakers: str | None, recordings: int = 0) -> Corpus:
    source = AudioSource(Path("x.wav"))
    made = [Clip(f"clip-{number}", source, "text", speaker=name) for number, name in enumerate(speakers)]
    long = [Recording(f"long-{number}", source) for number in range(recordings)]
    return Corpus(Path("corpus"), made, [], speaker="folder", recordings=long)


# ---- deciding ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("corpus", "asked", "embeds"),
    [
        (corpus_of("a", "a"), None, False),
        (corpus_of("a", "b"), None, True),
        (corpus_of("a", None), None, True),
        (corpus_of(None, None), None, False),
        (corpus_of("a", "b"), False, False),
        (corpus_of("a"), True, True),
        (corpus_of(recordings=2), None, False),
        (corpus_of("a", recordings=1), None, True),
    ],
)
def test_speakers_are_embedded_where_there_is_more_than_one(corpus: Corpus, asked: bool | None, embeds: bool) -> None:
    assert embeds_speakers(corpus, asked) is embeds


def test_a_clip_that_names_no_speaker_is_the_folder_s() -> None:
    assert speakers_of(corpus_of("b", None, "a")) == ["a", "b", "folder"]


@given(found=clips)
def test_a_mean_voice_is_the_direction_of_the_sum(found: list[tuple[str, Any]]) -> None:
    means = mean_voices(found)
    for name in "abc":
        own = [vector.astype(np.float64) for speaker, vector in found if speaker == name and vector is not None]
        length = float(np.linalg.norm(sum(own))) if own else 0.0
        if length > 1e-3:
            assert means[name].clips == len(own)
            assert np.allclose(means[name].embedding, sum(own) / length, atol=1e-3 if length < 0.01 else 1e-5)
            assert means[name].embedding.dtype == np.float32
        elif not own:
            assert name not in means


@given(found=clips)
def test_the_manifest_takes_every_list_of_voices(found: list[tuple[str, Any]]) -> None:
    listed = listed_voices(mean_voices(found))
    manifest = made_up_manifest(speakers=["a", "b", "c"], speaker_embedding={"dim": SIZE, "encoder": "x"}, voices=listed)
    body = manifest.model_dump(mode="json")
    assert read_manifest(DatasetManifest, sign_document(KEY, body), signer=KEY.public) == manifest
    for value in json.loads(canonical_json(listed)).values():
        assert all(len(repr(abs(number))) <= 10 or "e" in repr(number) for number in value), "six digits"


def test_of_very_many_speakers_those_with_most_clips_are_listed() -> None:
    vector = np.eye(1, SIZE, dtype=np.float32)[0]
    means = {f"v{number:04d}": MeanVoice(1 + number % 3, vector) for number in range(2 * MAX_VOICES)}
    listed = listed_voices(means)
    assert len(listed) == MAX_VOICES and list(listed) == sorted(listed)
    assert min(means[name].clips for name in listed) == 2


@given(
    heard=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.none() | units.map(np.float32)), max_size=12),
)
def test_a_clip_without_an_embedding_has_its_speaker_s_mean(heard: list[tuple[str, bool, Any]]) -> None:
    items: Any = [SimpleNamespace(id=f"{number}", speaker=name, embedding=None) for number, (name, _, _) in enumerate(heard)]
    held = {f"{number}" for number, (_, out, _) in enumerate(heard) if out}
    used = [number for number in range(len(heard)) for _ in range(1 + number % 2)]  # some have two rows
    voices = DatasetVoices(items, used, held, lambda number: heard[number][2])
    for number, (name, _, own) in enumerate(heard):
        found = voices.of(number)
        if own is not None:
            assert found is own
        elif found is None:
            assert name not in voices.means
        else:
            training = [vector for other, out, vector in heard if other == name and not out and vector is not None]
            either = training or [vector for other, _, vector in heard if other == name and vector is not None]
            assert voices.means[name].clips == len(either) and np.array_equal(found, voices.means[name].embedding)


def test_the_embedding_that_cutting_a_recording_gave_goes_first() -> None:
    one, two = np.eye(2, dtype=np.float32)
    items: Any = [SimpleNamespace(id="a", speaker="x", embedding=one), SimpleNamespace(id="b", speaker="x", embedding=None)]
    voices = DatasetVoices(items, [0, 1], set(), lambda number: None if number else two)
    assert voices.of(0) is one and np.array_equal(voices.of(1), one)


# ---- the manifest -----------------------------------------------------------------------------------------------------------

KEY = MemberKey.generate()
UNIT = [1.0] + [0.0] * (SIZE - 1)


def made_up_manifest(**changes: Any) -> DatasetManifest:
    values: dict[str, Any] = {
        "name": "two", "codec": {}, "phonemes": ["", "a"], "languages": ["en-US"], "speakers": ["a", "b"], "shards": [],
        "heldout": [], "licences": [], "speaker_embedding": {"dim": SIZE, "encoder": "x"}, "voices": {"a": UNIT},
    }  # fmt: skip
    return DatasetManifest(**{**values, **changes})


@pytest.mark.parametrize(
    ("voices", "named"),
    [
        ({"eve": UNIT}, "no speaker"),
        ({"a": UNIT[:-1]}, "5 numbers, not 6"),
        ({"a": [0.0] * SIZE}, "not the length 1"),
        ({"a": [2.0, *UNIT[1:]]}, "not the length 1"),
        ({"a": [1e308] * SIZE}, "not the length 1"),
        ({"a": ["1", *UNIT[1:]]}, "voices.a.0"),
        ({f"v{number}": UNIT for number in range(MAX_VOICES + 1)}, "voices"),
    ],
)
def test_voices_that_do_not_fit_are_refused(voices: dict[str, Any], named: str) -> None:
    speakers = ["a", "b", *(name for name in voices if name.startswith("v"))]
    body = {**made_up_manifest(speakers=speakers).model_dump(mode="json"), "voices": voices}
    with pytest.raises(HocketError) as caught:
        read_manifest(DatasetManifest, sign_document(KEY, body), signer=None)
    assert caught.value.code is Code.MANIFEST_INVALID and named in caught.value.detail


def test_a_manifest_of_before_has_no_voices_and_is_read() -> None:
    body = made_up_manifest(voices={}, speaker_embedding={}).model_dump(mode="json")
    del body["voices"]
    assert read_manifest(DatasetManifest, sign_document(KEY, body), signer=KEY.public).voices == {}


def test_a_row_without_an_embedding_is_a_fault_where_its_speaker_has_a_voice(tmp_path: Path) -> None:
    vector = np.array(UNIT, np.float32)
    rows = [made_up_row(number, speaker_embedding=vector) for number in range(4)]
    facts: dict[str, Any] = {"speaker_embedding": {"dim": SIZE, "encoder": "x"}, "voices": {"voice-0": UNIT}}
    write_dataset(tmp_path / "good", [rows], [[made_up_row(5)]], **facts)  # of voice-1, which has no voice
    assert runner.invoke(app, ["dataset", "verify", str(tmp_path / "good")]).exit_code == 0
    write_dataset(tmp_path / "bad", [rows], [[made_up_row(6)]], **facts)
    result = runner.invoke(app, ["dataset", "verify", str(tmp_path / "bad")])
    assert isinstance(result.exception, HocketError) and "clip-6: no speaker embedding" in result.exception.detail
    found = json.loads(runner.invoke(app, ["dataset", "stats", str(tmp_path / "good"), "--json"]).stdout)["voices"]
    assert found == {"voice-0": {"likeness_of_clips": 1.0, "nearest": None, "likeness_of_nearest": None}}


# ---- a corpus of two voices ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def codec() -> Iterator[Codec]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_codec(n_codebooks=2)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_voice_corpus(tmp_path_factory.mktemp("voices") / "corpus", 4)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name == package else there(name))


def test_without_the_extra_nothing_is_begun_and_the_line_says_what_to_do(
    table: Path, codec: Codec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "resemblyzer")
    for asked in (None, True):
        with pytest.raises(HocketError) as caught:
            tokenize(table, "en-US", codec, tmp_path / "out", key=KEY, speakers=asked)
        line = caught.value.line()
        assert caught.value.code is Code.EXTRA_MISSING and caught.value.exit_code == 2
        assert "2 speakers" in line and "resemblyzer" in line and "setup-recordings" in line and "--no-speakers" in line
        assert not (tmp_path / "out" / "manifest.json").exists() and not (tmp_path / "out" / ".work").exists()


def test_with_no_speakers_the_extra_is_not_needed(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "resemblyzer")
    out = tmp_path / "out"
    arguments = ["tokenize", table, "-l", "en-US", "-o", out, "--codebooks", 2, "--heldout", 1, "--key", tmp_path / "key"]
    arguments += ["--allow-refused", 0.5, "--no-speakers", "--json"]
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.exception
    dataset = open_dataset(out)
    assert dataset.manifest.speakers == ["other", "slt"] and dataset.manifest.voices == {}
    assert dataset.manifest.speaker_embedding == {} and all(row.speaker_embedding is None for row, _ in dataset.rows())
    assert json.loads(result.stdout)["voices"] == []
    assert "voices     none" in runner.invoke(app, ["dataset", "show", str(out)]).stdout


@needs_voices
def test_a_clip_too_short_to_embed_gets_the_voice_of_its_speaker(table: Path, codec: Codec, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "wavs").mkdir(parents=True)
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    samples, rate = soundfile.read(table.parent / rows[0]["audio"], dtype="float32")
    loud = int(np.abs(samples).argmax())
    start = max(0, min(loud - rate // 8, len(samples) - rate // 4))
    soundfile.write(folder / "wavs" / "short.flac", samples[start : start + rate // 4], rate)  # 0.25 s, 0.4 s are wanted
    for row in rows:
        (folder / row["audio"]).write_bytes((table.parent / row["audio"]).read_bytes())
    rows.append({"id": "short", "audio": "wavs/short.flac", "text": "a", "speaker": rows[0]["speaker"]})
    rows.append({"id": "lone", "audio": "wavs/short.flac", "text": "a", "speaker": "a third"})
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    manifest = tokenize(folder, "en-US", codec, tmp_path / "out", key=KEY, heldout=["slt-003"], allow_refused=0.5)
    made = {row.id: row for row, _ in open_dataset(tmp_path / "out").rows()}
    assert {"short", "lone"} <= set(made), "neither is refused"
    found = made["short"].speaker_embedding
    assert found is not None and np.array_equal(found, np.array(manifest.voices["slt"], np.float32))
    assert made["lone"].speaker_embedding is None and sorted(manifest.voices) == ["other", "slt"]
    assert manifest.speakers == ["a third", "other", "slt"]
