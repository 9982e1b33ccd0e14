from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_utterances import make, small_config

from common.errors import Code, HocketError
from protocol.tensors import read_tensors, write_tensors
from tts.evaluate_loss import heldout_loss, shuffle_text, text_check
from tts.export import Card, load_export, write_export
from tts.genesis import main as genesis
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches
from tts.stage_files import expected_tensors, read_stage, stage_file_name, weights_of, write_stage
from tts.stages import build_stages, collate, merged_state


def merged(stages: list) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {name: array for stage in stages for name, array in weights_of(stage).items()}


def card_of(config, **changes) -> Card:  # type: ignore[no-untyped-def]
    values = {
        "config": config,
        "phonemes": tuple(f"p{i}" for i in range(config.n_phonemes)),
        "languages": ("en-US",),
        "origin": {"run": "r1"},
        **changes,
    }
    return Card(**values)


@pytest.fixture
def codec_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "codec-source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_an_export_comes_back_with_the_same_bits(tmp_path: Path, codec_folder: Path) -> None:
    config = small_config()
    stages = build_stages(config, 3, seed=4)
    out = tmp_path / "export"
    write_export(out, merged(stages), card_of(config), codec_folder)
    assert sorted(p.name for p in out.iterdir()) == ["codec", "config.json", "model.safetensors"]
    back = load_export(out)
    assert back.card == card_of(config) and (back.codec_folder / "config.json").read_text() == "{}"
    for name, value in merged_state([back.stage]).items():
        assert torch.equal(value, merged_state(stages)[name])
    write_export(out, merged(build_stages(config, 2, seed=5)), card_of(config), codec_folder)
    assert not torch.equal(load_export(out).stage.heads.weight, stages[2].heads.weight)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_an_export_overwrites_nothing_else_and_refuses_other_weights(tmp_path: Path, codec_folder: Path) -> None:
    config = small_config()
    weights = merged(build_stages(config, 1))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("precious")
    with pytest.raises(HocketError) as caught:
        write_export(taken, weights, card_of(config), codec_folder)
    assert caught.value.code is Code.OUTPUT_EXISTS and (taken / "thesis.txt").read_text() == "precious"
    less = {name: array for name, array in weights.items() if name != "codes.weight"}
    for bad, card in ((less, card_of(config)), (weights, card_of(config, phonemes=("a",)))):
        with pytest.raises(HocketError) as caught:
            write_export(tmp_path / "bad", bad, card, codec_folder)
        assert caught.value.code is Code.CHECKPOINT_INVALID
    with pytest.raises(HocketError) as caught:
        write_export(tmp_path / "bad", weights, card_of(config), tmp_path / "absent")
    assert caught.value.code is Code.CODEC_UNREADABLE
    assert not (tmp_path / "bad").exists()


def test_damaged_exports_are_refused(tmp_path: Path, codec_folder: Path) -> None:
    config = small_config()
    out = tmp_path / "export"

    def fresh() -> None:
        write_export(out, merged(build_stages(config, 1)), card_of(config), codec_folder)

    fresh()
    about = json.loads((out / "config.json").read_text())

    def with_about(**changes: object) -> None:
        (out / "config.json").write_text(json.dumps({**about, **changes}))

    tensors = read_tensors(out / "model.safetensors")
    damages = [
        lambda: (out / "config.json").write_text("{"),
        lambda: (out / "config.json").unlink(),
        lambda: with_about(format="other/9"),
        lambda: with_about(phonemes=["a"]),
        lambda: with_about(languages="en"),
        lambda: with_about(model={**about["model"], "n_layers": 4}),
        lambda: (out / "model.safetensors").write_bytes((out / "model.safetensors").read_bytes()[:-10]),
        lambda: write_tensors(out / "model.safetensors", {**tensors, "extra": np.zeros(1, np.float32)}),
        lambda: write_tensors(out / "model.safetensors", {**tensors, "heads.weight": tensors["heads.weight"].T.copy()}),
    ]
    for damage in damages:
        fresh()
        damage()
        with pytest.raises(HocketError) as caught:
            load_export(out)
        assert caught.value.code in (Code.CHECKPOINT_INVALID, Code.MODEL_CONFIG_INVALID)
        (out / "config.json").write_text(json.dumps(about))
    fresh()
    bad = {**tensors, "heads.weight": np.full_like(tensors["heads.weight"], np.nan)}
    write_tensors(out / "model.safetensors", bad)
    with pytest.raises(HocketError) as caught:
        load_export(out)
    assert caught.value.code is Code.NOT_FINITE


def test_genesis_writes_the_stages_that_a_worker_would_build(tmp_path: Path) -> None:
    config = small_config()
    (tmp_path / "model.json").write_text(config.to_json())
    command = [
        sys.executable,
        "-m",
        "tts.genesis",
        "--config",
        str(tmp_path / "model.json"),
        "--stages",
        "3",
        "--seed",
        "9",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    for index, stage in enumerate(build_stages(config, 3, seed=9)):
        entry = report["stages"][index]
        assert entry["stage"] == index and entry["file"] == stage_file_name(index)
        assert entry["size_bytes"] == (tmp_path / "out" / entry["file"]).stat().st_size
        expected = [(t.name, t.dtype, list(t.shape)) for t in expected_tensors(config, index, 3)]
        assert [(t["name"], t["dtype"], t["shape"]) for t in entry["tensors"]] == expected
        read = read_stage(tmp_path / "out" / entry["file"], config, index, 3)
        for name, value in stage.named_parameters():
            assert torch.equal(value, dict(read.named_parameters())[name])
        with pytest.raises(HocketError):
            read_stage(tmp_path / "out" / entry["file"], config, (index + 1) % 3, 3)


def test_genesis_says_in_one_line_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "model.json"
    out = ["--out", str(tmp_path / "out")]
    assert genesis(["--config", str(config), "--stages", "2", *out]) == 2
    config.write_text('{"preset": "x"}')
    assert genesis(["--config", str(config), "--stages", "2", *out]) == 2
    config.write_text(small_config().to_json())
    assert genesis(["--config", str(config), "--stages", "99", *out]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.split()[0] for line in lines] == ["H502", "H502", "H503"]


def test_stage_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    config = small_config()
    for name in ("a", "b"):
        write_stage(tmp_path / name, build_stages(config, 2, seed=1)[0])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_trained_model_reads_its_text_and_an_untrained_one_does_not() -> None:
    config = small_config(dropout=0.0)
    trainer = ReferenceTrainer(config, 2, InnerSettings(peak_lr=6e-3, floor=0.1, warmup_frames=1000, total_frames=25_000))
    heldout = make(12, seed=500, config=config)
    blank = text_check(trainer.stages, heldout)
    step = 0
    while trainer.frames_done < 25_000:
        trainer.inner_step([(step, cut_microbatches(make(8, seed=step, config=config), 1, config)[0])])
        step += 1
    check = text_check(trainer.stages, heldout)
    assert check.reads_its_text and check.right < blank.right - 0.3
    assert abs(blank.gap) < 0.05 < check.gap
    assert check.right == heldout_loss(trainer.stages, heldout).per_code
    assert len(check.shuffled) == 3 and check == text_check(trainer.stages, heldout)


def test_shuffled_text_is_that_of_another_utterance_and_fits_the_frames() -> None:
    config = small_config()
    utterances = make(7, config=config)
    shuffled = shuffle_text(utterances, 1)
    assert all(not np.array_equal(a.phonemes, b.phonemes) for a, b in zip(utterances, shuffled, strict=True))
    assert sorted(b.phonemes.tobytes() for b in shuffled) == sorted(a.phonemes.tobytes() for a in utterances)
    assert all(np.array_equal(a.codes, b.codes) for a, b in zip(utterances, shuffled, strict=True))
    collate(shuffled, config)  # checks that the durations sum to the frames
    assert [s.phonemes.tolist() for s in shuffle_text(utterances, 2)] != [s.phonemes.tolist() for s in shuffled]


def test_the_heldout_loss_does_not_depend_on_the_order() -> None:
    config = small_config()
    stages, utterances = build_stages(config, 3, seed=3), make(9, config=config)
    one, two = heldout_loss(stages, utterances), heldout_loss(stages, utterances[::-1])
    assert one.count == two.count and one.per_code == pytest.approx(two.per_code, rel=1e-5)
    assert sum(one.per_codebook) / 3 == pytest.approx(one.per_code)
