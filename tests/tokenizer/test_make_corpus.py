"""The script that remakes the shipped corpus still gives the sentences and the phone times that are shipped."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import soundfile

from tokenizer.corpus import default_corpus


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_corpus", default_corpus() / "make_corpus.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_grammar_gives_the_shipped_sentences(script: ModuleType) -> None:
    training, held_out = script.sentences()
    lines = (default_corpus() / "metadata.csv").read_text().splitlines()
    assert [line.split("|")[1] for line in lines] == training + held_out
    assert (default_corpus() / "heldout.txt").read_text().split() == [line.split("|")[0] for line in lines[len(training) :]]


def test_ogg_pages_keep_their_sound_under_another_serial_number(script: ModuleType, tmp_path: Path) -> None:
    ogg = (default_corpus() / "wavs" / "slt-0001.ogg").read_bytes()
    assert script.with_serial(ogg, 1) == ogg, "clip 1 has serial number 1, and its checksums are right"
    other = script.with_serial(ogg, 77)
    assert other != ogg and script.with_serial(other, 1) == ogg
    (tmp_path / "other.ogg").write_bytes(other)
    samples, _ = soundfile.read(tmp_path / "other.ogg")
    assert (samples == soundfile.read(default_corpus() / "wavs" / "slt-0001.ogg")[0]).all()


@pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")
def test_flite_gives_the_shipped_phone_times(script: ModuleType, tmp_path: Path) -> None:
    lines = (default_corpus() / "metadata.csv").read_text().splitlines()
    truth = (default_corpus() / "phones.tsv").read_text().splitlines()
    for number in (0, 399, 799):
        name, text, _ = lines[number].split("|")
        phones = script.speak(text, tmp_path / "speech.wav")
        assert [f"{name}\t{phone}\t{end}" for phone, end in phones] == [line for line in truth if line.startswith(f"{name}\t")]
        spoken, _ = soundfile.read(tmp_path / "speech.wav")
        shipped, _ = soundfile.read(default_corpus() / "wavs" / f"{name}.ogg")
        assert len(spoken) == len(shipped), "the Opus file has as many samples as flite made"
