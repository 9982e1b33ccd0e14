"""Utterances at another tempo: what stays, what changes, and that every reader of a lease gets the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tts.batch import collate
from tts.config import preset
from tts.tempo import retime, vary_tempo


@dataclass(frozen=True)
class Row:
    id: str
    phonemes: NDArray[Any]
    durations: NDArray[Any]
    word_starts: NDArray[Any]
    codes: NDArray[Any]
    n_frames: int
    language: str = "en-US"
    speaker_embedding: Any = None


def row(durations: list[int], name: str = "a") -> Row:
    """An utterance whose code in book 0 tells the phoneme that the frame belongs to, and in book 1 which of its frames it is."""
    lengths = np.array(durations)
    phoneme = np.repeat(np.arange(len(durations)), lengths)
    within = np.arange(len(phoneme)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    codes = np.stack([phoneme % 256, within % 256]).astype(np.uint16)
    return Row(name, np.full(len(durations), 3), lengths, np.zeros(len(durations), np.uint8), codes, int(lengths.sum()))


DURATIONS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(lambda each: sum(each) > 0)
CONFIG = preset("test", n_codebooks=2, codebook_size=256, n_phonemes=8, tempo_share=0.5)


@given(DURATIONS, st.floats(0.3, 3.0))
def test_every_frame_comes_from_its_own_phoneme_and_in_order(durations: list[int], rate: float) -> None:
    told = retime(row(durations), rate)
    assert told.codes.shape == (2, told.n_frames) and int(told.durations.sum()) == told.n_frames
    assert np.array_equal(told.codes[0], np.repeat(np.arange(len(durations)) % 256, told.durations))
    source = np.cumsum([0, *durations])[told.codes[0].astype(int)] + told.codes[1]
    assert (np.diff(source) >= 0).all()
    assert ((told.durations > 0) == (np.array(durations) > 0)).all()
    spoken = sum(1 for each in durations if each)
    assert told.n_frames == max(round_half_up(sum(durations) * rate), spoken)


def round_half_up(value: float) -> int:
    return int(np.floor(value + 0.5))


def test_four_frames_told_in_two_are_the_second_and_the_fourth() -> None:
    assert retime(row([4]), 0.5).codes[1].tolist() == [1, 3]
    assert retime(row([2]), 2.0).codes[1].tolist() == [0, 0, 1, 1]


@given(DURATIONS)
def test_at_rate_one_nothing_changes(durations: list[int]) -> None:
    told, wanted = retime(row(durations), 1.0), row(durations)
    assert np.array_equal(told.codes, wanted.codes) and np.array_equal(told.durations, wanted.durations)


def test_the_draw_depends_on_the_position_and_not_on_what_was_read_with_it() -> None:
    rows = [row([3, 5, 2, 7], str(number)) for number in range(64)]
    whole = vary_tempo(rows, CONFIG, seed=1, epoch=2, first=100)
    parts = vary_tempo(rows[:20], CONFIG, seed=1, epoch=2, first=100) + vary_tempo(rows[20:], CONFIG, seed=1, epoch=2, first=120)
    assert [one.n_frames for one in whole] == [one.n_frames for one in parts]
    other = vary_tempo(rows, CONFIG, seed=1, epoch=3, first=100)
    assert [one.n_frames for one in whole] != [one.n_frames for one in other]


def test_the_share_and_the_range_are_kept_and_the_batch_is_accepted() -> None:
    rows = [row([20, 30, 25, 25], str(number)) for number in range(400)]
    told = vary_tempo(rows, CONFIG, seed=0, epoch=0, first=0)
    changed = [one.n_frames for one in told if one.n_frames != 100]
    assert 0.4 < len(changed) / 400 < 0.6
    assert min(changed) >= 66 and max(changed) <= 150 and min(changed) < 75 and max(changed) > 135
    assert collate(told[:8], CONFIG).frames == sum(one.n_frames for one in told[:8])
    assert vary_tempo(rows, CONFIG.model_copy(update={"tempo_share": 0.0}), seed=0, epoch=0, first=0) == rows


def test_an_utterance_that_would_grow_beyond_the_model_stays_as_it_is() -> None:
    tight = CONFIG.model_copy(update={"max_frames": 100, "tempo_share": 1.0})
    assert max(one.n_frames for one in vary_tempo([row([50, 50])] * 50, tight, seed=0, epoch=0, first=0)) == 100
