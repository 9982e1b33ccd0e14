"""Listening to a version: what is written, what it says, and what is told where something cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import soundfile
import torch
from spoken_dataset import BOOKS, dataset_manifest, model_for, publish, utterances

from common.errors import Code, HocketError
from protocol.identity import MemberKey
from protocol.manifest import VersionManifest, read_manifest, sign_manifest
from swarm.blocks import BlockStore
from tokenizer.codec import load_codec
from tokenizer.languages import supported_languages
from tokenizer.phonemes import Phonemizer, inventory_for
from tts.export import Card, load_export, write_export
from tts.listen import Listened, Order, heldout_rows, largest_groups, listen, wanted_previews
from tts.preview_texts import preview_texts
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches
from tts.stage_files import weights_of
from tts.stages import build_stage
from tts.voice import Voice
from tts.watch import measure


@pytest.fixture
def heard(tmp_path: Path) -> Callable[..., tuple[Order, Path]]:
    """Publishes a version and gives the order to listen to it."""
    key = MemberKey.generate()

    def prepare(*, rows: list[Any] | None = None, stages: Any = None, dim: int = 0, **changes: Any) -> tuple[Order, Path]:
        heldout = utterances(6, seed=1, speakers=("ann", "bob")) if rows is None else rows
        languages = sorted({row.language for row in heldout}) or ["en-US"]
        manifest, shards = dataset_manifest([], heldout, languages=languages, dim=dim)
        cid = publish(BlockStore(tmp_path / "blocks"), tmp_path, key, manifest, shards, stages=stages)
        out = tmp_path / "out"
        order = Order(
            **{"store": str(tmp_path / "blocks"), "cid": cid, "signer": key.public.hex(), "out": str(out), "codec": "hocket-16k",
               "sentences": ["Good morning."], **changes},
        )  # fmt: skip
        return order, out

    return prepare


def test_an_untrained_version_is_heard_and_seen(heard: Callable[..., tuple[Order, Path]]) -> None:
    order, out = heard()
    found = listen(order)
    assert (found.round, found.version, found.cid, found.errors) == (4, 4, order.cid, [])
    assert found.watch is not None and [group["name"] for group in found.watch["groups"]] == ["all", "ann", "bob", "en-US"]
    (deaf,) = [alarm for alarm in found.alarms if alarm["kind"] == "text_not_read"]
    assert deaf["reason"].startswith("after round 4: this model does not read its text")
    (preview,) = found.previews
    samples, rate = soundfile.read(out / preview["file"])
    assert rate == 16000 and len(samples) / rate == pytest.approx(preview["seconds"]) and np.abs(samples).max() > 0.01
    assert matplotlib.image.imread(out / preview["picture"]).shape[2] == 4
    assert preview["text"] == "Good morning." and preview["phonemes"].split()[:3] == ["_", "ɡ", "ˈʊ"]
    assert {path.name for path in out.iterdir()} == {preview["file"], preview["picture"]}, "nothing else is left"


def test_a_preview_is_what_the_export_says(heard: Callable[..., tuple[Order, Path]], tmp_path: Path) -> None:
    order, out = heard(seed=3)
    listen(order)
    manifest, _ = dataset_manifest([], utterances(6, seed=1))
    stage = build_stage(model_for(manifest), 0, 1, seed=1)
    load_codec(n_codebooks=BOOKS).save(tmp_path / "codec")
    card = Card(stage.config, tuple(manifest.phonemes), ("en-US",))
    write_export(tmp_path / "export", weights_of(stage), card, tmp_path / "codec")
    voice = Voice(load_export(tmp_path / "export"))
    spoken = voice.speak("Good morning.", voice.sampling(seed=3))
    samples, _ = soundfile.read(out / "00-en-US.wav", dtype="float32")
    assert np.abs(samples - spoken.samples).max() < 1e-3


def test_a_trained_version_gives_no_alarm(heard: Callable[..., tuple[Order, Path]]) -> None:
    torch.set_num_threads(1)
    rows = utterances(8, seed=1)
    config = model_for(dataset_manifest([], rows)[0])
    trainer = ReferenceTrainer(config, 2, InnerSettings(peak_lr=8e-3, warmup_frames=2000, total_frames=25_000))
    step = 0
    while trainer.frames_done < 25_000:
        trainer.inner_step([(step, cut_microbatches(rows, 1, config)[0])])
        step += 1
    order, _ = heard(rows=rows, stages=trainer.stages)
    found = listen(order)
    assert found.alarms == [] and found.errors == []
    assert found.watch is not None
    loss = measure(trainer.stages, rows, generate=0).whole.loss
    assert found.watch["groups"][0]["loss"] == pytest.approx(loss, rel=1e-4) and loss < 2.0


def test_voices_of_a_language_take_turns(heard: Callable[..., tuple[Order, Path]]) -> None:
    order, out = heard(dim=4, sentences=[])
    found = listen(order)
    assert found.errors == []
    voices = [(one["voice"], one["text"]) for one in found.previews]
    texts = list(preview_texts("en"))
    assert voices == [(voice, text) for voice in ("ann", "bob") for text in texts]
    assert [one["file"] for one in found.previews][::3] == ["00-en-US-ann.wav", "03-en-US-bob.wav"]
    one, other = (soundfile.read(out / found.previews[index]["file"])[0] for index in (0, 3))
    assert one.shape != other.shape or not np.array_equal(one, other)


def test_names_that_strangers_wrote_stay_in_the_folder() -> None:
    rows = utterances(3, speakers=("../../etc/passwd",))
    manifest, _ = dataset_manifest([], rows, dim=2)
    previews = wanted_previews(["a"], manifest, rows)
    assert [one.name for one in previews] == ["00-en-US-etc-passwd"]
    assert all("/" not in one.name and not one.name.startswith(".") for one in previews)


def test_what_cannot_be_done_is_told_and_the_rest_is_done(heard: Callable[..., tuple[Order, Path]], tmp_path: Path) -> None:
    order, _ = heard(rows=utterances(1), sentences=["Good morning.", "доброе утро"])
    found = listen(order)
    assert found.watch is None and found.alarms == [] and len(found.previews) == 1
    assert len(found.errors) == 2
    assert found.errors[0].startswith(f"H{int(Code.CORPUS_TOO_SMALL)}") and "доброе утро" in found.errors[1]
    found = listen(heard(codec=str(tmp_path))[0])
    assert found.watch is not None and found.previews == []
    assert len(found.errors) == 1 and f"H{int(Code.CODEC_UNREADABLE)}" in found.errors[0]


def test_a_version_that_another_signed_is_refused(heard: Callable[..., tuple[Order, Path]]) -> None:
    order, out = heard(signer=MemberKey.generate().public.hex())
    with pytest.raises(HocketError) as caught:
        listen(order)
    assert caught.value.code is Code.MANIFEST_INVALID and not out.exists()


def test_a_stage_file_of_another_digest_is_refused(heard: Callable[..., tuple[Order, Path]]) -> None:
    order, out = heard()
    store, key = BlockStore(Path(order.store)), MemberKey.generate()
    version = read_manifest(VersionManifest, store.read_file(order.cid), signer=bytes.fromhex(order.signer))
    other = [version.stages[0], version.stages[1].model_copy(update={"sha256": "0" * 64})]
    cid = store.add_bytes(sign_manifest(key, version.model_copy(update={"stages": other})))
    with pytest.raises(HocketError) as caught:
        listen(replace(order, cid=cid, signer=key.public.hex()))
    assert caught.value.code is Code.MANIFEST_INVALID and "stage 1" in caught.value.detail and not list(out.iterdir())


@pytest.mark.timeout(300)
def test_the_child_writes_what_it_found(heard: Callable[..., tuple[Order, Path]], tmp_path: Path) -> None:
    order, out = heard()
    (tmp_path / "order.json").write_text(json.dumps(asdict(order)))
    command = [sys.executable, "-m", "tts.listen", str(tmp_path / "order.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b"" and child.wait(250) == 0
    found = Listened(**json.loads((out / "watch.json").read_text()))
    assert found.cid == order.cid and len(found.previews) == 1 and found.seconds > 0 and found.errors == []


@pytest.mark.timeout(300)
def test_the_child_ends_with_its_parent(heard: Callable[..., tuple[Order, Path]], tmp_path: Path) -> None:
    order, out = heard()
    (tmp_path / "order.json").write_text(json.dumps(asdict(order)))
    command = [sys.executable, "-m", "tts.listen", str(tmp_path / "order.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(250) == 1
    assert not (out / "watch.json").exists()


def test_a_large_model_is_measured_on_fewer_sentences(tmp_path: Path) -> None:
    manifest, shards = dataset_manifest([], utterances(120, speakers=("ann", "bob")))
    store = BlockStore(tmp_path / "blocks")
    for data in shards.values():
        store.add_bytes(data)
    counts = {size: len(heldout_rows(manifest, store, size)) for size in (200_000, 1_000_000_000, 3_000_000_000)}
    assert counts[200_000] == 64 and 8 <= counts[3_000_000_000] < counts[1_000_000_000] < 64
    assert {row.speaker for row in heldout_rows(manifest, store, 10**12)} == {"ann", "bob"}
    assert heldout_rows(dataset_manifest([], [])[0], store, 1) == []


def test_a_great_many_speakers_are_told_by_the_largest(heard: Callable[..., tuple[Order, Path]]) -> None:
    rows = [*utterances(60, speakers=[f"s{number:02d}" for number in range(40)])]
    watch = measure([build_stage(model_for(dataset_manifest([], rows)[0]), 0, 1)], rows, generate=0, shuffles=1)
    fewer = largest_groups(watch)
    assert len(fewer.groups) == 32 and fewer.groups[0].name == "all"
    kept = [group for group in fewer.groups if group.kind == "speaker"]
    assert sum(group.utterances == 2 for group in kept) == 20, "speakers of two utterances go before those of one"


@pytest.mark.parametrize("language", [one for one in supported_languages() if one != "ja"])
def test_every_language_has_sentences_that_it_can_read(language: str) -> None:
    texts = preview_texts(f"{language}-XX")
    assert len(texts) == 3
    reader = Phonemizer(language)
    for text in texts:
        assert len(inventory_for([language]).encode(reader.phonemize(text).phonemes)) > 20


def test_japanese_has_sentences_that_it_can_read() -> None:
    pytest.importorskip("pyopenjtalk", reason="the extra `ja` is not installed")
    for text in preview_texts("ja"):
        assert len(Phonemizer("ja").phonemize(text).phonemes) > 10
    assert preview_texts("sw") == ()
