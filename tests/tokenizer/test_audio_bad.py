"""Every kind of bad recording has its number and says what to do; what only looks bad is read."""

from __future__ import annotations

import io
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ERRORS, Code, HocketError
from tokenizer.audio import audio_files, check_sound, read_audio, read_audio_and_facts
from tokenizer.audio_length import missing_bytes
from tokenizer.audio_source import AudioSource

RATE = 16000


def noise(seconds: float, scale: float = 0.1) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(int(RATE * seconds)) * scale).astype(np.float32)


def encoded(samples: np.ndarray, form: str = "WAV", subtype: str | None = None, rate: int = RATE) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, subtype=subtype)
    return out.getvalue()


def ffmpeg(suffix: str, codec: str, **options: str) -> bytes:
    av = pytest.importorskip("av", reason="the extra ffmpeg is not installed")
    with tempfile.TemporaryDirectory() as folder:
        return _ffmpeg(av, Path(folder) / f"a.{suffix}", codec, options)


def _ffmpeg(av: Any, path: Path, codec: str, options: dict[str, str]) -> bytes:
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray((np.repeat(noise(4), 3) * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = 48000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return path.read_bytes()


def with_hole(data: bytes) -> bytes:
    half = len(data) // 2
    return data[:half] + bytes(3000) + data[half + 3000 :]


def refusal(path: Path) -> HocketError:
    with pytest.raises(HocketError) as caught:
        check_sound(read_audio_and_facts(path, RATE)[1], path.name)
    return caught.value


# What it is, its bytes, its code, a part of what is said, and a part of the remedy.
BAD: dict[str, tuple[Callable[[], bytes], Code, str, str]] = {
    "zero bytes": (lambda: b"", Code.AUDIO_UNREADABLE, "0 bytes", "copy it again"),
    "no samples": (lambda: encoded(noise(0)), Code.AUDIO_UNREADABLE, "no samples", "leave it out"),
    "one sample": (lambda: encoded(np.full(1, 0.5, np.float32)), Code.AUDIO_UNREADABLE, "0.0625 ms", "leave it out"),
    "silent": (lambda: encoded(np.zeros(RATE, np.float32)), Code.AUDIO_SILENT, "silent", "right file"),
    "a constant": (lambda: encoded(np.full(RATE, 0.5, np.float32)), Code.AUDIO_SILENT, "a constant", "right file"),
    "channels cancel out": (
        lambda: encoded(np.stack([noise(1), -noise(1)], axis=1), subtype="FLOAT"), Code.AUDIO_SILENT, "cancel", "right file",
    ),
    "clipped": (lambda: encoded(np.clip(noise(1, 1.0), -1, 1)), Code.AUDIO_CLIPPED, "at most 1%", "quieter"),
    "NaN": (lambda: encoded(np.full(RATE, np.nan, np.float32), subtype="FLOAT"), Code.AUDIO_UNREADABLE, "not finite", "convert"),
    "one NaN": (
        lambda: encoded(np.concatenate([noise(30), np.full(1, np.nan, np.float32)]), subtype="FLOAT"),
        Code.AUDIO_UNREADABLE, "not finite", "convert",
    ),
    "infinite": (lambda: encoded(np.full(9, np.inf), subtype="FLOAT"), Code.AUDIO_UNREADABLE, "not finite", "convert"),
    "integers as floats": (lambda: encoded(noise(1) * 32768, subtype="FLOAT"), Code.AUDIO_UNREADABLE, "full scale", "divide"),
    "text": (lambda: b"these are words and no sound\n" * 99, Code.AUDIO_UNREADABLE, "bad.wav", "leave it out"),
    "HTML": (lambda: b"<!doctype html><title>404</title>", Code.AUDIO_UNREADABLE, "bad.wav", "leave it out"),
    "random bytes": (lambda: np.random.default_rng(0).bytes(5000), Code.AUDIO_UNREADABLE, "bad.wav", "leave it out"),
    "only a header": (lambda: encoded(noise(1))[:30], Code.AUDIO_UNREADABLE, "bad.wav", "leave it out"),
    "a FLAC cut off": (lambda: encoded(noise(4), "FLAC")[:30000], Code.AUDIO_UNREADABLE, "bad.wav", "leave it out"),
    "a rate of 100 Hz": (lambda: encoded(noise(1), rate=100), Code.AUDIO_UNREADABLE, "100 samples a second", "convert"),
    "a rate of 1 MHz": (lambda: encoded(noise(1), rate=10**6), Code.AUDIO_UNREADABLE, "1000000 samples a second", "convert"),
    "100 channels": (lambda: encoded(np.zeros((9, 100), np.float32)), Code.AUDIO_UNREADABLE, "100 channels", "convert"),
    "an Opus with a hole": (
        lambda: with_hole(encoded(noise(6), "OGG", "OPUS")), Code.AUDIO_UNREADABLE, "of its 96000 samples", "copy it again",
    ),
    "film without sound": (lambda: silent_film(), Code.AUDIO_UNREADABLE, "no sound", "leave it out"),
}  # fmt: skip


def silent_film() -> bytes:
    av = pytest.importorskip("av", reason="the extra ffmpeg is not installed")
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return out.getvalue()


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("inside", [False, True], ids=["a file", "a part of a file"])
def test_each_kind_has_its_number_and_says_what_to_do(tmp_path: Path, kind: str, inside: bool) -> None:
    make, code, part, remedy = BAD[kind]
    data = make()
    path = tmp_path / "bad.wav"
    path.write_bytes(b"x" * 100 + data + b"x" * 100 if inside else data)
    source = AudioSource(path, 100, len(data), "all.tar:bad.wav") if inside else AudioSource(path)
    with pytest.raises(HocketError) as caught:
        check_sound(read_audio_and_facts(source, RATE)[1], source.title)
    error = caught.value
    assert error.code is code and part in error.detail and "bad.wav" in error.detail and remedy in error.remedy
    assert error.line().startswith(f"H{int(code)} {ERRORS[code].title}") and "\n" not in error.line() and len(error.line()) < 400


CONTAINERS: dict[str, Callable[[], bytes]] = {
    "WAV": lambda: encoded(noise(4)),
    "WAV of floats": lambda: encoded(noise(4), "WAVEX", "FLOAT"),
    "RF64": lambda: encoded(noise(4), "RF64"),
    "W64": lambda: encoded(noise(4), "W64"),
    "AIFF": lambda: encoded(noise(4), "AIFF"),
    "AU": lambda: encoded(noise(4), "AU"),
    "CAF": lambda: encoded(noise(4), "CAF"),
    "FLAC": lambda: encoded(noise(4), "FLAC"),
    "Vorbis": lambda: encoded(noise(4), "OGG", "VORBIS"),
    "Opus": lambda: encoded(noise(4), "OGG", "OPUS"),
    "MP3": lambda: encoded(noise(4), "MP3"),
    "M4A": lambda: ffmpeg("m4a", "aac"),
    "M4A for the web": lambda: ffmpeg("m4a", "aac", movflags="faststart"),
    "MP4 in fragments": lambda: ffmpeg("mp4", "aac", movflags="frag_keyframe+empty_moov"),
    "WebM": lambda: ffmpeg("webm", "libopus"),
    "Matroska": lambda: ffmpeg("mka", "pcm_s16le"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_recording_that_is_cut_off_is_never_taken_for_a_shorter_one(tmp_path: Path, kind: str) -> None:
    data, path = CONTAINERS[kind](), tmp_path / "a.wav"
    path.write_bytes(data)
    assert len(read_audio(path, RATE)) == pytest.approx(4 * RATE, rel=0.03)
    assert missing_bytes(io.BytesIO(data)) == 0
    for share in (0.05, 0.3, 0.5, 0.9, 0.99):
        path.write_bytes(data[: int(len(data) * share)])
        assert refusal(path).code is Code.AUDIO_UNREADABLE


@given(st.sampled_from(("WAV", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG", "MP3")), st.data())
@settings(max_examples=80, deadline=None)
def test_damaged_headers_raise_nothing_else(form: str, data: st.DataObject) -> None:
    content = bytearray(encoded(noise(0.2), form))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, min(len(content) - 1, 120)))] = data.draw(st.integers(0, 255))
    stream = io.BytesIO(bytes(content[: data.draw(st.integers(0, len(content)))]))
    assert missing_bytes(stream) >= 0 and stream.tell() == 0


HEADS = (b"RIFF\0\0\0\0WAVE", b"FORM\0\0\0\0AIFF", b"caff", b"OggS\0", b"\x1a\x45\xdf\xa3", b"\0\0\0\x08ftyp", b"ID3", b".snd")


@given(st.binary(max_size=300), st.sampled_from(HEADS))
@settings(max_examples=200, deadline=None)
def test_any_bytes_have_a_length(tail: bytes, head: bytes) -> None:
    assert missing_bytes(io.BytesIO(head + tail)) >= 0


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_wav_from_a_pipe_has_no_length_and_is_whole(tmp_path: Path, size: int) -> None:
    data = encoded(noise(1))
    at = data.index(b"data") + 4
    (tmp_path / "a.wav").write_bytes(data[:at] + struct.pack("<I", size) + data[at + 4 :])
    assert len(read_audio(tmp_path / "a.wav", RATE)) == RATE


def test_what_follows_the_sound_does_no_harm(tmp_path: Path) -> None:
    for form in ("WAV", "OGG", "MP3", "AIFF"):
        (tmp_path / "a.wav").write_bytes(encoded(noise(1), form) + b"TAG" + bytes(125))
        assert len(read_audio(tmp_path / "a.wav", RATE)) == RATE


@pytest.mark.parametrize(("form", "suffix"), [("MP3", "wav"), ("FLAC", "mp3"), ("OGG", "raw"), ("WAV", "txt"), ("WAV", "")])
def test_a_wrong_name_does_no_harm(tmp_path: Path, form: str, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(encoded(noise(1), form))
    assert len(read_audio(path, RATE)) == pytest.approx(RATE, abs=1200)


def test_names_of_any_bytes(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.wav"))
    path.write_bytes(encoded(noise(1)))
    assert len(read_audio(path, RATE)) == RATE
    path.write_bytes(b"")
    assert refusal(path).line().encode()


PLAYLISTS = {
    "ffconcat": b"ffconcat version 1.0\nfile good.flac\n",
    "HLS": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\ngood.flac\n#EXT-X-ENDLIST\n",
    "DASH": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"></MPD>',
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_recording_opens_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "good.flac").write_bytes(encoded(noise(1), "FLAC"))
    (tmp_path / "bad.wav").write_bytes(PLAYLISTS[kind])
    monkeypatch.chdir(tmp_path)
    assert refusal(Path("bad.wav")).code is Code.AUDIO_UNREADABLE


def test_a_recording_listens_on_no_port(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="without it nothing would")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1] // 2 * 2
    session = f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n"
    (tmp_path / "bad.wav").write_text(session)
    assert "not recognised" in refusal(tmp_path / "bad.wav").detail.lower()


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "circle.wav").symlink_to(tmp_path / "circle.wav")
    cases = {tmp_path: "is a folder", tmp_path / "pipe.wav": "no file", tmp_path / "no.wav": "no file", Path("a\0b"): "no file"}
    for path, part in {**cases, tmp_path / "circle.wav": "", Path("x" * 5000): ""}.items():
        error = refusal(path)
        assert error.code is Code.AUDIO_UNREADABLE and part in error.detail and error.remedy


def test_files_that_hold_only_what_a_mac_notes_are_none(tmp_path: Path) -> None:
    for name in ("a.wav", "._a.wav", ".hidden.flac"):
        (tmp_path / name).touch()
    assert [path.name for path in audio_files(tmp_path)] == ["a.wav"]


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_parts_beyond_the_end_are_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(encoded(noise(2), form))
    assert len(read_audio(path, RATE, start_s=1.0, stop_s=2.05)) == RATE, "times are rounded"
    for start, stop in ((1.0, 3.0), (2.5, 3.0), (2.5, None), (2.0, 2.05)):
        with pytest.raises(HocketError) as caught:
            read_audio(path, RATE, start_s=start, stop_s=stop)
        assert caught.value.code is Code.AUDIO_UNREADABLE and "2.00 s" in caught.value.detail and "times" in caught.value.remedy


def test_speech_is_not_clipped_and_too_loud_speech_is(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "shared" / "speech"
    if not folder.is_dir():
        pytest.skip("no shared/speech beside the checkout")
    for path in audio_files(folder)[::60]:
        samples, facts = read_audio_and_facts(path, RATE)
        check_sound(facts, path.name)
        loud = np.clip(samples / np.abs(samples).max() * 4, -1, 1)
        (tmp_path / "loud.wav").write_bytes(encoded(loud))
        assert refusal(tmp_path / "loud.wav").code is Code.AUDIO_CLIPPED
