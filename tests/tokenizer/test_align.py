"""The aligner: its search against brute force, its losses against brute force, and what it learns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.align import BLANK, Aligner, beta_binomial, binarisation, forward_sum, learn_alignment
from tokenizer.mas import mas, mas_of_blocks


def all_paths(n_frames: int, n_phonemes: int) -> list[list[int]]:
    """Every way to share frames among phonemes in order, each at least one: lists of durations."""
    cuts = itertools.combinations(range(1, n_frames), n_phonemes - 1)
    return [list(np.diff([0, *cut, n_frames])) for cut in cuts]


def score_of(log_probs: np.ndarray, durations: list[int]) -> float:
    return float(log_probs[np.arange(sum(durations)), np.repeat(np.arange(len(durations)), durations)].sum())


SIZES = st.integers(1, 5).flatmap(lambda p: st.tuples(st.integers(p, 8), st.just(p)))


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_search_finds_the_best_path_of_each_utterance_in_a_padded_batch(sizes: list[tuple[int, int]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    shape = (len(sizes), max(size[0] for size in sizes), max(size[1] for size in sizes))
    log_probs = draw.normal(size=shape) * 3
    durations = mas(log_probs, np.array([size[0] for size in sizes]), np.array([size[1] for size in sizes]))
    for row, (frames, phonemes) in enumerate(sizes):
        assert durations[row, :phonemes].min() >= 1 and durations[row, phonemes:].sum() == 0
        assert durations[row].sum() == frames
        best = max(score_of(log_probs[row], path) for path in all_paths(frames, phonemes))
        assert score_of(log_probs[row], list(durations[row, :phonemes])) == pytest.approx(best)


def test_ties_stay() -> None:
    assert mas(np.zeros((1, 6, 3)), np.array([6]), np.array([3])).tolist() == [[1, 1, 4]]
    assert mas(np.zeros((2, 6, 3)), np.array([4, 6]), np.array([2, 1])).tolist() == [[1, 3, 0], [6, 0, 0]]


def test_padding_is_not_read() -> None:
    log_probs = np.random.default_rng(0).normal(size=(1, 9, 4))
    padded = np.full((1, 20, 9), np.nan)
    padded[:, :9, :4] = log_probs
    alone = mas(log_probs, np.array([9]), np.array([4]))
    assert mas(padded, np.array([9]), np.array([4]))[:, :4].tolist() == alone.tolist()


def test_fewer_frames_than_phonemes_are_refused() -> None:
    with pytest.raises(HocketError, match="3 frames for 4 phonemes") as caught:
        mas(np.zeros((2, 5, 4)), np.array([5, 3]), np.array([4, 4]))
    assert caught.value.code is Code.TOO_FEW_FRAMES
    features = [np.zeros((3, 8), np.float32)]
    for call in (lambda: learn_alignment([np.array([1, 2, 3, 4])], features), lambda: learn_alignment([], [])):
        with pytest.raises(HocketError) as caught:
            call()
        assert caught.value.code in (Code.TOO_FEW_FRAMES, Code.CORPUS_TOO_SMALL)


def forward_sum_by_hand(log_probs: np.ndarray) -> float:
    """Minus log of the sum over all paths with optional blanks, by enumeration: float64 [T, P] in, one number out."""
    frames, phonemes = log_probs.shape
    with_blank = np.concatenate([np.full((frames, 1), BLANK), log_probs], axis=1)
    with_blank -= np.log(np.exp(with_blank).sum(axis=1, keepdims=True))
    total = -np.inf
    for labels in itertools.product(range(phonemes + 1), repeat=frames):
        collapsed = [label for label, _ in itertools.groupby(labels) if label]
        if collapsed == list(range(1, phonemes + 1)):
            total = np.logaddexp(total, with_blank[np.arange(frames), labels].sum())
    return float(-total / phonemes)


def test_forward_sum_is_the_sum_over_all_paths() -> None:
    draw = np.random.default_rng(3)
    sizes = [(5, 3), (4, 2), (3, 3)]
    batch = np.full((3, 5, 3), -1e4)
    alone = [np.log(draw.dirichlet(np.ones(p), size=t)) for t, p in sizes]
    for row, (table, (t, p)) in enumerate(zip(alone, sizes, strict=True)):
        batch[row, :t, :p] = table
    losses = forward_sum(torch.tensor(batch), torch.tensor([5, 4, 3]), torch.tensor([3, 2, 3]))
    for row, table in enumerate(alone):
        assert float(losses[row]) == pytest.approx(forward_sum_by_hand(table), rel=1e-5)


def test_the_prior_is_a_distribution_along_the_diagonal() -> None:
    prior = beta_binomial(torch.tensor([20, 9]), torch.tensor([5, 3])).double().exp().numpy()
    assert prior.shape == (2, 20, 5)
    assert prior[0].sum(axis=1) == pytest.approx(np.ones(20), abs=1e-5)
    assert prior[1, :9, :3].sum(axis=1) == pytest.approx(np.ones(9), abs=1e-5)
    assert (prior[1, :, 3:] == 0).all()
    assert prior[0, 0].argmax() == 0 and prior[0, 19].argmax() == 4
    assert prior[0, :, ::-1] == pytest.approx(prior[0, ::-1], abs=1e-5)
    # By hand for two phonemes: n = 1, so p(second) at frame t is t / (T + 1).
    two = beta_binomial(torch.tensor([3]), torch.tensor([2])).exp().numpy()
    assert two[0, :, 1] == pytest.approx([0.25, 0.5, 0.75], abs=1e-6)


def test_binarisation_is_the_mean_along_the_paths() -> None:
    log_probs = torch.tensor(np.log([[[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]], [[0.5, 0.5], [0.7, 0.3], [1.0, 1.0]]]))
    durations = np.array([[1, 2], [1, 1]])
    expected = -np.log([0.9, 0.6, 0.8, 0.5, 0.3]).mean()
    assert float(binarisation(log_probs, durations)) == pytest.approx(expected)


Corpus = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]


def artificial_corpus(clips: int, seed: int = 0) -> Corpus:
    """Texts of 12 symbols, a noisy vector a symbol, and random durations: phonemes, features and true durations."""
    draw = np.random.default_rng(seed)
    sounds = draw.normal(size=(12, 16))
    phonemes, features, truth = [], [], []
    for _ in range(clips):
        ids = draw.integers(1, 12, size=draw.integers(6, 16))
        ids[1:] = np.where(ids[1:] == ids[:-1], ids[1:] % 11 + 1, ids[1:])
        durations = draw.integers(2, 8, size=len(ids))
        frames = np.repeat(sounds[ids], durations, axis=0) + draw.normal(size=(durations.sum(), 16)) * 0.3
        phonemes.append(ids)
        features.append(frames.astype(np.float32))
        truth.append(durations)
    return phonemes, features, truth


def near(found: list[np.ndarray], truth: list[np.ndarray], frames: int) -> float:
    wrong = [abs(np.cumsum(one)[:-1] - np.cumsum(two)[:-1]) for one, two in zip(found, truth, strict=True)]
    return float((np.concatenate(wrong) <= frames).mean())


@pytest.fixture(scope="module")
def learnt() -> tuple[Aligner, Corpus]:
    corpus = artificial_corpus(60)
    return learn_alignment(corpus[0], corpus[1], steps=100), corpus


def test_it_learns_where_the_sounds_are(learnt: tuple[Aligner, Corpus]) -> None:
    aligner, (phonemes, features, truth) = learnt
    aligned = aligner.align_all(phonemes, features)
    assert near([durations for durations, _ in aligned], truth, 1) > 0.98
    assert all(durations.dtype == np.uint16 for durations, _ in aligned)
    assert all(durations.sum() == len(frames) for (durations, _), frames in zip(aligned, features, strict=True))


def test_an_utterance_aligns_the_same_alone_and_among_others(learnt: tuple[Aligner, Corpus]) -> None:
    aligner, (phonemes, features, _) = learnt
    together = aligner.align_all(phonemes, features)
    for index in (0, 7, 33):
        durations, score = aligner.align(phonemes[index], features[index])
        assert durations.tolist() == together[index][0].tolist()
        assert score == pytest.approx(together[index][1], abs=1e-4)


def test_wrong_texts_score_lower(learnt: tuple[Aligner, Corpus]) -> None:
    aligner, (phonemes, features, _) = learnt
    right = [score for _, score in aligner.align_all(phonemes, features)]
    others = [(phonemes[index - 1], features[index]) for index in range(60) if len(phonemes[index - 1]) <= len(features[index])]
    wrong = [score for _, score in aligner.align_all([text for text, _ in others], [sound for _, sound in others])]
    assert min(right) > np.median(wrong) + 1
    assert max(right) <= 0


def test_the_score_does_not_fall_with_the_length_of_the_text(learnt: tuple[Aligner, Corpus]) -> None:
    aligner, (phonemes, features, _) = learnt
    short = np.mean([score for _, score in aligner.align_all(phonemes[:20], features[:20])])
    _, long = aligner.align(np.concatenate(phonemes[:20]), np.concatenate(features[:20]))
    assert abs(long - short) < 0.1


def test_learning_is_a_function_of_its_seed() -> None:
    phonemes, features, _ = artificial_corpus(16)
    one, again, other = (learn_alignment(phonemes, features, steps=5, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(one.tensors[name], again.tensors[name]) for name in one.tensors)
    assert not torch.equal(one.tensors["symbols"], other.tensors["symbols"])


def test_few_clips_are_learnt_without_the_prior() -> None:
    # On eight clips the prior pulls towards the diagonal and stays there; without it most boundaries are found.
    phonemes, features, truth = artificial_corpus(8, seed=4)
    chosen = learn_alignment(phonemes, features, steps=100)
    found = [durations for durations, _ in chosen.align_all(phonemes, features)]
    assert near(found, truth, 2) > 0.9
    # The prior, asked for, changes what is learnt; so it was off.
    few = phonemes[:8], features[:8]
    default, off, on = (learn_alignment(*few, steps=2, prior=prior).tensors["symbols"] for prior in (None, False, True))
    assert torch.equal(default, off) and not torch.equal(default, on)


def test_features_may_be_read_one_utterance_at_a_time() -> None:
    phonemes, features, _ = artificial_corpus(40, seed=2)
    reads: list[int] = []

    def read(index: int) -> np.ndarray:
        reads.append(index)
        return features[index]

    whole, lazy = learn_alignment(phonemes, features, steps=5), learn_alignment(phonemes, read, steps=5)
    assert all(torch.equal(whole.tensors[name], lazy.tensors[name]) for name in whole.tensors)
    reads.clear()
    together, one_by_one = whole.align_all(phonemes, features), whole.align_all(phonemes, read)
    assert reads == list(range(40))
    assert [durations.tolist() for durations, _ in together] == [durations.tolist() for durations, _ in one_by_one]
    assert [score for _, score in together] == [score for _, score in one_by_one]


def test_only_a_window_of_features_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # Features count how many of them are alive; of 200 clips only those of one window ever are.
    phonemes, features, _ = artificial_corpus(200, seed=6)
    aligner = learn_alignment(phonemes[:40], features[:40], steps=2)
    monkeypatch.setattr("tokenizer.align.WINDOW_VALUES", 20_000)
    alive, most = [0], [0]

    class Counted(np.ndarray):
        def __del__(self) -> None:
            if self.base is None or not isinstance(self.base, Counted):
                alive[0] -= 1

    def read(index: int) -> np.ndarray:
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        return features[index].copy().view(Counted)

    aligned = aligner.align_all(phonemes, read)
    assert len(aligned) == 200
    per_clip = np.mean([frames.size for frames in features])
    assert most[0] < 2 * 20_000 / per_clip + 3 < 200


def test_a_long_utterance_is_searched_in_blocks_with_the_same_result(
    learnt: tuple[Aligner, Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    aligner, (phonemes, features, _) = learnt
    ids, frames = np.concatenate(phonemes[:20]), np.concatenate(features[:20])
    whole, score = aligner.align(ids, frames)
    monkeypatch.setattr("tokenizer.align.MAX_BATCH_CELLS", 100 * len(ids))  # 100 frames a block
    blocks, again = aligner.align(ids, frames)
    assert blocks.tolist() == whole.tolist() and blocks.sum() == len(frames)
    assert again == pytest.approx(score, abs=1e-5)


@given(SIZES, st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_search_in_blocks_is_the_search(size: tuple[int, int], seed: int, block: int) -> None:
    frames, phonemes = size
    # Whole numbers, so that there are ties.
    scores = np.random.default_rng(seed).integers(-2, 1, size=(frames, phonemes)).astype(np.float64)
    whole = mas(scores[None], np.array([frames]), np.array([phonemes]))[0]
    found = mas_of_blocks((scores[start : start + block] for start in range(0, frames, block)), phonemes)
    assert found.tolist() == whole.tolist()
    with pytest.raises(HocketError) as caught:
        mas_of_blocks([np.zeros((2, 3))], 3)
    assert caught.value.code is Code.TOO_FEW_FRAMES


def test_features_of_another_width_and_unknown_symbols_are_refused(learnt: tuple[Aligner, Corpus]) -> None:
    aligner, (phonemes, features, _) = learnt
    for ids, frames in ((phonemes[0], features[0][:, :15]), (phonemes[0] + 12, features[0])):
        with pytest.raises(HocketError) as caught:
            aligner.align(ids, frames)
        assert caught.value.code is Code.INPUT_INVALID
