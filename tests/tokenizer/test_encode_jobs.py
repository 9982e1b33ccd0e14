"""Encoding in jobs: fixed slices, results that say what became of every clip, and codes that are read back in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.codec import Codec, load_codec
from tokenizer.encode_jobs import CLIPS_PER_JOB, ClipTask, CodeStore, JobResult, encode_job, slices
from tokenizer.items import Item

RATE = 16000


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_codec(n_codebooks=2)


def tone(path: Path, seconds: float, loud: float = 0.3, hz: float = 220) -> ClipTask:
    samples = loud * np.sin(2 * np.pi * hz * np.arange(round(seconds * RATE)) / RATE)
    soundfile.write(path, samples.astype(np.float32), RATE)
    return ClipTask(path.stem, AudioSource(path), 0.0, None, 3)


def test_slices_are_fixed_and_lose_nothing() -> None:
    ids = np.ones(3, np.uint16)
    items = [
        Item(str(n), AudioSource(Path("a")), 0.0, None, "x", "x", ids, ids.astype(np.uint8), "en", "s", "l") for n in range(37)
    ]
    jobs = slices(items)
    assert [len(job) for job in jobs] == [CLIPS_PER_JOB, CLIPS_PER_JOB, 37 - 2 * CLIPS_PER_JOB]
    assert [clip.id for job in jobs for clip in job] == [item.id for item in items]
    assert all(ClipTask.from_json(json.loads(json.dumps(clip.to_json()))) == clip for job in jobs for clip in job)


def test_a_result_tells_what_became_of_each_clip(tmp_path: Path, codec: Codec) -> None:
    good = [tone(tmp_path / "one.wav", 0.5), tone(tmp_path / "two.wav", 0.9, hz=330)]
    silent, clipped = tone(tmp_path / "silent.wav", 0.5, 0.0), tone(tmp_path / "clipped.wav", 0.5, 30.0)
    short = ClipTask("short", good[0].audio, 0.0, 0.1, 30)
    part = ClipTask("part", good[1].audio, 0.2, 0.6, 3)
    (tmp_path / "none.wav").write_bytes(b"")
    nothing = ClipTask("none", AudioSource(tmp_path / "none.wav"), 0.0, None, 3)
    encode_job([good[0], silent, short, nothing, clipped, part, good[1]], codec, tmp_path / "job")
    result = JobResult(tmp_path / "job")
    refusals = [None, Code.AUDIO_SILENT, Code.TOO_FEW_FRAMES, Code.AUDIO_UNREADABLE, Code.AUDIO_CLIPPED, None, None]
    assert [clip.code for clip in result.clips] == refusals
    assert all(bool(clip.reason) == (clip.code is not None) == (clip.facts is None) for clip in result.clips)
    for place, source in ((0, good[0]), (5, part), (6, good[1])):
        samples, _ = soundfile.read(source.audio.path, dtype="float32")
        stop = None if source.stop_s is None else round(source.stop_s * RATE)
        assert np.array_equal(result.codes_of(place), codec.encode(samples[round(source.start_s * RATE) : stop]))
    facts = result.clips[5].facts
    assert facts is not None and (facts.rate, facts.channels) == (RATE, 1) and abs(facts.seconds - 0.4) < 1e-3
    assert abs(facts.peak - 0.3) < 0.01 and facts.clipped == 0 and result.voice_of(0) is None


def test_the_same_job_gives_the_same_bytes(tmp_path: Path, codec: Codec) -> None:
    clips = [tone(tmp_path / f"{n}.wav", 0.3 + n / 10, hz=200 + 40 * n) for n in range(4)]
    encode_job(clips, codec, tmp_path / "a")
    encode_job(clips, codec, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_job_without_usable_clips(tmp_path: Path, codec: Codec) -> None:
    encode_job([tone(tmp_path / "a.wav", 0.5, 0.0)], codec, tmp_path / "job")
    assert [clip.code for clip in JobResult(tmp_path / "job").clips] == [Code.AUDIO_SILENT]


def test_a_result_that_cannot_be_written_ends_the_work(tmp_path: Path, codec: Codec) -> None:
    (tmp_path / "folder").write_bytes(b"a file where a folder is wanted")
    with pytest.raises(HocketError) as caught:
        encode_job([tone(tmp_path / "a.wav", 0.5)], codec, tmp_path / "folder" / "job")
    assert caught.value.code is Code.STATE_UNREADABLE


def test_codes_are_read_back_with_a_bounded_cache(tmp_path: Path, codec: Codec) -> None:
    clips = [tone(tmp_path / f"{n}.wav", 0.2, hz=150 + 20 * n) for n in range(CLIPS_PER_JOB + 3)]
    for number in range(2):
        encode_job(clips[number * CLIPS_PER_JOB :][:CLIPS_PER_JOB], codec, tmp_path / str(number))
    opened: list[int] = []

    def path_of(number: int) -> Path:
        opened.append(number)
        return tmp_path / str(number)

    vectors = codec.codebook_vectors()
    store = CodeStore(path_of, vectors)
    for index in (0, CLIPS_PER_JOB, 1, CLIPS_PER_JOB + 2):
        samples, _ = soundfile.read(clips[index].audio.path, dtype="float32")
        codes = codec.encode(samples)
        assert np.array_equal(store.codes(index), codes)
        assert np.allclose(store.features(index), codec.latents(codes))
    assert opened == [0, 1]
    tight = CodeStore(path_of, vectors, cache_bytes=1)
    opened.clear()
    for index in (0, 1, CLIPS_PER_JOB, 0):
        tight.codes(index)
    assert opened == [0, 1, 0], "one result is kept, whatever its size"
    assert [result.code for number in range(2) for result in JobResult(path_of(number)).clips] == [None] * len(clips)
