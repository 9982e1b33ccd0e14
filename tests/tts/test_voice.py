"""An export folder speaks: from text to a WAV file through the reader, the model and the codec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from untrained_export import SYMBOLS, one_hot_voices, untrained

from common.errors import Code, HocketError
from tts.synthesis import Sampling
from tts.voice import Voice, decode_in_blocks, find_export, load_voice, write_speech, write_wav

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("voice"))


@pytest.fixture(scope="module")
def voice(checkpoint: Path) -> Voice:
    return load_voice(checkpoint)


def test_an_export_is_found_in_its_folder_and_in_a_run_folder(checkpoint: Path, tmp_path: Path) -> None:
    assert find_export(checkpoint) == checkpoint
    assert find_export(checkpoint.parent) == checkpoint
    with pytest.raises(HocketError) as caught:
        find_export(tmp_path)
    assert caught.value.code is Code.CHECKPOINT_INVALID


def test_speech_is_written_as_wav_and_is_a_function_of_the_seed(voice: Voice, tmp_path: Path) -> None:
    out = tmp_path / "new" / "sample.wav"
    spoken = write_speech(voice, TEXT, out, Sampling(seed=5))
    samples, rate = soundfile.read(out)
    assert rate == voice.codec.sample_rate and len(samples) == len(spoken.samples) == round(spoken.seconds * rate)
    assert np.abs(samples).max() > 1e-3
    assert np.array_equal(voice.speak(TEXT, Sampling(seed=5)).samples, spoken.samples)
    assert not np.array_equal(voice.speak(TEXT, Sampling(seed=6)).samples, spoken.samples)


@pytest.mark.parametrize("rate", [0.8, 1.4])
def test_the_rate_is_a_factor_on_the_length(voice: Voice, rate: float) -> None:
    natural = voice.speak(TEXT, Sampling(guidance=1.0)).seconds
    assert voice.speak(TEXT, Sampling(rate=rate, guidance=1.0)).seconds == pytest.approx(rate * natural, rel=0.05)


def test_a_language_that_the_export_does_not_speak_is_refused(checkpoint: Path) -> None:
    with pytest.raises(HocketError) as caught:
        load_voice(checkpoint, "fr")
    assert caught.value.code is Code.LANGUAGE_REFUSED and "en-US" in caught.value.detail


def test_a_text_without_words_is_refused(voice: Voice) -> None:
    with pytest.raises(HocketError) as caught:
        voice.speak("...")
    assert caught.value.code is Code.NO_PHONEMES


def test_samples_beyond_full_scale_are_scaled_down_not_clipped(tmp_path: Path) -> None:
    wave = (3 * np.sin(np.arange(1600) / 20)).astype(np.float32)
    write_wav(tmp_path / "loud.wav", wave, 16000)
    samples, _ = soundfile.read(tmp_path / "loud.wav")
    assert np.abs(samples).max() == pytest.approx(1.0, abs=1e-3)
    assert np.corrcoef(samples, wave)[0, 1] > 0.9999


LONG_TEXT = "The cat sat on the mat. Where is the dog? It is in the garden, with the other dogs, and it will not come back."


def test_a_long_text_is_cut_at_sentences_and_streams_what_it_says_as_a_whole(voice: Voice) -> None:
    lines = voice.lines(LONG_TEXT)
    assert [line.number for line in lines] == [0, 1, 2]
    how = Sampling(seed=3)
    whole = voice.speak_lines(lines, how).samples
    blocks = list(voice.stream(lines, how))
    assert len(blocks) > len(lines), "sound comes before its sentence is at an end"
    streamed = np.concatenate(blocks)
    assert streamed.shape == whole.shape
    assert np.abs(streamed - whole).max() < 1e-4


@pytest.mark.parametrize("block_frames", [1, 7, 1000])
def test_codes_are_decoded_in_blocks_as_they_are_as_a_whole(voice: Voice, block_frames: int) -> None:
    codes = np.random.default_rng(1).integers(0, voice.codec.codebook_size, (4, 90)).astype(np.uint16)
    parts = np.split(codes, [0, 1, 2, 30, 30, 77], axis=1)
    blocks = list(decode_in_blocks(voice.codec, parts, block_frames))
    whole = voice.codec.decode(codes)
    assert sum(map(len, blocks)) == len(whole)
    assert np.abs(np.concatenate(blocks) - whole).max() < 1e-4 * np.abs(whole).max()


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"temperature": 0.0}, {"temperature": 1.5}, {"top_k": 1}, {"guidance": 1.0}, {"rate": 1.3}]
)
def test_every_parameter_of_sampling_changes_what_is_said(voice: Voice, changed: dict[str, float]) -> None:
    (line,) = voice.lines("Good morning.")
    plain, other = (voice.codes([line], Sampling(**options))[0] for options in ({}, changed))
    assert plain.shape != other.shape or not np.array_equal(plain, other)


def test_phonemes_written_out_are_spoken(voice: Voice) -> None:
    (line,) = voice.lines("Good morning.")
    symbols = [SYMBOLS[int(number)] for number in line.phonemes]
    written = " ".join(f"/ {symbol}" if start else symbol for symbol, start in zip(symbols, line.word_starts, strict=True))
    (again,) = voice.lines_of_phonemes(written + "\n\n")
    assert np.array_equal(again.phonemes, line.phonemes) and np.array_equal(again.word_starts, line.word_starts)
    with pytest.raises(HocketError) as caught:
        voice.lines_of_phonemes("h @ l oʊ")
    assert caught.value.code is Code.NO_PHONEMES and "@" in caught.value.detail


def test_speakers_sound_different_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    untrained(tmp_path, speakers=("ada", "bo"), voices=one_hot_voices("ada", "bo"))
    said = {
        name: load_voice(tmp_path / "checkpoint", speaker=name).speak("Good morning.").samples for name in ("ada", "bo", None)
    }
    assert np.array_equal(said["ada"], said[None]), "the first speaker speaks when none is named"
    assert said["ada"].shape != said["bo"].shape or not np.array_equal(said["ada"], said["bo"])
    with pytest.raises(HocketError) as caught:
        load_voice(tmp_path / "checkpoint", speaker="eve")
    assert caught.value.code is Code.OPTION_INVALID and "ada, bo" in caught.value.detail
