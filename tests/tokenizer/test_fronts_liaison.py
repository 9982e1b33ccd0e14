"""French words that are linked, and those that are not."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.fronts.choice import load_front
from tokenizer.fronts.liaison import link

front = functools.lru_cache(load_front)


@pytest.mark.parametrize(
    ("text", "sounds"),
    [
        ("les enfants", "l e z ɑ̃ f ɑ̃"), ("les hommes", "l e z ɔ m"), ("les héros", "l e e ʁ o"), ("les, enfin", "l e | ɑ̃ f ɛ̃"),
        ("un ami", "œ̃ n a m i"), ("vous avez", "v u z a v e"), ("vous parlez", "v u p a ʁ l e"), ("25", "v ɛ̃ t s ɛ̃ k"),
        ("six ans", "s i z ɑ̃"), ("neuf heures", "n œ v œ ʁ"), ("81", "k a t ʁ v ɛ̃ œ̃"), ("petit et grand", "p ə t i e ɡ ʁ ɑ̃"),
    ],
)  # fmt: skip
def test_what_is_linked(text: str, sounds: str) -> None:
    assert front("fr").read(text).phonemes[1:-1] == sounds.split()


WORDS = [("les", ["l", "e"]), ("vingt", ["v", "ɛ̃"]), ("ami", ["a", "m", "i"]), ("neuf", ["n", "œ", "f"]), ("haut", ["o"]), None]


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_words_stay_and_gain_one_sound_at_most(words: list[tuple[str, list[str]] | None]) -> None:
    linked = link(words)
    assert len(linked) == len(words)
    for before, after in zip(words, linked, strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert after[0] == before[0] and 0 <= len(after[1]) - len(before[1]) <= 1
