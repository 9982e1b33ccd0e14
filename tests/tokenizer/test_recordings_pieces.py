"""Units of speech to pieces, and cues to the speech that belongs to them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.recordings.cue_zones import Zone, settle_cues, snap, speech_in, widen
from tokenizer.recordings.pieces import PieceSettings, Unit, cut_pieces
from tokenizer.recordings.subtitles import Cue
from tokenizer.recordings.turns import change_points, label_at, label_spans, without

RATE = 1000
SETTINGS = PieceSettings(min_s=1.0, max_s=10.0, max_pause_s=1.0, pad_s=0.1)


@st.composite
def spoken(draw: st.DrawFn) -> tuple[list[Unit], int]:
    """Units that follow each other, of three speakers, with and without text."""
    units, at = [], draw(st.integers(0, 500))
    for _ in range(draw(st.integers(0, 40))):
        length = draw(st.integers(20, 4000))
        text = draw(st.sampled_from([None, "yes", "It is."]))
        units.append(Unit(at, at + length, draw(st.sampled_from("abb")), text))
        at += length + draw(st.sampled_from([0, 1, 50, 300, 301, 999, 1001, 5000]))
    return units, at + draw(st.integers(0, 300))


@given(spoken())
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_or_doubled(case: tuple[list[Unit], int]) -> None:
    units, samples = case
    pieces = cut_pieces(units, samples, RATE, SETTINGS)
    assert [unit for piece in pieces for unit in piece.units] == units
    edges = [edge for piece in pieces for edge in (piece.start, piece.stop)]
    assert edges == sorted(edges) and (not edges or (edges[0] >= 0 and edges[-1] <= samples))  # none overlaps another
    for piece in pieces:
        assert piece.start <= piece.units[0].start and piece.stop >= piece.units[-1].stop
        assert len({(unit.speaker, unit.text is None) for unit in piece.units}) == 1
        length = (piece.stop - piece.start) / RATE
        assert length <= SETTINGS.max_s or len(piece.units) == 1
        gaps = [b.start - a.stop for a, b in itertools.pairwise(piece.units)]
        assert max(gaps, default=0) <= SETTINGS.max_pause_s * RATE


def reference(turn: list[Unit]) -> list[list[Unit]]:
    """Cut at the longest pause that leaves a second on both sides, else at the longest one, until all is short enough."""
    if turn[-1].stop - turn[0].start <= (SETTINGS.max_s - 2 * SETTINGS.pad_s) * RATE or len(turn) == 1:
        return [turn]

    def rank(place: int) -> tuple[bool, float, float]:
        left, right = turn[place - 1].stop - turn[0].start, turn[-1].stop - turn[place].start
        pause = turn[place].start - turn[place - 1].stop + 1000 * (turn[place - 1].text == "It is.")
        return min(left, right) >= SETTINGS.min_s * RATE, pause, -abs(left - right)

    best = max(range(1, len(turn)), key=rank)
    return reference(turn[:best]) + reference(turn[best:])


@given(
    st.lists(st.tuples(st.integers(20, 4000), st.integers(0, 1000), st.sampled_from(["yes", "It is."])), min_size=1, max_size=30)
)
@settings(max_examples=150, deadline=None)
def test_a_turn_is_cut_at_its_longest_pauses(steps: list[tuple[int, int, str]]) -> None:
    ends = np.cumsum([length + pause for length, pause, _ in steps])
    units = [
        Unit(int(end) - length - pause, int(end) - pause, "a", text)
        for end, (length, pause, text) in zip(ends, steps, strict=True)
    ]
    assert [list(piece.units) for piece in cut_pieces(units, int(ends[-1]), RATE, SETTINGS)] == reference(units)


def test_the_longest_pause_is_cut_and_a_sentence_end_before_it() -> None:
    starts = [0, 3100, 6500, 9700]
    units = [Unit(start, start + 3000, "a", text) for start, text in zip(starts, ["one", "two,", "three", "four"], strict=True)]
    pieces = cut_pieces(units, 13000, RATE, SETTINGS)
    assert [piece.text for piece in pieces] == ["one two,", "three four"]
    units[0] = Unit(0, 3000, "a", 'one."')
    assert [piece.text for piece in cut_pieces(units, 13000, RATE, SETTINGS)] == ['one."', "two, three four"]


def test_overlapping_speakers_keep_their_own_pieces_without_padding_into_each_other() -> None:
    units = [Unit(1000, 4000, "a", "x"), Unit(3500, 6000, "b", "y"), Unit(9000, 9500, "a", None)]
    pieces = cut_pieces(units, 9540, RATE, SETTINGS)
    assert [(piece.start, piece.stop, piece.speaker) for piece in pieces] == [
        (900, 4000, "a"),
        (3500, 6100, "b"),
        (8900, 9540, "a"),
    ]


spans = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 900)), max_size=25).map(
    lambda steps: [
        (start, start + length)
        for (gap, length), start in zip(
            steps, np.cumsum([0, *(gap + length for gap, length in steps)])[:-1] + [gap for gap, _ in steps], strict=True
        )
    ]
)


@given(spans, st.lists(st.tuples(st.integers(0, 20000), st.integers(0, 2)), max_size=20, unique_by=lambda mark: mark[0]))
@settings(max_examples=150, deadline=None)
def test_labels_cover_the_speech_and_hold_at_their_points(speech: list, marks: list) -> None:
    marks.sort()
    at, labels = (np.array([mark[n] for mark in marks], np.int64) for n in (0, 1))
    times, held = change_points(speech, at, labels)
    assert len(held) == len(times) + 1 and (np.diff(times) >= 0).all()
    for time, label in zip(at, labels, strict=True):
        if int(time) not in times:
            assert label_at(int(time), times, held) == label
    labelled = label_spans(speech, times, held)
    frames = np.zeros(60000, int)
    for start, stop, _ in labelled:
        frames[start:stop] += 1
    expected = np.zeros(60000, int)
    for start, stop in speech:
        expected[start:stop] += 1
    assert (frames == expected).all()


def test_the_speaker_changes_in_the_longest_pause() -> None:
    speech = [(0, 100), (110, 200), (260, 300)]
    times, labels = change_points(speech, np.array([50, 280]), np.array([1, 0]))
    assert times.tolist() == [230] and labels.tolist() == [1, 0]
    assert label_spans(speech, times, labels) == [(0, 100, 1), (110, 200, 1), (260, 300, 0)]
    assert change_points([(0, 300)], np.array([50, 280]), np.array([1, 0]))[0].tolist() == [165]


@given(spans, st.lists(st.tuples(st.integers(0, 15000), st.integers(0, 4000)), max_size=12))
@settings(max_examples=150, deadline=None)
def test_without_is_the_difference(speech: list, holes: list) -> None:
    holes = sorted((start, start + length) for start, length in holes)
    expected = np.zeros(40000, bool)
    for start, stop in speech:
        expected[start:stop] = True
    for start, stop in holes:
        expected[start:stop] = False
    found = np.zeros(40000, int)
    left = without(speech, holes)
    for start, stop in left:
        assert stop > start
        found[start:stop] += 1
    assert (found == expected).all() and left == sorted(left)


cues = st.lists(
    st.tuples(st.integers(0, 40000), st.integers(1, 4000), st.sampled_from([None, "a", "b"])).map(
        lambda cue: Cue(cue[0] / RATE, (cue[0] + cue[1]) / RATE, "x", cue[2])
    ),
    max_size=14,
)


@given(cues, spans)
@settings(max_examples=200, deadline=None)
def test_zones_of_one_speaker_never_overlap(said: list[Cue], speech: list) -> None:
    settled = settle_cues(said, RATE)
    assert sum(len(zone.text.split()) for zone in settled) == len(said)  # every text is kept
    for zones in (settled, widen(settled, RATE), snap(widen(settled, RATE), speech, RATE)):
        for speaker in (None, "a", "b"):
            own = [zone for zone in zones if zone.speaker == speaker]
            assert all(one.stop <= two.start for one, two in itertools.pairwise(own))
        assert all(zone.start < zone.stop for zone in zones)
        assert [zone.text for zone in zones] == [zone.text for zone in settled]
    for zone in settled:
        start, stop = speech_in(zone, speech)
        assert zone.start <= start < stop <= zone.stop
        heard = [(max(a, zone.start), min(b, zone.stop)) for a, b in speech if a < zone.stop and b > zone.start]
        if heard:
            assert (start, stop) == (heard[0][0], heard[-1][1])


def test_cues_take_the_speech_around_them_and_borders_move_into_pauses() -> None:
    zones = settle_cues([Cue(1.0, 2.0, "one"), Cue(2.1, 4.0, "two"), Cue(9.0, 10.0, "three")], RATE)
    speech = [(700, 1800), (1900, 4100), (8400, 9900)]
    snapped = snap(widen(zones, RATE), speech, RATE)
    assert [(zone.start, zone.stop) for zone in snapped] == [(500, 1850), (1850, 4500), (8500, 10500)]
    assert [speech_in(zone, speech) for zone in snapped] == [(700, 1800), (1900, 4100), (8500, 9900)]
    assert speech_in(Zone(5000, 6000, "x", None), speech) == (5000, 6000)


def test_cues_that_mostly_overlap_become_one() -> None:
    zones = settle_cues([Cue(0, 10, "a"), Cue(3, 5, "b"), Cue(9.5, 12, "c"), Cue(4, 6, "other", "x")], RATE)
    assert [(zone.start, zone.stop, zone.text, zone.speaker) for zone in zones] == [
        (0, 9750, "a b", None),
        (4000, 6000, "other", "x"),
        (9750, 12000, "c", None),
    ]
