"""Text to phonemes: what is said, where words begin, and that nothing is passed over in silence."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.phonemes import END, ENGLISH_SYMBOLS, PAD, PAUSE, PhonemeInventory, Phonemizer


@pytest.fixture(scope="module")
def phonemizer() -> Phonemizer:
    return Phonemizer("EN_us")


def test_a_sentence(phonemizer: Phonemizer) -> None:
    read = phonemizer.phonemize("Press 1, or call Dr. Jones.")
    assert read.spoken == "Press one or call Doctor Jones"
    assert " ".join(read.phonemes) == "_ p ɹ ˈɛ s w ˈʌ n | ˈɔ ɹ k ˈɔ l d ˈɑ k t ɚ d͡ʒ ˈoʊ n z _"
    assert [read.phonemes[place] for place, start in enumerate(read.word_starts) if start] == ["p", "w", "ˈɔ", "k", "d", "d͡ʒ"]


def test_pauses_stand_at_clause_breaks_only(phonemizer: Phonemizer) -> None:
    assert phonemizer.phonemize("Wait -- no; yes. Go!").phonemes.count(PAUSE) == 3
    assert phonemizer.phonemize("... hello ...").phonemes.count(PAUSE) == 0
    for text in ("Wait, wait.", '"Stop," she said.', "(Yes.) No?"):
        phonemes = phonemizer.phonemize(text).phonemes
        assert phonemes[0] == phonemes[-1] == END and END not in phonemes[1:-1]
        assert not any(first == second == PAUSE for first, second in pairwise(phonemes))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("5 %", "five percent"), ("$5.50", "five dollars fifty cents"), ("50 €", "fifty euro"),
        ("$1.2m", "one point two million dollars"),
        ("R&D", "R and D"), ("mp3", "M P three"), ("3D", "three D"), ("1990s", "nineteen nineties"), ("2000s", "two thousands"),
        ("22nd", "twenty second"), ("10:30", "ten thirty"), ("press # or *", "press pound or star"), ("20°", "twenty degrees"),
        ("naïve café", "naive cafe"), ("it’s “fine”", "it's fine"), ("U.S.A.", "U S A"), ("Mr. Smith's", "Mister Smith's"),
    ],
)  # fmt: skip
def test_what_is_written_is_spoken(phonemizer: Phonemizer, text: str, spoken: str) -> None:
    assert phonemizer.phonemize(text).spoken == spoken


NO_TEXTS = ["", "  ", "...", "?!", "😀", "a_b", "½ cup", "1/2", "% of", "$ sign", "<b>", "3'5\""]


@pytest.mark.parametrize("text", [*NO_TEXTS, "x" * 6000, "9" * 400])
def test_what_has_no_reading_is_refused(phonemizer: Phonemizer, text: str) -> None:
    with pytest.raises(HocketError) as caught:
        phonemizer.phonemize(text)
    assert caught.value.code is Code.NO_PHONEMES
    assert len(caught.value.line()) < 400


@pytest.mark.parametrize("text", ["Привет", "日本", "Привет world"])
def test_a_text_in_another_script_is_refused(phonemizer: Phonemizer, text: str) -> None:
    with pytest.raises(HocketError) as caught:
        phonemizer.phonemize(text)
    assert caught.value.code is Code.SCRIPT_MISMATCH and "Latin" in caught.value.detail


def test_pictures_are_left_out_and_listed(phonemizer: Phonemizer) -> None:
    read = phonemizer.phonemize("well 😀 done ™")
    assert read.spoken == "well done" and read.dropped == "😀™"


def test_a_small_share_of_foreign_letters_is_left_out_and_a_larger_one_refused(phonemizer: Phonemizer) -> None:
    text = "The letter π is Greek, and everybody in this long sentence knows it by heart, as they told me yesterday."
    assert phonemizer.phonemize(text).dropped == "π"
    with pytest.raises(HocketError, match="π"):
        phonemizer.phonemize("The letter π is Greek.")


WORDS = ["the", "storm", "1", "12", "$5", "3rd", "1990s", "mp3", "O'Neil", "naïve", "co-op", "U.S.", "AT&T", "50%", "10:30"]
SIGNS = [" ", ", ", "; ", " - ", "... ", " (", ") ", '"', "'", "? ", ". ", "-", "–", "—", "/", "#", "&"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SIGNS)), min_size=1, max_size=6))
def test_every_text_is_read_whole_or_refused(phonemizer: Phonemizer, pieces: list[tuple[str, str]]) -> None:
    text = "".join(word + sign for word, sign in pieces)
    try:
        read = phonemizer.phonemize(text)
    except HocketError as error:
        assert error.code is Code.NO_PHONEMES
        return
    assert len(read.phonemes) == len(read.word_starts)
    assert sum(read.word_starts) == len(read.spoken.split()), "every word that is said has phonemes"
    assert not any(start for symbol, start in zip(read.phonemes, read.word_starts, strict=True) if symbol in (END, PAUSE))
    assert re.fullmatch(r"[A-Za-z'. ]+", read.spoken)
    ids = phonemizer.inventory.encode(read.phonemes)
    assert ids.dtype == np.uint16 and ids.all()
    assert phonemizer.inventory.decode(ids) == read.phonemes


def test_the_inventory_is_what_datasets_already_hold() -> None:
    # Ids are in every dataset and checkpoint: symbols may be appended, never moved.
    assert ENGLISH_SYMBOLS[:4] == [PAD, END, PAUSE, "p"]
    places = {"w": 24, "d͡ʒ": 26, "ə": 27, "ˈə": 28, "ˌə": 29, "ɚ": 30, "u": 57, "ˌɔɪ": 74}
    assert {symbol: ENGLISH_SYMBOLS.index(symbol) for symbol in places} == places
    assert len(ENGLISH_SYMBOLS) == 75


def test_unknown_symbols_are_listed_never_dropped() -> None:
    inventory = PhonemeInventory([PAD, END, "a"])
    assert inventory.encode([END, "a", END]).tolist() == [1, 2, 1]
    with pytest.raises(HocketError, match="b ʘ") as caught:
        inventory.encode(["a", "ʘ", "b"])
    assert caught.value.code is Code.NO_PHONEMES
    with pytest.raises(HocketError):
        inventory.encode([PAD])
    for ids in ([0], [3], [-1]):
        with pytest.raises(HocketError):
            inventory.decode(ids)


@pytest.mark.parametrize("symbols", [[], ["a"], [PAD, "a", "a"]])
def test_what_is_no_inventory_is_refused(symbols: list[str]) -> None:
    with pytest.raises(HocketError) as caught:
        PhonemeInventory(symbols)
    assert caught.value.code is Code.MANIFEST_INVALID


@pytest.mark.parametrize("language", ["JP", "sv", "ru-Latn"])
def test_other_languages_are_refused(language: str) -> None:
    with pytest.raises(HocketError) as caught:
        Phonemizer(language)
    assert caught.value.code is Code.LANGUAGE_REFUSED
