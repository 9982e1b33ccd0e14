"""Eight sentences of the shipped recordings, learnt by heart: text, durations, codes, synthesis and codec as one whole.

The smallest proof that speech can come out at all: a model that cannot repeat eight sentences will not say a new one.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.identity import MemberKey
from tokenizer.codec import load_codec
from tokenizer.corpus import default_corpus
from tokenizer.dataset_folder import open_dataset
from tokenizer.pipeline import tokenize
from tokenizer.shards import Utterance
from tts.config import preset
from tts.evaluate_loss import text_check
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches
from tts.stages import Stage
from tts.synthesis import Line, Sampling, predict_durations, speak_many

CLIPS = 40  # enough for the aligner
LEARNT = 8
STEPS = 260
CODEBOOKS = 4


@dataclass(frozen=True)
class Learnt:
    stages: list[Stage]
    rows: list[Utterance]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    """The shortest of some tokenised sentences, and a model of two stages that has been trained on them alone."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("overfit")
    rows = sorted(tokenised(folder), key=lambda row: row.n_frames)[:LEARNT]
    config = preset(
        "test", n_codebooks=CODEBOOKS, codebook_size=256, n_phonemes=74, d_model=96, n_heads=3, dropout=0.0, cond_dropout=0.0,
        code_corruption=0.05,
    )  # fmt: skip
    batches = cut_microbatches(rows, 2, config)
    frames = sum(row.n_frames for row in rows)
    settings = InnerSettings(peak_lr=6e-3, floor=0.02, warmup_frames=20 * frames, total_frames=STEPS * frames)
    trainer = ReferenceTrainer(config, 2, settings)
    for step in range(STEPS):
        trainer.inner_step([(2 * step, batches[0]), (2 * step + 1, batches[1])])
    return Learnt(trainer.stages, rows)


def tokenised(folder: Path) -> list[Utterance]:
    """Rows of the first clips of the shipped corpus."""
    corpus = folder / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    lines = (default_corpus() / "metadata.csv").read_text(encoding="utf-8").splitlines()[:CLIPS]
    (corpus / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for line in lines:
        (source,) = (default_corpus() / "wavs").glob(line.split("|")[0] + ".*")
        shutil.copy(source, corpus / "wavs")
    codec = load_codec("hocket-16k", n_codebooks=CODEBOOKS)
    tokenize(corpus, "en-US", codec, folder / "data", key=MemberKey.from_seed(bytes(32)))
    return [row for row, held in open_dataset(folder / "data").rows() if not held]


def lines_of(learnt: Learnt, *, durations: bool) -> list[Line]:
    return [
        Line(row.phonemes, row.word_starts, number=number, durations=row.durations if durations else None)
        for number, row in enumerate(learnt.rows)
    ]


def test_every_code_is_recalled(learnt: Learnt) -> None:
    said = speak_many(learnt.stages, lines_of(learnt, durations=True), Sampling(temperature=0.0, guidance=1.0))
    wrong = [int((codes != row.codes).sum()) for codes, row in zip(said, learnt.rows, strict=True)]
    assert sum(wrong) == 0, f"codes that differ, by sentence: {wrong}"


def test_durations_are_recalled(learnt: Learnt) -> None:
    for row in learnt.rows:
        predicted = predict_durations(learnt.stages[0], row.phonemes, row.word_starts)
        assert abs(predicted.sum() - row.n_frames) < 0.05 * row.n_frames
        assert np.abs(predicted - row.durations).mean() < 1.0


@pytest.mark.parametrize("rate", [0.7, 1.0, 1.4])
def test_totals_are_exact_at_every_rate(learnt: Learnt, rate: float) -> None:
    how = Sampling(temperature=0.0, guidance=1.0, rate=rate)
    given = speak_many(learnt.stages, lines_of(learnt, durations=True), how)
    for codes, row in zip(given, learnt.rows, strict=True):
        assert codes.shape == (CODEBOOKS, int(np.floor(rate * row.n_frames + 0.5)))
    own = speak_many(learnt.stages, lines_of(learnt, durations=False), how)
    for codes, row in zip(own, learnt.rows, strict=True):
        natural = predict_durations(learnt.stages[0], row.phonemes, row.word_starts).sum()
        assert codes.shape[1] == int(np.floor(rate * natural + 0.5))


def test_the_model_reads_its_text(learnt: Learnt) -> None:
    check = text_check(learnt.stages, learnt.rows)
    assert check.right < 0.1 and check.reads_its_text
