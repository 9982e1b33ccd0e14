"""From recordings of two people to a model with two named voices, through every public door but the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from two_voices import two_voice_corpus
from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError
from coordinator.versions import file_sha256
from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, StageFile, TensorEntry, VersionManifest, sign_manifest
from simulations.finish import Fetched, Order, export_checkpoint
from swarm.blocks import BlockStore
from tokenizer.dataset_folder import open_dataset
from tokenizer.shards import Utterance
from tts.config import ModelConfig, preset
from tts.evaluate_loss import heldout_loss
from tts.export import load_export
from tts.reference import InnerSettings, cut_microbatches, train_single
from tts.stage_files import expected_tensors, stage_file_name, write_stage
from tts.stages import Stage, build_stage
from tts.voice import Voice, load_voice

for package in ("resemblyzer", "librosa", "webrtcvad"):
    pytest.importorskip(package, reason="the extra `recordings` is not installed")

pytestmark = pytest.mark.timeout(300)
runner = CliRunner()
LINE = "/ h ə l ˈoʊ"


@dataclass(frozen=True)
class Made:
    """A dataset of two voices, a model trained on it for a few steps, and its export."""

    data: Path
    manifest: DatasetManifest
    rows: list[Utterance]
    stages: list[Stage]
    checkpoint: Path


def hocket(*arguments: object) -> Any:
    return runner.invoke(app, [str(argument) for argument in arguments])


def export_of(folder: Path, data: Path, manifest: DatasetManifest, config: ModelConfig, stages: list[Stage]) -> Path:
    """What a stranger makes of a version: its files are put where fetching leaves them."""
    store, files = BlockStore(folder / "blocks"), []
    for index, stage in enumerate(stages):
        path = folder / stage_file_name(index)
        write_stage(path, stage)
        entries = [
            TensorEntry(name=info.name, dtype=info.dtype, shape=list(info.shape))
            for info in expected_tensors(config, index, len(stages))
        ]
        cid = store.add_file(path)
        files.append(StageFile(stage=index, cid=cid, sha256=file_sha256(path), size_bytes=path.stat().st_size, tensors=entries))
    version = VersionManifest(
        run_id="two", version=1, round=1, model=config.model_dump(mode="json"), stages=files,
        dataset_cid=file_cid(data / "manifest.json"),
    )  # fmt: skip
    cid = cid_of(sign_manifest(MemberKey.generate(), version))
    (folder / "state").mkdir()
    return export_checkpoint(
        Order(ticket="", cid=cid, out=str(folder)), Fetched(version, manifest, [], 0.0, 0), store, folder / "state"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("two")
    table = two_voice_corpus(folder / "corpus", 6)
    result = hocket(
        "tokenize", table, "-l", "en-US", "-o", folder / "data", "--codebooks", 2, "--heldout", 2, "--key", folder / "key",
        "--allow-refused", 0.3,
    )  # fmt: skip
    assert result.exit_code == 0, result.exception
    dataset = open_dataset(folder / "data")
    rows = [row for row, held in dataset.rows() if not held]
    config = preset(
        "test", n_codebooks=2, codebook_size=int(dataset.manifest.codec["codebook_size"]), dropout=0.0, code_corruption=0.0,
        n_phonemes=len(dataset.manifest.phonemes), speaker_dim=int(dataset.manifest.speaker_embedding["dim"]),
    )  # fmt: skip
    batches = list(enumerate(cut_microbatches(rows, 4, config)))
    trainer = train_single(config, 2, [batches] * 40, InnerSettings(total_frames=10**9, peak_lr=4e-3), seed=1)
    checkpoint = export_of(folder, folder / "data", dataset.manifest, config, trainer.stages)
    yield Made(folder / "data", dataset.manifest, rows, trainer.stages, checkpoint)
    torch.set_num_threads(threads)


def test_the_manifest_has_the_mean_voice_of_each_speaker(made: Made) -> None:
    assert sorted(made.manifest.voices) == made.manifest.speakers == ["other", "slt"]
    assert made.manifest.speaker_embedding["dim"] == 256
    for name, voice in made.manifest.voices.items():
        own = np.array([row.speaker_embedding for row in made.rows if row.speaker == name])  # [N, 256]
        mean = own.sum(axis=0) / np.linalg.norm(own.sum(axis=0))
        assert np.allclose(mean, voice, atol=2e-6), "of the rows to train on"
    one, two = (np.array(voice) for voice in made.manifest.voices.values())
    assert one @ two < 0.9


def test_show_and_stats_list_the_voices(made: Made) -> None:
    assert "voices     other, slt" in hocket("dataset", "show", made.data).stdout
    lines = [line for line in hocket("dataset", "stats", made.data).stdout.splitlines() if line.startswith("voice  ")]
    assert len(lines) == 2 and "slt" in lines[1] and "its clips are 0.9" in lines[1] and "other 0." in lines[1]
    assert hocket("dataset", "verify", made.data).exit_code == 0


def test_the_export_speaks_with_either_voice(made: Made, tmp_path: Path) -> None:
    card = load_export(made.checkpoint).card
    assert {name: list(voice) for name, voice in card.voices.items()} == made.manifest.voices
    heard = {}
    for name in ("slt", "other", None):
        out = tmp_path / f"{name}.wav"
        result = hocket("say", "-c", made.checkpoint, "-o", out, "Good morning.", *(["--speaker", name] if name else []))
        assert result.exit_code == 0, result.exception
        heard[name] = soundfile.read(out, dtype="int16")[0]
    assert np.array_equal(heard[None], heard["other"]), "the first by name is the default"
    codes = [Voice(load_export(made.checkpoint), speaker=name) for name in ("slt", "other")]
    one, two = (voice.codes(voice.lines_of_phonemes(LINE), voice.sampling())[0] for voice in codes)
    assert one.shape != two.shape or not np.array_equal(one, two)


def test_an_unknown_speaker_is_one_line_with_the_names(made: Made, tmp_path: Path) -> None:
    result = hocket("say", "-c", made.checkpoint, "-o", tmp_path / "x.wav", "Hello.", "--speaker", "nobody")
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.OPTION_INVALID
    line = result.exception.line()
    assert "'nobody'" in line and "other, slt" in line and "\n" not in line and not (tmp_path / "x.wav").exists()


def test_the_model_has_learnt_whose_voice_is_whose(made: Made) -> None:
    voices = {name: np.array(voice, np.float32) for name, voice in made.manifest.voices.items()}
    other = {"slt": "other", "other": "slt"}
    right = heldout_loss(made.stages, made.rows).per_code
    mean = heldout_loss(made.stages, [replace(row, speaker_embedding=voices[row.speaker]) for row in made.rows]).per_code
    wrong = heldout_loss(made.stages, [replace(row, speaker_embedding=voices[other[row.speaker]]) for row in made.rows]).per_code
    assert wrong > mean + 0.02 and abs(mean - right) < (wrong - mean) / 2, (right, mean, wrong)


def test_a_voice_of_another_size_than_the_model_takes_is_refused(made: Made, tmp_path: Path) -> None:
    config = load_voice(made.checkpoint).stage.config.model_copy(update={"speaker_dim": 8})
    with pytest.raises(HocketError) as caught:
        export_of(tmp_path, made.data, made.manifest, config, [build_stage(config, 0, 1)])
    assert caught.value.code is Code.CHECKPOINT_INVALID and "256" in caught.value.detail
