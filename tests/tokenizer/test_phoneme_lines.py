"""Phonemes written out by a person are read as they were meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.phoneme_lines import parse_phonemes, write_phonemes
from tokenizer.phonemes import END, PAUSE, PhonemeText


def test_words_pauses_and_both_ends() -> None:
    read = parse_phonemes("h ə l / oʊ | w ɝ")
    assert read.phonemes == [END, "h", "ə", "l", "oʊ", PAUSE, "w", "ɝ", END]
    assert read.word_starts == [False, True, False, False, True, False, True, False, False]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "t͡ʃ", "ˈɑ"]), min_size=1, max_size=4), min_size=1, max_size=6), st.data())
def test_what_is_written_is_read_back(words: list[list[str]], data: st.DataObject) -> None:
    phonemes, starts = [END], [False]
    for number, word in enumerate(words):
        if number and data.draw(st.booleans()):
            phonemes.append(PAUSE)
            starts.append(False)
        phonemes += word
        starts += [True] + [False] * (len(word) - 1)
    said = PhonemeText("", [*phonemes, END], [*starts, False])
    assert parse_phonemes(write_phonemes(said)) == said


@pytest.mark.parametrize("text", ["", " / ", "_ | _"])
def test_a_line_without_sound_is_refused(text: str) -> None:
    with pytest.raises(HocketError) as caught:
        parse_phonemes(text)
    assert caught.value.code is Code.NO_PHONEMES
