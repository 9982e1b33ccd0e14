"""An export folder speaks: from text to a WAV file through the reader, the model and the codec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from common.errors import Code, HocketError
from tokenizer.codec import load_codec
from tokenizer.phonemes import ENGLISH_SYMBOLS
from tts.config import preset
from tts.export import Card, write_export
from tts.stage_files import weights_of
from tts.stages import build_stage
from tts.voice import Speaking, Voice, find_export, load_voice, write_speech, write_wav

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a small untrained model: what it says is noise, but it says it."""
    folder = tmp_path_factory.mktemp("voice")
    codec = load_codec("hocket-16k", n_codebooks=4)
    codec.save(folder / "codec")
    config = preset("test", n_codebooks=4, codebook_size=codec.codebook_size, n_phonemes=len(ENGLISH_SYMBOLS))
    card = Card(config=config, phonemes=tuple(ENGLISH_SYMBOLS), languages=("en-US",))
    write_export(folder / "checkpoint", weights_of(build_stage(config, 0, 1, seed=3)), card, folder / "codec")
    return folder / "checkpoint"


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
    spoken = write_speech(voice, TEXT, out, Speaking(seed=5))
    samples, rate = soundfile.read(out)
    assert rate == voice.codec.sample_rate and len(samples) == len(spoken.samples) == round(spoken.seconds * rate)
    assert np.abs(samples).max() > 1e-3
    assert np.array_equal(voice.speak(TEXT, Speaking(seed=5)).samples, spoken.samples)
    assert not np.array_equal(voice.speak(TEXT, Speaking(seed=6)).samples, spoken.samples)


@pytest.mark.parametrize("rate", [0.8, 1.4])
def test_the_rate_is_a_factor_on_the_length(voice: Voice, rate: float) -> None:
    natural = voice.speak(TEXT, Speaking(guidance=1.0)).seconds
    assert voice.speak(TEXT, Speaking(rate=rate, guidance=1.0)).seconds == pytest.approx(rate * natural, rel=0.05)


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
