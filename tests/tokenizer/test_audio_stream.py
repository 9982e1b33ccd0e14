"""Recordings read block by block are what they are as a whole, and a bad one says what is wrong with it."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.audio import check_sound, read_audio, read_audio_and_facts
from tokenizer.audio_source import AudioSource
from tokenizer.audio_stream import AudioStream
from tokenizer.resampling import Resampler, resample

RATES = (8000, 11025, 16000, 22050, 24000, 44100, 48000)


def speech(seconds: float, rate: int = 16000, seed: int = 0) -> np.ndarray:
    """Noise whose loudness goes up and down: compresses like nothing, clips nowhere."""
    t = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(t)) * 0.1
    return (noise * (1 + np.sin(2 * np.pi * 3 * t)) / 2).astype(np.float32)


@given(st.integers(8000, 48000), st.sampled_from((16000, 22050, 24000)), st.data())
@settings(max_examples=25, deadline=None)
def test_any_rate_in_any_blocks(rate: int, target: int, data: st.DataObject) -> None:
    wav = np.random.default_rng(rate).standard_normal(data.draw(st.integers(0, 4000))).astype(np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wav)), max_size=20)))
    resampler = Resampler(rate, target)
    made = np.concatenate([*(resampler.push(block) for block in np.split(wav, cuts)), resampler.finish()])
    assert np.array_equal(made, resample(wav, rate, target)) and len(made) == -(-len(wav) * target // rate)


def test_sample_by_sample_is_the_whole() -> None:
    wav = speech(0.05, 44100)
    for target in (16000, 24000, 44100):
        resampler = Resampler(44100, target)
        made = np.concatenate([*(resampler.push(wav[at : at + 1]) for at in range(len(wav))), resampler.finish()])
        assert np.array_equal(made, resample(wav, 44100, target))


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=12)


@given(st.sampled_from(RATES), st.sampled_from((16000, 24000)), SIZES, st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_resampling_in_blocks_is_resampling_the_whole_bit_by_bit(rate: int, target: int, sizes: list[int], seed: int) -> None:
    wav = np.random.default_rng(seed).standard_normal(sum(sizes)).astype(np.float32)
    resampler = Resampler(rate, target)
    blocks = [resampler.push(block) for block in np.split(wav, np.cumsum(sizes)[:-1])]
    made = np.concatenate([*blocks, resampler.finish()])
    assert np.array_equal(made, resample(wav, rate, target))


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
@pytest.mark.parametrize("block_s", [0.037, 0.5, 100.0])
def test_a_stream_gives_what_reading_the_whole_gives(tmp_path: Path, suffix: str, block_s: float) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, np.stack([speech(3.1, 44100), speech(3.1, 44100, 1)], axis=1), 44100)
    whole, facts = read_audio_and_facts(path, 16000)
    with AudioStream(AudioSource(path), 16000, block_s=block_s) as stream:
        assert np.array_equal(np.concatenate(list(stream.blocks())), whole)
        assert stream.facts.peak == facts.peak and stream.facts.seconds == facts.seconds
        assert stream.facts.rms == pytest.approx(facts.rms)
        assert stream.seconds == pytest.approx(3.1, abs=0.1)
    assert (facts.rate, facts.channels) == (44100, 2) and facts.clipped == 0


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_a_part_is_exact_to_the_sample(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, speech(4.0), 16000)
    whole = read_audio(path, 16000)
    part = read_audio(path, 16000, start_s=1.25, stop_s=2.5)
    assert np.array_equal(part, whole[20000:40000])
    assert np.array_equal(read_audio(path, 16000, start_s=3.0), whole[48000:])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_a_part_of_an_ogg_is_found_without_reading_what_lies_before_it(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "a.ogg"
    with soundfile.SoundFile(path, "w", 16000, 1, format="OGG", subtype=subtype) as out:
        for second in range(20):
            out.write(speech(1.0, 16000, second))
    whole = read_audio(path, 16000)
    for start in np.random.default_rng(3).integers(0, len(whole) - 8000, 25).tolist():
        part = read_audio(path, 16000, start_s=start / 16000, stop_s=start / 16000 + 0.5)
        assert np.array_equal(part, whole[start : start + 8000])
        with AudioStream(AudioSource(path), 16000, start_s=start / 16000) as stream:
            assert stream._reader.skip_to(start) == start


def test_a_recording_inside_another_file_is_read_in_place(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", speech(1.0), 16000)
    data = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "all.bin").write_bytes(b"x" * 777 + data + b"y" * 99)
    inside = AudioSource(tmp_path / "all.bin", offset=777, size_bytes=len(data), name="all.bin:a.flac")
    assert np.array_equal(read_audio(inside, 16000), read_audio(tmp_path / "a.flac", 16000))
    with inside.open() as stream:
        assert stream.seek(-4, io.SEEK_END) == len(data) - 4 and stream.read() == data[-4:] and stream.read(1) == b""


def test_a_longer_part_than_allowed_is_refused_early(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", speech(3.0), 16000)
    with pytest.raises(HocketError) as caught:
        read_audio(tmp_path / "a.wav", 16000, max_s=2.0)
    assert caught.value.code is Code.AUDIO_UNREADABLE and "2 s" in caught.value.detail
    assert len(read_audio(tmp_path / "a.wav", 16000, max_s=3.0)) == 48000


def _wav(samples: np.ndarray, **options: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format=options.get("format", "WAV"), subtype=options.get("subtype"))
    return out.getvalue()


BAD: dict[str, tuple[Callable[[], bytes], Code, str]] = {
    "zero bytes": (lambda: b"", Code.AUDIO_UNREADABLE, "empty"),
    "no samples": (lambda: _wav(np.zeros(0, np.float32)), Code.AUDIO_UNREADABLE, "no samples"),
    "one sample": (lambda: _wav(np.ones(1, np.float32) * 0.5), Code.AUDIO_UNREADABLE, "ms"),
    "text": (lambda: b"this is no sound at all\n" * 50, Code.AUDIO_UNREADABLE, "bad.wav"),
    "silent": (lambda: _wav(np.zeros(16000, np.float32)), Code.AUDIO_SILENT, "silent"),
    "clipped": (lambda: _wav(np.clip(speech(1.0) * 50, -1, 1)), Code.AUDIO_CLIPPED, "full scale"),
    "nan": (lambda: _wav(np.full(16000, np.nan, np.float32), subtype="FLOAT"), Code.AUDIO_UNREADABLE, "not finite"),
    "wav cut off": (lambda: _wav(speech(1.0))[:20000], Code.AUDIO_UNREADABLE, "cut off"),
    "flac cut off": (lambda: _wav(speech(2.0), format="FLAC")[:20000], Code.AUDIO_UNREADABLE, "bad.wav"),
    "header only": (lambda: _wav(speech(1.0))[:30], Code.AUDIO_UNREADABLE, "bad.wav"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_recording_says_what_is_wrong(tmp_path: Path, kind: str) -> None:
    make, code, part = BAD[kind]
    path = tmp_path / "bad.wav"
    path.write_bytes(make())
    with pytest.raises(HocketError) as caught:
        _, facts = read_audio_and_facts(path, 16000)
        check_sound(facts, path.name)
    assert caught.value.code is code and part in caught.value.detail and "\n" not in caught.value.line()


def test_a_mislabelled_recording_is_read_for_what_it_is(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", speech(1.0), 16000)
    (tmp_path / "a.flac").rename(tmp_path / "a.wav")
    assert len(read_audio(tmp_path / "a.wav", 16000)) == 16000


def test_a_folder_and_nothing_are_no_recordings(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.wav"):
        with pytest.raises(HocketError) as caught:
            read_audio(path, 16000)
        assert caught.value.code is Code.AUDIO_UNREADABLE


@pytest.mark.parametrize(("suffix", "codec"), [("m4a", "aac"), ("webm", "libopus"), ("mka", "pcm_s16le")])
def test_formats_of_ffmpeg_are_read_with_pyav(tmp_path: Path, suffix: str, codec: str) -> None:
    av = pytest.importorskip("av", reason="the extra ffmpeg is not installed")
    path, tone = tmp_path / f"a.{suffix}", np.sin(np.arange(96000) / 48000 * 2 * np.pi * 440).astype(np.float32) * 0.5
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray((tone * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = 48000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    wav, facts = read_audio_and_facts(path, 16000)
    assert facts.rate == 48000 and len(wav) == pytest.approx(32000, abs=1600)
    spectrum = np.abs(np.fft.rfft(wav[4000:20000]))
    assert spectrum.argmax() == pytest.approx(440, abs=1)
    whole = read_audio(path, 48000)
    assert np.array_equal(read_audio(path, 48000, start_s=0.5, stop_s=1.0), whole[24000:48000]), "exact to the sample"
    for block_s in (0.011, 0.5):
        with AudioStream(AudioSource(path), 16000, block_s=block_s) as blocks:
            assert np.array_equal(np.concatenate(list(blocks.blocks())), wav)
    data = path.read_bytes()
    (tmp_path / "all.tar").write_bytes(b"x" * 512 + data + b"y" * 512)
    assert np.array_equal(read_audio(AudioSource(tmp_path / "all.tar", 512, len(data), "a"), 16000), wav)
    path.write_bytes(data[:60])
    with pytest.raises(HocketError) as caught:
        read_audio(path, 16000)
    assert caught.value.code is Code.AUDIO_UNREADABLE


PEAK = """
import sys
from pathlib import Path
from tokenizer.audio_source import AudioSource
from tokenizer.audio_stream import AudioStream
from simulations.usage import peak_bytes

with AudioStream(AudioSource(Path(sys.argv[1])), 16000) as stream:
    total = sum(len(block) for block in stream.blocks())
print(total, peak_bytes())
"""


def sparse_wav(path: Path, minutes: int) -> None:
    """Stereo at 48 kHz that is silent but for its first second, and takes up next to no disk."""
    size = minutes * 60 * 48000 * 4
    soundfile.write(path, speech(1.0, 48000)[:, None].repeat(2, axis=1), 48000)
    with path.open("r+b") as file:
        head = file.read(44)
        assert head[36:40] == b"data"
        file.seek(4)
        file.write(struct.pack("<I", 36 + size))
        file.seek(40)
        file.write(struct.pack("<I", size))
        file.truncate(44 + size)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_half_an_hour_needs_the_memory_of_a_minute(tmp_path: Path) -> None:
    peaks = {}
    for minutes in (1, 30):
        path = tmp_path / f"{minutes}.wav"
        sparse_wav(path, minutes)
        ran = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
        total, peaks[minutes] = (int(number) for number in ran.stdout.split())
        assert total == minutes * 60 * 16000
    assert peaks[30] - peaks[1] < 8 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3", "mka"])
def test_memory_does_not_grow_with_the_length_of_compressed_sound(tmp_path: Path, suffix: str) -> None:
    if suffix == "mka":
        pytest.importorskip("av", reason="the extra ffmpeg is not installed")
    peaks = {}
    for minutes in (1, 4):
        path = tmp_path / f"{minutes}.{suffix}"
        sound = np.concatenate([speech(60.0, 8000, minute) for minute in range(minutes)])
        if suffix == "mka":
            write_matroska(path, sound)
        else:
            with soundfile.SoundFile(path, "w", 8000, 1) as out:
                out.write(sound)
        ran = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
        total, peaks[minutes] = (int(number) for number in ran.stdout.split())
        assert total == pytest.approx(minutes * 60 * 16000, abs=4000)
    assert peaks[4] - peaks[1] < 8 * 2**20


def write_matroska(path: Path, sound: np.ndarray) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        for block in np.split(sound, len(sound) // 8000):
            frame = av.AudioFrame.from_ndarray((block * 32767).astype(np.int16)[None], format="s16", layout="mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
