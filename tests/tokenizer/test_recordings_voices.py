"""Speech decided from probabilities, and speakers from embeddings."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenizer.audio import read_audio
from tokenizer.recordings import cluster
from tokenizer.recordings.cluster import Clusterer, ClusterSettings, Nodes, agglomerate, decode
from tokenizer.recordings.vad import CHUNK, SileroVad, SpeechDecider, SpeechSettings

SHIPPED = Path(__file__).parents[2] / "tokenizer" / "data" / "corpus-slt" / "wavs"

probabilities = st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.45, 0.6, 0.9]), max_size=120)
SPEECH = SpeechSettings(min_silence_s=0.1, min_speech_s=0.1, max_span_s=1.0)  # 3, 3 and 31 chunks


def decide(values: list[float], sizes: list[int]) -> list[tuple[int, int]]:
    decider, spans, at = SpeechDecider(SPEECH), [], 0
    for size in itertools.chain(sizes, itertools.repeat(7)):
        if at >= len(values):
            return spans + decider.finish()
        spans += decider.push(values[at : at + size])
        at += size
    raise AssertionError


@given(probabilities, st.lists(st.integers(1, 40), max_size=6))
@settings(max_examples=150, deadline=None)
def test_spans_do_not_depend_on_how_the_probabilities_come(values: list[float], sizes: list[int]) -> None:
    spans = decide(values, sizes)
    assert spans == decide(values, [max(1, len(values))])
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    speech = np.zeros(len(values), bool)
    for start, stop in spans:
        assert start % CHUNK == stop % CHUNK == 0 and 3 <= (stop - start) // CHUNK <= 31
        speech[start // CHUNK : stop // CHUNK] = True
        assert values[start // CHUNK] >= SPEECH.onset or any(stop == start for _, stop in spans)  # begins loud, or was cut there
    for at in range(len(values) - 2):
        if max(values[at : at + 3]) < SPEECH.offset:
            assert not speech[at + 2]
        if min(values[at : at + 3]) >= SPEECH.onset:
            assert speech[at : at + 3].all()


@given(probabilities)
@example([0.6, 0.0, 0.0, 0.4, 0.4, 0.4, 0.4])
@settings(max_examples=100, deadline=None)
def test_what_is_decided_is_never_taken_back(values: list[float]) -> None:
    final = np.zeros(len(values) * CHUNK, bool)
    for start, stop in decide(values, [max(1, len(values))]):
        final[start:stop] = True
    decider, known, spans = SpeechDecider(SPEECH), 0, []
    for n, value in enumerate(values):
        spans += decider.push([value])
        speech = np.zeros(len(values) * CHUNK, bool)
        for start, stop in spans:
            speech[start:stop] = True
        if decider.open_from is not None:
            speech[decider.open_from : decider.decided] = True
        assert known <= decider.decided <= (n + 1) * CHUNK
        open_values = values[decider.decided // CHUNK : n + 1]
        hesitant = sum(SPEECH.offset <= one < SPEECH.onset for one in open_values)  # neither ends a silence nor begins one
        assert len(open_values) <= min(6 + hesitant, 31)  # never far behind
        known = decider.decided
        assert (speech[:known] == final[:known]).all()


def test_speech_without_a_pause_is_cut_where_it_is_least_likely() -> None:
    values = [0.9] * 60
    values[22] = 0.55
    spans = decide(values, [60])
    assert spans[0] == (0, 22 * CHUNK) and spans[1][0] == 22 * CHUNK and spans[-1][1] == 60 * CHUNK


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    pytest.importorskip("silero_vad", reason="silero-vad is not installed")
    return SileroVad()


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    paths = sorted(SHIPPED.iterdir())[:5]
    return np.concatenate([np.pad(read_audio(path, 16000), (8000, 8000)) for path in paths])


def streamed(vad: SileroVad, samples: np.ndarray, size: int) -> np.ndarray:
    stream = vad.stream()
    return np.concatenate([stream.push(samples[at : at + size]) for at in range(0, len(samples), size)] + [stream.finish()])


def test_grouped_probabilities_are_those_of_the_package(vad: SileroVad, speech: np.ndarray) -> None:
    threads = torch.get_num_threads()
    package = pytest.importorskip("silero_vad").load_silero_vad()
    torch.set_num_threads(threads)
    padded = np.pad(speech, (0, -len(speech) % CHUNK))
    with torch.inference_mode():
        expected = [float(package(torch.from_numpy(padded[at : at + CHUNK]), 16000)) for at in range(0, len(padded), CHUNK)]
    found = streamed(vad, speech, 16000)
    assert vad.grouped and len(found) == len(expected)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    one_by_one = SileroVad()
    one_by_one.probabilities = one_by_one._one_by_one
    np.testing.assert_allclose(streamed(one_by_one, speech, 5000), expected, atol=1e-4)


def test_probabilities_do_not_depend_on_the_blocks(vad: SileroVad, speech: np.ndarray) -> None:
    whole = streamed(vad, speech, len(speech))
    for size in (1000, 33333):
        assert (streamed(vad, speech, size) == whole).all()


def test_speech_is_found_between_silences(vad: SileroVad, speech: np.ndarray) -> None:
    decider = SpeechDecider()
    spans = decider.push(streamed(vad, speech, 16000).tolist()) + decider.finish()
    frames = np.zeros(len(speech) + CHUNK, bool)
    for start, stop in spans:
        frames[start:stop] = True
    loud = np.convolve(speech**2, np.ones(800) / 800, "same") > 1e-4
    assert frames[: len(speech)][loud].mean() > 0.97 and frames[: len(speech)][:6000].mean() == 0
    assert frames[: len(speech)][speech == 0].mean() < 0.2


def test_loading_leaves_the_number_of_threads_alone() -> None:
    pytest.importorskip("silero_vad", reason="silero-vad is not installed")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        SileroVad()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def speakers(count: int, windows: int, seed: int, scatter: float = 0.55) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [N, 64] about `count` directions, in turns, and whose each is."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(count, 64))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    who = np.repeat(rng.integers(0, count, -(-windows // 5)), 5)[:windows]
    who[: 5 * count] = np.repeat(np.arange(count), 5)
    vectors = centres[who] + rng.normal(size=(windows, 64)) * scatter / 8
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), who


@pytest.mark.parametrize("count", [1, 2, 7, 21])
def test_speakers_are_found_whatever_their_number(count: int) -> None:
    vectors, who = speakers(count, 1500, count)
    clusterer = Clusterer()
    for at in range(0, 1500, 321):
        clusterer.push(vectors[at : at + 321], np.ones(len(vectors[at : at + 321])))
    nodes = clusterer.finish()
    assert len(nodes) == count and nodes.weights.sum() == pytest.approx(1500)
    labels = (vectors @ nodes.centroids().T).argmax(axis=1)
    for speaker in range(count):
        assert len(set(labels[who == speaker])) == 1


def test_clusters_do_not_depend_on_the_pushes_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BLOCK", 32)
    monkeypatch.setattr(cluster, "POOL", 64)
    largest = 0
    table = Nodes.similarity

    def measured(self: Nodes, row: int | None = None) -> np.ndarray:
        nonlocal largest
        largest = max(largest, len(self))
        return table(self, row)

    monkeypatch.setattr(Nodes, "similarity", measured)
    vectors = np.random.default_rng(1).normal(size=(700, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # all different: nothing to join
    results = []
    for size in (700, 13):
        clusterer = Clusterer(ClusterSettings(min_weight=0.0))
        for at in range(0, 700, size):
            clusterer.push(vectors[at : at + size], np.ones(len(vectors[at : at + size])))
        results.append(clusterer.finish())
    assert largest <= 64 and results[0].weights.sum() == 700
    assert (results[0].sums == results[1].sums).all()


@pytest.mark.parametrize("wanted", [1, 2, 3, 5])
def test_a_given_number_of_speakers(wanted: int) -> None:
    vectors, who = speakers(3, 600, 4)
    clusterer = Clusterer(ClusterSettings(speakers=wanted, min_weight=2.0))
    clusterer.push(vectors, np.ones(600))
    nodes = clusterer.finish()
    assert len(nodes) == wanted
    if wanted == 5:  # more than there are: still nobody's windows are another's
        labels = (vectors @ nodes.centroids().T).argmax(axis=1)
        assert all(len(set(who[labels == n])) == 1 for n in range(5))


def test_similarity_does_not_depend_on_the_number_of_members() -> None:
    a, b = (speakers(2, 400, 9)[0][speakers(2, 400, 9)[1] == n] for n in (0, 1))

    def similarity(*groups: np.ndarray) -> float:
        nodes = Nodes.join(agglomerate(Nodes.of(group, np.ones(len(group))), -1.0) for group in groups)
        return float(nodes.similarity()[0, 1])

    assert similarity(a[:60], a[60:120]) == pytest.approx(1, abs=0.05)
    assert similarity(a[:60], b[:60]) == pytest.approx(similarity(a[:20], b[:90]), abs=0.08)
    assert similarity(a[:60], b[:60]) < 0.5


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_decoding_finds_the_best_labels(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, changes = rng.random((n, k)).astype(np.float32), rng.choice([0, 0.3, 2], n).astype(np.float32)

    def value(labels: tuple[int, ...]) -> float:
        jumps = sum(changes[at] for at in range(1, n) if labels[at] != labels[at - 1])
        return float(sum(scores[at, label] for at, label in enumerate(labels)) - jumps)

    best = max(value(labels) for labels in itertools.product(range(k), repeat=n))
    assert value(tuple(decode(scores, changes).tolist())) == pytest.approx(best, abs=1e-5)
