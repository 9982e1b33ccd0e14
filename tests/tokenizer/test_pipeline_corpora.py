"""What people really have: mixed languages, wrong languages, long clips, recordings with and without subtitles, bad clips."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from common.errors import Code, HocketError
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest
from tokenizer.audio_progress import AudioProgress
from tokenizer.codec import Codec, load_codec
from tokenizer.corpus import default_corpus
from tokenizer.phonemes import END, Phonemizer
from tokenizer.pipeline import tokenize
from tokenizer.reader import DatasetReader
from tokenizer.shards import Utterance
from tokenizer.work import WORK

pytestmark = pytest.mark.timeout(300)

SPEECH = Path(__file__).parents[2].parent / "shared" / "speech"
needs_speech = pytest.mark.skipif(not SPEECH.is_dir(), reason="the recordings of shared/speech are not here")
needs_recordings = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("silero_vad", "resemblyzer")),
    reason="the extra `recordings` is not installed",
)


@pytest.fixture(scope="module")
def codec() -> Iterator[Codec]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations, which threads that wait for each other only slow down
    yield load_codec(n_codebooks=2)
    torch.set_num_threads(threads)


def make(corpus: Path, out: Path, codec: Codec, language: str | None = "en-US", **options: object) -> DatasetManifest:
    return tokenize(corpus, language, codec, out, key=MemberKey.generate(), **options)  # type: ignore[arg-type]


def rows_of(out: Path, manifest: DatasetManifest) -> list[Utterance]:
    async def get(cid: str) -> bytes:
        return (out / "shards" / f"{cid}.parquet").read_bytes()

    async def read() -> list[Utterance]:
        reader = DatasetReader(manifest, get)
        return [*await reader.everything(), *await reader.heldout()]

    return asyncio.run(read())


def refusal(corpus: Path, out: Path, codec: Codec, language: str | None = "en-US", **options: object) -> HocketError:
    with pytest.raises(HocketError) as caught:
        make(corpus, out, codec, language, **options)
    assert not (out / "manifest.json").exists()
    return caught.value


def clip_lines(count: int) -> list[list[str]]:
    return [line.split("|") for line in (default_corpus() / "metadata.csv").read_text().splitlines()[:count]]


def table_of(folder: Path, count: int, **columns: object) -> Path:
    """The first clips of the shipped corpus as a table with further columns."""
    (folder / "wavs").mkdir(parents=True)
    rows = []
    for name, *texts in clip_lines(count):
        shutil.copy(default_corpus() / "wavs" / f"{name}.ogg", folder / "wavs")
        rows.append({"id": name, "audio": f"wavs/{name}.ogg", "text": texts[-1], **columns})
    (folder / "table.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder / "table.jsonl"


def change(table: Path, place: int, **columns: object) -> None:
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows[place].update(columns)
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# ---- what rows say of themselves -----------------------------------------------------------------------------------------


def test_speakers_licences_and_languages_are_those_of_the_rows(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 8, language="EN_us", speaker="ada", licence="CC0-1.0")
    change(table, 2, speaker="bo", licence="CC-BY-4.0", language="en-GB")
    manifest = make(table, tmp_path / "out", codec, None, speakers=False)
    assert (manifest.languages, manifest.speakers) == (["en-GB", "en-US"], ["ada", "bo"])
    assert manifest.licences == ["CC-BY-4.0", "CC0-1.0"]
    assert sorted(manifest.aligners) == ["en-GB", "en-US"]
    names = sorted(path.name for path in (tmp_path / "out" / "aligners").iterdir())
    assert names == ["en-GB.safetensors", "en-US.safetensors"]
    (row,) = [row for row in rows_of(tmp_path / "out", manifest) if row.id == "slt-0003"]
    assert (row.speaker, row.licence, row.language) == ("bo", "CC-BY-4.0", "en-GB")


def test_rows_without_a_language_need_one(tmp_path: Path, codec: Codec) -> None:
    error = refusal(table_of(tmp_path / "corpus", 3), tmp_path / "out", codec, None)
    assert error.code is Code.LANGUAGE_REFUSED and "--language" in error.remedy and "slt-0001" in error.detail


@needs_speech
def test_a_mixed_corpus(tmp_path: Path, codec: Codec) -> None:
    rows = []
    for name, language in (("allison-en", "en-US"), ("june-fr", "fr-CA")):
        lines = [line.split("|") for line in (SPEECH / name / "metadata.csv").read_text().splitlines()]
        for file, *texts in lines[:12]:
            (source,) = (SPEECH / name / "wavs").glob(f"{file}.*")
            target = tmp_path / "corpus" / f"{language}-{source.name}"
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
            rows.append({"audio": target.name, "text": texts[-1], "language": language, "speaker": name})
    (tmp_path / "corpus" / "table.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    manifest = make(tmp_path / "corpus", tmp_path / "out", codec, None, speakers=False)
    assert manifest.languages == ["en-US", "fr-CA"] == sorted(manifest.aligners)
    made = rows_of(tmp_path / "out", manifest)
    assert sum(row.language == "fr-CA" for row in made) == 12
    assert len(manifest.phonemes) > 75
    (french,) = [row for row in made if row.id.startswith("fr-CA-activated")]
    assert [manifest.phonemes[number] for number in french.phonemes] == Phonemizer("fr-CA").phonemize("activé").phonemes


@needs_speech
def test_texts_in_another_language_stop_the_work_before_any_audio(tmp_path: Path, codec: Codec) -> None:
    error = refusal(SPEECH / "june-fr", tmp_path / "out", codec, "en-US")
    assert error.code is Code.LANGUAGE_REFUSED and "fr" in error.remedy
    assert not (tmp_path / "out" / WORK).exists()


# ---- refusals --------------------------------------------------------------------------------------------------------------


def test_texts_are_judged_before_any_audio_is_read(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 4)
    for path in (tmp_path / "corpus" / "wavs").iterdir():
        path.write_bytes(b"no sound at all")
    change(table, 1, text="Привет, мир")
    error = refusal(table, tmp_path / "out", codec)
    assert error.code is Code.SCRIPT_MISMATCH and "slt-0002" in error.line() and "1 of 4" in error.line()


def test_nothing_is_lost_and_everything_refused_has_its_reason(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 12)
    wavs = tmp_path / "corpus" / "wavs"
    change(table, 0, text="Привет, мир")
    change(table, 1, audio="wavs/ghost.ogg")
    change(table, 2, language="JP")
    (wavs / "slt-0004.ogg").write_bytes(b"")
    (wavs / "slt-0005.ogg").write_bytes((wavs / "slt-0005.ogg").read_bytes()[:900])
    spoilt = {6: np.zeros(32000), 7: np.full(32000, np.nan), 8: np.sign(np.sin(np.arange(32000))), 9: np.zeros(1)}
    for number, samples in spoilt.items():
        soundfile.write(wavs / f"{number}.wav", samples.astype(np.float32), 16000, subtype="FLOAT")
        change(table, number - 1, audio=f"wavs/{number}.wav")
    ids = {name for name, *_ in clip_lines(12)}
    assert refusal(table, tmp_path / "out", codec).code in Code
    manifest = make(table, tmp_path / "out", codec, allow_refused=0.9)
    lines = (tmp_path / "out" / "refused.txt").read_text().splitlines()
    reasons = {line.split(": ")[0]: int(line.split(": H")[1][:3]) for line in lines}
    rows = {row.id for row in rows_of(tmp_path / "out", manifest)}
    assert rows | set(reasons) == ids and not rows & set(reasons) and len(lines) == manifest.refused_clips == 9
    expected = [
        Code.SCRIPT_MISMATCH, Code.TEXT_AUDIO_MISMATCH, Code.LANGUAGE_REFUSED, Code.AUDIO_UNREADABLE, Code.AUDIO_UNREADABLE,
        Code.AUDIO_SILENT, Code.AUDIO_UNREADABLE, Code.AUDIO_CLIPPED, Code.TOO_FEW_FRAMES,
    ]  # fmt: skip
    assert [reasons[f"slt-{number:04d}"] for number in range(1, 10)] == expected
    facts = [json.loads(line) for line in (tmp_path / "out" / "audio.jsonl").read_text().splitlines()]
    assert {fact["id"] for fact in facts} == rows
    assert all(fact["rate"] == 16000 and -30 < fact["rms_db"] < fact["peak_db"] < 0.5 for fact in facts)


def test_dropped_characters_are_counted(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 4)
    change(table, 0, text="Turn right after the market \N{PARTY POPPER}, then walk up the road.")
    manifest = make(table, tmp_path / "out", codec)
    assert manifest.dropped_characters == {"\N{PARTY POPPER}": 1} and manifest.refused_clips == 0


# ---- long clips ------------------------------------------------------------------------------------------------------------


def test_long_clips_are_cut_at_pauses_and_lose_no_frame_and_no_word(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 12)
    names = [name for name, *_ in clip_lines(12)]
    silence = np.zeros(8000, np.float32)
    sounds = [soundfile.read(tmp_path / "corpus" / "wavs" / f"{name}.ogg", dtype="float32")[0] for name in names[:4]]
    parts = [part for sound in sounds for part in (sound, silence)]
    soundfile.write(tmp_path / "corpus" / "wavs" / "long.flac", np.concatenate(parts), 16000)
    change(table, 0, audio="wavs/long.flac", text=" ".join(texts[-1] for _, *texts in clip_lines(4)))
    whole = make(table, tmp_path / "whole", codec, heldout=["slt-0012"], max_clip_s=60.0)
    cut = make(table, tmp_path / "cut", codec, heldout=["slt-0012"], max_clip_s=5.0)
    (one,) = [row for row in rows_of(tmp_path / "whole", whole) if row.id == "slt-0001"]
    pieces = [row for row in rows_of(tmp_path / "cut", cut) if row.id.startswith("slt-0001-part")]
    assert len(pieces) >= 3 and max(row.n_frames for row in pieces) < one.n_frames / 2
    assert np.array_equal(np.concatenate([row.codes for row in pieces], axis=1), one.codes)
    assert " ".join(row.spoken for row in pieces) == one.spoken and " ".join(row.text for row in pieces) == one.text
    assert sum(int(row.word_starts.sum()) for row in pieces) == int(one.word_starts.sum())


def test_only_the_first_clips_are_read_on_request(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 12)
    manifest = make(table, tmp_path / "part", codec, first=5)
    assert {row.id for row in rows_of(tmp_path / "part", manifest)} == {name for name, *_ in clip_lines(5)}
    assert sum(shard.rows for shard in manifest.heldout) == 1


# ---- aligners that are kept -------------------------------------------------------------------------------------------------


def test_a_kept_aligner_is_used_and_refused_where_it_does_not_belong(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 6)
    make(table, tmp_path / "first", codec)
    kept = tmp_path / "first" / "aligners" / "en-US.safetensors"
    other = table_of(tmp_path / "other", 4)
    make(other, tmp_path / "own", codec)
    make(other, tmp_path / "with", codec, aligner=kept)
    # It went on learning here: what is kept now is neither the aligner that was given nor the one learnt without it.
    now = {(tmp_path / name / "aligner.safetensors").read_bytes() for name in ("with", "own")} | {kept.read_bytes()}
    assert len(now) == 3
    assert refusal(other, tmp_path / "y", load_codec(n_codebooks=3), aligner=kept).code is Code.CODEC_UNREADABLE
    (tmp_path / "none").write_bytes(b"no aligner")
    error = refusal(other, tmp_path / "x", codec, aligner=tmp_path / "none")
    assert error.code is Code.MANIFEST_INVALID and not (tmp_path / "x" / WORK).exists(), "before any audio"


# ---- recordings --------------------------------------------------------------------------------------------------------------


def recording(folder: Path, count: int, subtitles: bool) -> Path:
    """Clips of the shipped corpus one after the other, half a second apart; the third is in no subtitle."""
    folder.mkdir(parents=True)
    parts: list[np.ndarray] = []
    cues: list[str] = []
    at = 0.0
    for number, (name, *texts) in enumerate(clip_lines(count)):
        samples, rate = soundfile.read(default_corpus() / "wavs" / f"{name}.ogg", dtype="float32")
        parts += [samples, np.zeros(rate // 2, np.float32)]
        if number != 2:
            cues.append(f"00:{at:06.3f} --> 00:{at + len(samples) / rate:06.3f}\n{texts[-1]}\n")
        at += len(samples) / rate + 0.5
    soundfile.write(folder / "talk.flac", np.concatenate(parts), 16000)
    if subtitles:
        (folder / "talk.vtt").write_text("WEBVTT\n\n" + "\n".join(cues))
    return folder


@needs_recordings
def test_a_recording_with_subtitles(tmp_path: Path, codec: Codec) -> None:
    corpus = recording(tmp_path / "corpus", 8, subtitles=True)
    manifest = make(corpus, tmp_path / "out", codec)
    rows = rows_of(tmp_path / "out", manifest)
    said = " ".join(row.text for row in sorted(rows, key=lambda row: row.id))
    assert said == " ".join(texts[-1] for number, (_, *texts) in enumerate(clip_lines(8)) if number != 2)
    assert manifest.speaker_embedding == {"dim": 256, "encoder": "resemblyzer-0.1.4"} and manifest.untranscribed_rows == 0
    assert all(row.speaker == "talk/speaker-1" and row.speaker_embedding is not None for row in rows)
    refused = (tmp_path / "out" / "refused.txt").read_text().splitlines()
    assert refused and all("no subtitle covers the speech" in line for line in refused) and manifest.refused_clips == len(refused)


@needs_recordings
def test_characters_that_a_subtitle_loses_are_counted_once(tmp_path: Path, codec: Codec) -> None:
    corpus = recording(tmp_path / "corpus", 4, subtitles=True)
    text = (corpus / "talk.vtt").read_text()
    first = clip_lines(1)[0][-1]
    (corpus / "talk.vtt").write_text(text.replace(first, f"{first} \N{PARTY POPPER}"))
    assert make(corpus, tmp_path / "out", codec).dropped_characters == {"\N{PARTY POPPER}": 1}


@needs_recordings
def test_a_recording_without_subtitles_gives_rows_without_text(tmp_path: Path, codec: Codec) -> None:
    heard: list[AudioProgress] = []
    corpus = recording(tmp_path / "corpus", 6, subtitles=False)
    manifest = make(corpus, tmp_path / "out", codec, heard=heard.append)
    rows = rows_of(tmp_path / "out", manifest)
    assert len(rows) == manifest.untranscribed_rows > 1 and manifest.aligner_cid is None and manifest.aligners == {}
    for row in rows:
        assert (row.text, row.spoken, [manifest.phonemes[number] for number in row.phonemes]) == ("", "", [END])
        assert row.durations.tolist() == [row.n_frames] and row.word_starts.tolist() == [0]
    assert {progress.phase for progress in heard} == {"recordings", "audio"}
    assert heard[-1].done == heard[-1].total == len(rows)
    assert abs(heard[-1].hours * 3600 * 50 - sum(row.n_frames for row in rows)) < 50


@needs_recordings
def test_subtitles_that_say_nothing_are_found_before_the_recording_is_cut(tmp_path: Path, codec: Codec) -> None:
    corpus = recording(tmp_path / "corpus", 4, subtitles=True)
    text = (corpus / "talk.vtt").read_text()
    (corpus / "talk.vtt").write_text(text.replace(clip_lines(1)[0][-1], "Привет, мир"))
    error = refusal(corpus, tmp_path / "out", codec)
    assert error.code is Code.SCRIPT_MISMATCH and "talk at 0.0 s" in error.line()
    assert not (tmp_path / "out" / WORK).exists()


@needs_recordings
def test_speakers_are_embedded_when_asked(tmp_path: Path, codec: Codec) -> None:
    table = table_of(tmp_path / "corpus", 5)
    plain, asked = make(table, tmp_path / "plain", codec), make(table, tmp_path / "asked", codec, speakers=True)
    assert plain.speaker_embedding == {} and all(row.speaker_embedding is None for row in rows_of(tmp_path / "plain", plain))
    assert asked.speaker_embedding["dim"] == 256
    vectors = np.array([row.speaker_embedding for row in rows_of(tmp_path / "asked", asked)])  # [N, 256]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert (vectors @ vectors.T).min() > 0.7, "one voice"


# ---- options ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"processes": 0},
        {"devices": ("cpu", "cuda:0")},
        {"allow_refused": 1.0},
        {"max_clip_s": 0.0},
        {"batch_size": 0},
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, codec: Codec, options: dict[str, object]) -> None:
    table = table_of(tmp_path / "corpus", 3)
    assert refusal(table, tmp_path / "out", codec, **options).code is Code.OPTION_INVALID
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
