"""What the lexicons write becomes symbols of the table: for every symbol that they and their models can give."""

from __future__ import annotations

import base64
import functools
import importlib
import sqlite3

import pycrfsuite
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.fronts import german, italian, russian, spanish
from tokenizer.fronts.choice import _MODULES, load_front
from tokenizer.fronts.lexicon import language_folder
from tokenizer.fronts.mending import Mend, split_stress
from tokenizer.fronts.symbols import SYMBOLS
from tokenizer.languages import supported_languages

VARIANTS = {"de": "espeak", "es": "espeak", "fr": "", "it": "espeak", "ru": "espeak"}
MENDS = {"de": german.mend, "es": spanish.mend, "it": italian.mend, "ru": russian.mend}


@functools.lru_cache
def raw_symbols(language: str) -> tuple[str, ...]:
    """Every symbol in a lexicon and in the labels of its letter-to-sound model."""
    folder = language_folder(language) / VARIANTS[language]
    stored = sqlite3.connect(f"file:{folder / 'lexicon.db'}?mode=ro", uri=True)
    found = {symbol for (line,) in stored.execute("SELECT phonemes FROM word_phonemes") for symbol in line.split()}
    stored.close()
    tagger = pycrfsuite.Tagger()
    tagger.open(str(folder / "g2p" / "model.crf"))
    for label in tagger.labels():
        found.update(base64.b64decode(label).decode().split("|"))
    return tuple(sorted(found - {"_"}))


@pytest.mark.parametrize("language", VARIANTS)
def test_every_symbol_that_can_come_is_in_the_table(language: str) -> None:
    module = importlib.import_module(f"tokenizer.fronts.{_MODULES[language]}")
    mend: Mend = getattr(module, "MEND", None) or module.mend
    raw = set(raw_symbols(language))
    if language == "ru":  # signs that `russian.mend` takes out before
        raw -= {"ʲ", '"', "^"}
        raw |= {f"{sound}ʲ" for sound in [*russian._SOFT, "ʃ", "ʒ"]}
    assert mend.reachable(raw) <= set(module.SYMBOLS) <= set(SYMBOLS)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_order_of_them_gives_known_symbols_with_stress_on_vowels(data: st.DataObject) -> None:
    language = data.draw(st.sampled_from(sorted(MENDS)))
    module = importlib.import_module(f"tokenizer.fronts.{_MODULES[language]}")
    raw = data.draw(st.lists(st.sampled_from(raw_symbols(language)), max_size=12))
    word = data.draw(st.text("ельняхabcz", max_size=12))
    made = MENDS[language](word, raw)
    assert set(made) <= set(module.SYMBOLS)
    vowels = getattr(module, "MEND", module.mend).vowels
    assert all(bare in vowels for stress, bare in map(split_stress, made) if stress)


def test_stress_waits_for_the_vowel_and_pairs_merge() -> None:
    mend = Mend(frozenset({"a", "e", "aɪ"}), rewrite={"ɑ": "a", "n̩": "e n"}, merge={("t", "s"): "t͡s", ("a", "ɪ"): "aɪ"})
    assert mend("", ["ˈt", "s", "ɑ", "ɪ", "n̩"]) == ["t͡s", "ˈaɪ", "e", "n"]
    assert mend("", ["a", "ˈa", "t"]) == ["a", "ˈa", "t"]


def test_secondary_stress_becomes_primary_only_where_there_is_none() -> None:
    mend = Mend(frozenset({"a"}), secondary=False)
    assert mend("", ["ˌa", "t", "ˈa"]) == ["a", "t", "ˈa"]
    assert mend("", ["a", "t", "ˌa"]) == ["a", "t", "ˈa"]
    assert mend("", ["t", "ˌa"]) == ["t", "a"]


@pytest.mark.parametrize(
    ("language", "word", "sounds"),
    [
        ("de", "eins", "aɪ n s"), ("de", "weiß", "v ˈaɪ s"), ("de", "heute", "h ˈɔʏ t ə"), ("es", "perro", "p ˈe r o"),
        ("es", "papá", "p a p ˈa"), ("it", "ragazzo", "r a ɡ ˈa t t͡s o"), ("it", "città", "t͡ʃ i t t ˈa"),
        ("ru", "уголь", "ˈu ɡ ʌ lʲ"), ("ru", "угол", "ˈu ɡ ʌ l"), ("ru", "сегодня", "sʲ i v ˈo d nʲ ʌ"), ("fr", "sœur", "s œ ʁ"),
    ],
)  # fmt: skip
def test_words(language: str, word: str, sounds: str) -> None:
    assert front(language).read(word).phonemes[1:-1] == sounds.split()


front = functools.lru_cache(load_front)


def test_every_supported_language_has_its_module() -> None:
    assert sorted(_MODULES) == supported_languages()


PIECES = {
    "de": ["1", "21.", "3. März", "1.250,5", "25,50 €", "½", "14:30", "99:99", "XIV.", "5 km/h", "-3", "Straße", "z. B.", "0"],
    "es": ["1º", "21", "3 de marzo", "1.250,5", "25,50 €", "½", "14:30", "XX", "5 km", "-3", "niños", "ª", "0", "$"],
    "fr": ["1er", "21", "3 mars", "1 250,5", "25,50 €", "14h30", "9h", "XXe", "5 %", "-3", "l'eau", "n°", "0", "31/02/24"],
    "it": ["1º", "21", "3 marzo", "1.250,5", "25,50 €", "14:30", "XX", "5 km", "-3", "l'ora", "perché", "0", "£"],
    "ru": ["1-й", "21", "3 марта", "1250,5", "25,50 ₽", "14:30", "2024 г.", "5 км", "-3", "№", "книги", "0", "2024 году"],
}
SIGNS = [" ", ", ", ". ", "", "-", " - ", "/", "%", "°", "'", "(", "😀"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_text_is_read_whole_or_refused_with_a_number(data: st.DataObject) -> None:
    language = data.draw(st.sampled_from(sorted(PIECES)))
    drawn = st.tuples(st.sampled_from(PIECES[language]), st.sampled_from(SIGNS))
    text = "".join(piece + sign for piece, sign in data.draw(st.lists(drawn, min_size=1, max_size=5)))
    try:
        read = front(language).read(text)
    except HocketError as error:
        assert error.code is Code.NO_PHONEMES
        return
    assert not any(letter.isdigit() for letter in read.spoken), "no number is left unsaid"
    assert sum(read.word_starts) == len(read.spoken.split()) and len(read.word_starts) == len(read.phonemes)
    assert set(read.phonemes) <= set(front(language).symbols)
