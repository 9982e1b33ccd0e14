"""Training of the small codec on a few seconds of synthetic voices."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from common.errors import Code, HocketError
from tokenizer.codec import load_codec
from tokenizer.small_codec import SmallCodecConfig, build_net, nearest
from tokenizer.small_codec_training import (
    CodebookLearner,
    SpectralLoss,
    TrainingReport,
    TrainingSettings,
    Voices,
    kmeans,
    rate_factor,
    train_codec,
)

TINY = SmallCodecConfig(
    name="tiny", sample_rate=8000, hop=160, n_fft=640, n_mels=40, latent_dim=16, encoder_dim=32, encoder_layers=2, decoder_dim=48,
    decoder_layers=2, n_codebooks=4, codebook_size=32,
)  # fmt: skip
SETTINGS = TrainingSettings(batch=4, crop_s=0.5, learning_rate=2e-3, warmup_steps=5, kmeans_batches=8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two voices: harmonic glides at two pitches, in two formats and rates."""
    root = tmp_path_factory.mktemp("voices")
    for voice, (pitch, rate, suffix) in {"low": (110.0, 8000, "wav"), "high": (220.0, 16000, "flac")}.items():
        (root / voice / "part").mkdir(parents=True)
        for clip in range(3):
            time = np.arange(int(1.5 * rate)) / rate
            phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.2 * np.sin(2 * np.pi * (clip + 1) * time))) / rate
            wav = sum(np.sin(k * phase) / k for k in range(1, 12)) * (0.55 + 0.45 * np.sin(7 * time + clip))
            soundfile.write(root / voice / "part" / f"{clip}.{suffix}", 0.2 * np.asarray(wav), rate)
    return [root / "low", root / "high"]


def train(folders: list[Path], out: Path, steps: int, seed: int = 0) -> tuple[TrainingReport, list[tuple[int, int, float]]]:
    seen: list[tuple[int, int, float]] = []
    report = train_codec(
        folders, out, steps, seed, lambda *args: seen.append(args), config=TINY, settings=SETTINGS
    )  # fmt: skip
    return report, seen


def test_the_loss_falls_and_the_codec_hears(folders: list[Path], tmp_path: Path) -> None:
    report, seen = train(folders, tmp_path, 90)
    assert [step for step, _, _ in seen] == list(range(1, 91)) and {steps for _, steps, _ in seen} == {90}
    assert report.last_loss < 0.75 * report.first_loss
    assert report.minutes == pytest.approx({str(folder): 4.5 / 60 for folder in folders})
    codec = load_codec(tmp_path)
    wav, _ = soundfile.read(folders[0] / "part" / "0.wav", dtype="float32")
    loss = SpectralLoss(8000)
    codes = codec.encode(wav)
    assert all(len(np.unique(book)) >= 5 for book in codes), [len(np.unique(book)) for book in codes]
    made = torch.from_numpy(codec.decode(codes)[: len(wav)])[None]
    right = float(loss(made, torch.from_numpy(wav)[None]))
    silence = float(loss(torch.zeros(1, len(wav)), torch.from_numpy(wav)[None]))
    assert right < 0.6 * silence


def test_a_training_is_a_function_of_its_seed(folders: list[Path], tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(3)  # the global generator's state must not matter
        train(folders, tmp_path / name, 8, seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_a_trained_codec_goes_on_where_it_stands(folders: list[Path], tmp_path: Path) -> None:
    first, _ = train(folders, tmp_path / "first", 60)
    further = train_codec(folders, tmp_path / "further", 30, 1, settings=SETTINGS, start=tmp_path / "first")
    assert further.first_loss < 1.2 * first.last_loss and further.last_loss < first.last_loss
    before, after = (load_codec(tmp_path / name) for name in ("first", "further"))
    assert after.describe() == before.describe()
    distance = np.abs(after.codebook_vectors() - before.codebook_vectors()).mean()
    assert 0 < distance < 0.5 * np.abs(before.codebook_vectors()).mean()  # the books have moved, and are still the same books


@pytest.mark.parametrize("steps", [0, -3])
def test_refuses_no_steps(folders: list[Path], tmp_path: Path, steps: int) -> None:
    with pytest.raises(HocketError) as caught:
        train(folders, tmp_path, steps)
    assert caught.value.code == Code.OPTION_INVALID


def test_refuses_folders_without_speech(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(HocketError) as caught:
        train([folders[0], tmp_path / "empty"], tmp_path / "out", 2)
    assert caught.value.code == Code.CORPUS_UNREADABLE and "empty" in caught.value.line()
    (tmp_path / "empty" / "x.wav").write_bytes(b"not audio")
    with pytest.raises(HocketError) as caught:
        train([tmp_path / "empty"], tmp_path / "out", 2)
    assert caught.value.code == Code.AUDIO_UNREADABLE
    assert not (tmp_path / "out").exists()


def test_crops_are_finite_and_bounded(folders: list[Path]) -> None:
    voices = Voices(folders, 8000)
    for seed in range(20):
        batch = voices.batch(np.random.default_rng(seed), 4, 4000)
        assert batch.shape == (4, 4000) and batch.dtype == np.float32
        assert np.isfinite(batch).all() and np.abs(batch).max() <= 0.89


def test_spectral_loss_is_zero_only_for_the_same() -> None:
    wav = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32))
    loss = SpectralLoss(16000)
    assert float(loss(wav, wav)) == 0
    assert 0 < float(loss(1.05 * wav, wav)) < float(loss(1.5 * wav, wav))


def test_rate_rises_stays_and_falls() -> None:
    factors = [rate_factor(step, 1000, 50) for step in range(1000)]
    assert factors[0] < 0.05 and all(factor == 1.0 for factor in factors[50:500])
    assert all(a >= b for a, b in pairwise(factors[500:])) and factors[-1] < 0.011


class TestCodebooks:
    def test_kmeans_finds_separate_groups(self) -> None:
        draw = np.random.default_rng(0)
        centres = 10 * torch.eye(6)
        points = centres.repeat_interleave(50, 0) + 0.1 * torch.from_numpy(draw.standard_normal((300, 6)).astype(np.float32))
        found = kmeans(points, 12, draw)
        assert float(torch.cdist(centres, found).min(dim=1).values.max()) < 1.0

    def test_kmeans_with_fewer_points_than_centres(self) -> None:
        found = kmeans(torch.ones(3, 2), 8, np.random.default_rng(0))
        assert torch.equal(found, torch.ones(8, 2))

    def test_books_follow_the_latents_and_dead_codes_start_again(self) -> None:
        draw = np.random.default_rng(0)
        net = build_net(TINY, 0)
        learner = CodebookLearner(net, decay=0.9)
        first = torch.from_numpy(draw.standard_normal((2000, 16)).astype(np.float32))
        learner.start(first, draw)
        moved = first + 5.0
        _, before = net.quantise(moved, 4)
        for _ in range(100):
            codes, _ = net.quantise(moved, 4)
            learner.follow(moved, codes, draw)
        codes, after = net.quantise(moved, 4)
        assert float((after - moved).square().mean()) < 0.5 * float((before - moved).square().mean())
        assert int((torch.bincount(codes[:, 0], minlength=32) > 0).sum()) >= 28
        assert bool(net.codebooks.isfinite().all())

    def test_nearest_is_the_nearest(self) -> None:
        draw = torch.Generator().manual_seed(0)
        vectors, book = torch.randn(5, 7, 6, generator=draw), torch.randn(20, 6, generator=draw)
        assert torch.equal(nearest(vectors, book), torch.cdist(vectors, book).argmin(-1))
