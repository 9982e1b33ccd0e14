"""Long clips cut at pauses: nothing is lost, the order stays, durations sum, and every piece is an utterance of its own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.cuts import Cut, cut_at_pauses, piece_arrays
from tokenizer.phonemes import END, ENGLISH_SYMBOLS, PAUSE
from tokenizer.shards import Utterance

END_ID, PAUSE_ID = ENGLISH_SYMBOLS.index(END), ENGLISH_SYMBOLS.index(PAUSE)
RATE = 50.0


def clip(words: list[list[int]], pauses: list[int], ends: tuple[int, int] = (3, 4)) -> Utterance:
    """A clip of words (frames of each phoneme), a pause of so many frames after each but the last; 0 is no pause."""
    phonemes, durations, starts = [END_ID], [ends[0]], [0]
    for number, word in enumerate(words):
        phonemes += [3 + (number * 5 + place) % 60 for place in range(len(word))]
        durations += word
        starts += [1] + [0] * (len(word) - 1)
        if number + 1 < len(words) and pauses[number]:
            phonemes.append(PAUSE_ID)
            durations.append(pauses[number])
            starts.append(0)
    phonemes.append(END_ID)
    durations.append(ends[1])
    starts.append(0)
    frames = sum(durations)
    row = Utterance(
        "clip", "text", " ".join(f"w{number}" for number in range(len(words))), np.array(phonemes, np.uint16),
        np.array(durations, np.uint16), np.array(starts, np.uint8), -1.0, "en-US", "voice",
        np.arange(frames, dtype=np.uint16)[None].repeat(2, 0), frames, None, "CC0-1.0",
    )  # fmt: skip
    row.check()
    return row


def cuts_of(row: Utterance, max_s: float, min_s: float = 0.0, min_pause_s: float = 0.1) -> list[Cut]:
    return cut_at_pauses(
        row.phonemes, row.durations, row.word_starts,
        symbols=ENGLISH_SYMBOLS, frame_rate=RATE, max_s=max_s, min_s=min_s, min_pause_s=min_pause_s,
    )  # fmt: skip


def pieces_of(row: Utterance, cuts: list[Cut]) -> list[Utterance]:
    pieces = []
    for number, cut in enumerate(cuts):
        ids, durations, starts = piece_arrays(cut, row.phonemes, row.durations, row.word_starts, symbols=ENGLISH_SYMBOLS)
        pieces.append(replace(
            row, id=f"clip-{number}", phonemes=ids, durations=durations, word_starts=starts, codes=row.codes[:, cut.frames],
            n_frames=cut.n_frames, spoken=" ".join(row.spoken.split()[cut.words]),
        ))  # fmt: skip
    return pieces


@st.composite
def clips(draw: st.DrawFn) -> Utterance:
    words = draw(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=1, max_size=14))
    pauses = draw(st.lists(st.integers(0, 20), min_size=len(words), max_size=len(words)))
    return clip(words, pauses, draw(st.tuples(st.integers(1, 9), st.integers(1, 9))))


@given(clips(), st.floats(0.2, 4.0), st.floats(0.0, 0.95), st.sampled_from([0.0, 0.1, 0.2]))
def test_pieces_together_are_the_clip(row: Utterance, max_s: float, share: float, min_pause_s: float) -> None:
    cuts = cuts_of(row, max_s, max_s * share, min_pause_s)
    pieces = pieces_of(row, cuts)
    for piece in pieces:
        piece.check()
        assert piece.phonemes[0] == piece.phonemes[-1] == END_ID
        assert len(piece.spoken.split()) == piece.word_starts.sum() >= 1
    assert np.concatenate([piece.codes for piece in pieces], axis=1).tolist() == row.codes.tolist()
    assert " ".join(piece.spoken for piece in pieces) == row.spoken
    # The two ENDs at each seam, put together again, are the pause that was there: phonemes, frames and word starts.
    phonemes, durations, starts = pieces[0].phonemes.tolist(), pieces[0].durations.tolist(), pieces[0].word_starts.tolist()
    for piece in pieces[1:]:
        phonemes[-1] = PAUSE_ID
        durations[-1] += int(piece.durations[0])
        assert starts[-1] == piece.word_starts[0] == 0
        assert durations[-1] >= min_pause_s * RATE
        phonemes += piece.phonemes.tolist()[1:]
        durations += piece.durations.tolist()[1:]
        starts += piece.word_starts.tolist()[1:]
    assert (phonemes, durations, starts) == (row.phonemes.tolist(), row.durations.tolist(), row.word_starts.tolist())


def cost_of(cuts: list[Cut], row: Utterance, longest: int, shortest: float) -> tuple[int, int, int]:
    frames = [cut.n_frames for cut in cuts]
    return sum(max(0, length - longest) for length in frames), sum(length < shortest for length in frames), len(frames)


@given(clips(), st.floats(0.3, 3.0), st.floats(0.0, 0.9))
def test_no_other_set_of_pauses_is_better(row: Utterance, max_s: float, share: float) -> None:
    longest, shortest = int(max_s * RATE), max_s * share * RATE
    found = cuts_of(row, max_s, max_s * share)
    if row.n_frames <= longest:
        assert len(found) == 1
        return
    ends = np.cumsum(row.durations.astype(int))
    pauses = [place for place in np.flatnonzero(row.phonemes == PAUSE_ID) if row.durations[place] >= 5]
    best = min(
        cost_of([Cut(slice(0), slice(one, two), slice(0)) for one, two in itertools.pairwise(bounds)], row, longest, shortest)
        for count in range(min(len(pauses), 6) + 1)
        for chosen in itertools.combinations(pauses, count)
        for bounds in [[0, *(int(ends[place]) - int(row.durations[place]) // 2 for place in chosen), row.n_frames]]
    )
    ours = cost_of(found, row, longest, shortest)
    assert ours <= best or len(pauses) > 6
    assert all(
        cut.n_frames <= longest or not [p for p in pauses if cut.phonemes.start < p < cut.phonemes.stop - 1] for cut in found
    )


def test_by_hand() -> None:
    row = clip([[10] * 5, [10] * 5, [10] * 5, [10] * 5], [8, 5, 9])
    assert row.n_frames == 3 + 200 + 22 + 4
    # At most 2.5 s: one cut is enough, and the middle pause leaves both pieces long enough.
    first, second = cuts_of(row, 2.5, 1.0)
    assert (first.frames, second.frames) == (slice(0, 3 + 50 + 8 + 50 + 3), slice(114, 229))
    assert (first.words, second.words) == (slice(0, 2), slice(2, 4))
    left, right = pieces_of(row, [first, second])
    # Of the five frames of the pause the piece before gets three, the one after two.
    assert (left.durations[-1], right.durations[0]) == (3, 2)
    assert left.phonemes[-1] == right.phonemes[0] == END_ID
    assert PAUSE_ID in left.phonemes and PAUSE_ID in right.phonemes
    # At most 1.5 s: three cuts.
    assert [cut.words for cut in cuts_of(row, 1.5)] == [slice(place, place + 1) for place in range(4)]
    assert [cut.frames for cut in cuts_of(row, 10.0)] == [slice(0, 229)]


def test_the_longest_pause_is_taken_when_all_else_is_alike() -> None:
    row = clip([[10] * 5] * 3, [6, 12])
    assert cuts_of(row, 2.8)[0].words == slice(0, 2)
    row = clip([[10] * 5] * 3, [12, 6])
    assert cuts_of(row, 2.8)[0].words == slice(0, 1)


def test_without_a_pause_there_is_no_cut() -> None:
    row = clip([[10] * 5] * 6, [0] * 6)
    assert [cut.frames for cut in cuts_of(row, 1.0)] == [slice(0, row.n_frames)]
    # Pauses that have the one frame that every token gets are none that can be heard.
    row = clip([[10] * 5] * 6, [1] * 6)
    assert len(cuts_of(row, 1.0)) == 1
    # Even when any pause will do, one of a single frame cannot be shared between two pieces.
    assert len(cuts_of(row, 1.0, min_pause_s=0.0)) == 1


def test_what_does_not_fit_together_is_refused() -> None:
    row = clip([[5, 5], [5]], [6])
    for wrong in (replace(row, durations=row.durations[:-1]), replace(row, durations=row.durations * 0)):
        with pytest.raises(HocketError) as caught:
            cuts_of(wrong, 1.0)
        assert caught.value.code is Code.INPUT_INVALID
    for max_s, min_s in ((1.0, 1.0), (0.0, 0.0), (1.0, -1.0)):
        with pytest.raises(HocketError) as caught:
            cuts_of(row, max_s, min_s)
        assert caught.value.code is Code.OPTION_INVALID
