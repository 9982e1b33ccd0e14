"""Reading and resampling recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.audio import audio_files, read_audio, resample


def tone(frequency: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate, target", [(8000, 16000), (22050, 16000), (48000, 16000), (16000, 24000), (44100, 22050)])
def test_a_tone_stays_the_same_tone(rate: int, target: int) -> None:
    made, expected = resample(tone(1000, rate), rate, target), tone(1000, target)
    assert abs(len(made) - len(expected)) <= 1
    middle = slice(target // 50, len(expected) - target // 50)  # the ends ring
    np.testing.assert_allclose(made[middle], expected[middle], atol=2e-3)


def test_what_is_above_the_new_band_is_removed() -> None:
    made = resample(tone(11000, 48000), 48000, 16000)
    assert np.abs(made[400:-400]).max() < 2e-3


@given(st.integers(1, 2000), st.sampled_from((8000, 11025, 22050, 44100)), st.sampled_from((16000, 24000)))
@settings(max_examples=60, deadline=None)
def test_length_is_rounded_up(n_samples: int, rate: int, target: int) -> None:
    made = resample(np.ones(n_samples, np.float32), rate, target)
    assert len(made) == -(-n_samples * target // rate) and made.dtype == np.float32


def test_channels_are_averaged_and_rates_met(tmp_path: Path) -> None:
    stereo = np.stack([tone(500, 32000), np.zeros(16000, np.float32)], axis=1)
    soundfile.write(tmp_path / "a.flac", 0.5 * stereo, 32000)
    wav = read_audio(tmp_path / "a.flac", 16000)
    assert wav.shape == (8000,)
    np.testing.assert_allclose(wav[200:-200], 0.25 * tone(500, 16000)[200:-200], atol=2e-3)


@pytest.mark.parametrize("content", [b"", b"RIFF....WAVEjunk", None])
def test_what_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.wav"
    if content is None:
        soundfile.write(path, np.zeros(0, np.float32), 16000)
    else:
        path.write_bytes(content)
    with pytest.raises(HocketError) as caught:
        read_audio(path, 16000)
    assert caught.value.code == Code.AUDIO_UNREADABLE and str(path) in caught.value.line()


@pytest.mark.parametrize("rate", [100, 1_000_000])
def test_a_rate_that_cannot_be(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "a.wav", np.ones(50, np.float32), rate)
    with pytest.raises(HocketError) as caught:
        read_audio(tmp_path / "a.wav", 16000)
    assert caught.value.code == Code.AUDIO_UNREADABLE and str(rate) in caught.value.line()


def test_files_below_a_folder_in_order(tmp_path: Path) -> None:
    for name in ("b.wav", "a/z.FLAC", "a/b.ogg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in audio_files(tmp_path)] == ["a/b.ogg", "a/z.FLAC", "b.wav"]
