"""Which sentences are measured on, likeness of voices, and the figures of a kind of clip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from common.errors import Code, HocketError
from tts.evaluation.figures import CODEC, RECORDINGS, SYNTHESIS, Heard, by_speaker, figures_of
from tts.evaluation.heldout import Item, choose
from tts.evaluation.similarity import similarity
from tts.evaluation.words import ErrorRate

SPOKEN = ("en-US", "de-DE")
VOICES = ("ann", "bo")
items = st.lists(
    st.builds(
        Item,
        id=st.uuids().map(str),
        text=st.just("text"),
        language=st.sampled_from([*SPOKEN, "fr-FR"]),
        speaker=st.sampled_from([*VOICES, "eve"]),
        words=st.integers(1, 9),
    ),
    max_size=30,
    unique_by=lambda item: item.id,
)


@settings(max_examples=40)
@given(items, st.integers(1, 40), st.integers(1, 40), st.randoms())
def test_a_smaller_limit_takes_the_first_and_no_order_matters(found: list[Item], few: int, many: int, random: object) -> None:
    right = {item.id for item in found if item.language in SPOKEN and item.speaker in VOICES and item.words >= 4}
    few, many = sorted((few, many))
    if not right:
        with pytest.raises(HocketError) as caught:
            choose(found, languages=SPOKEN, speakers=VOICES)
        assert caught.value.code is Code.CORPUS_TOO_SMALL
        return
    chosen = choose(found, languages=SPOKEN, speakers=VOICES, limit=many)
    assert {item.id for item in chosen.items} <= right and len(chosen.items) == min(many, len(right))
    assert bool(chosen.notes) == (len(right) < len(found))
    mixed = list(found)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert choose(mixed, languages=SPOKEN, speakers=VOICES, limit=few).items == chosen.items[:few]


def test_only_what_is_asked_for() -> None:
    found = [
        Item(f"{language}-{speaker}", "text", language, speaker, words=6) for language in SPOKEN for speaker in (*VOICES, "eve")
    ]
    chosen = choose(found, languages=SPOKEN, speakers=VOICES, language="de-DE", speaker="bo")
    assert [item.id for item in chosen.items] == ["de-DE-bo"]
    assert {item.speaker for item in choose(found, languages=SPOKEN, speakers=()).items} == {*VOICES, "eve"}
    for options, code in (({"language": "it-IT"}, Code.LANGUAGE_REFUSED), ({"speaker": "adam"}, Code.OPTION_INVALID)):
        with pytest.raises(HocketError) as caught:
            choose(found, languages=SPOKEN, speakers=VOICES, **options)  # type: ignore[arg-type]
        assert caught.value.code is code and next(iter(options.values())) in caught.value.detail
    with pytest.raises(HocketError) as caught:
        choose(found, languages=SPOKEN, speakers=VOICES, speaker="eve")
    assert caught.value.code is Code.CORPUS_TOO_SMALL and "voice" in caught.value.detail


vectors = arrays.arrays(np.float32, (4, 3), elements=st.floats(0.125, 1, width=32))


@settings(max_examples=40)
@given(vectors)
def test_the_likeness_of_recordings_leaves_each_one_out(raw: np.ndarray) -> None:
    unit = {str(place): row / np.linalg.norm(row) for place, row in enumerate(raw)}
    speakers = dict.fromkeys(unit, "ann")
    expected = []
    for name, own in unit.items():
        centroid = np.sum([row for other, row in unit.items() if other != name], axis=0)
        expected.append(own @ centroid / np.linalg.norm(centroid))
    assert similarity(unit, unit, speakers) == pytest.approx(float(np.mean(expected)), abs=1e-5)


def test_a_clip_is_compared_with_its_own_speaker() -> None:
    ann, bo = np.eye(2, dtype=np.float32)
    recordings = {"a1": ann, "a2": ann, "b1": bo, "b2": bo}
    speakers = {name: name[0] for name in recordings}
    assert similarity({"a1": ann, "b1": bo}, recordings, speakers) == pytest.approx(1.0)
    assert similarity({"a1": bo, "b1": bo}, recordings, speakers) == pytest.approx(0.5)
    assert similarity({"a1": ann}, {"a1": ann}, speakers) is None, "its own recording is no comparison"
    assert similarity({"c1": ann}, recordings, {**speakers, "c1": "c"}) is None


def heard(name: str, speaker: str, errors: int, **fields: object) -> Heard:
    rate = ErrorRate(errors, 10)
    return Heard(name, speaker, seconds=2.0, understood="", words=rate, characters=rate, **fields)  # type: ignore[arg-type]


def test_figures_are_over_all_words_and_all_seconds() -> None:
    clips = [
        heard("1", "ann", 0, took_s=1.0, dnsmos=3.0, rate_error=0.01, tempo=1.1),
        heard("2", "ann", 4, took_s=3.0, rate_error=0.03, tempo=0.7),
        Heard("3", "ann", seconds=4.0, took_s=0.0),
    ]
    found = figures_of(clips, [])
    assert found is not None
    assert (found.wer, found.cer, found.words, found.n, found.seconds) == (0.2, 0.2, 20, 3, 8.0)
    assert (found.dnsmos, found.dnsmos_n, found.rtf, found.similarity) == (3.0, 1, 0.5, None)
    assert found.rate_error == pytest.approx(0.02) and found.tempo == pytest.approx(0.9)
    assert found.interval is not None and found.interval[0] <= 0.2 <= found.interval[1]
    assert figures_of([], clips) is None
    silent = figures_of(clips[2:], [])
    assert silent is not None and silent.wer is None and silent.interval is None


def test_speakers_are_told_apart_where_there_are_several() -> None:
    clips = {SYNTHESIS: [heard("1", "ann", 1), heard("2", "bo", 5)], CODEC: [heard("1", "ann", 0)], RECORDINGS: []}
    found = by_speaker(clips)
    assert [found[name][SYNTHESIS].wer for name in ("ann", "bo")] == [0.1, 0.5]  # type: ignore[union-attr]
    assert found["bo"][CODEC] is None and found["ann"][RECORDINGS] is None
    assert by_speaker({SYNTHESIS: clips[SYNTHESIS][:1]}) == {}
