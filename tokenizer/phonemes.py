"""Text to phonemes: IPA symbols with stress on the vowel, pauses at clause breaks and at both ends.

The speech of a word runs into the next one, so there is no token between words (a token without sound of its own breaks
the alignment); `word_starts` says where words begin. Diphthongs and affricates are one symbol.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.languages import check_language
from tokenizer.text import tidy

if TYPE_CHECKING:
    from gruut.text_processor import TextProcessor

PAD = "<pad>"
END = "_"
PAUSE = "|"
CONSONANTS = "p b t d k ɡ f v θ ð s z ʃ ʒ h m n ŋ l ɹ j w t͡ʃ d͡ʒ".split()  # noqa: SIM905
VOWELS = "ə ɚ ɪ i ɛ æ ɑ ɔ ʌ ʊ u aɪ aʊ eɪ oʊ ɔɪ".split()  # noqa: SIM905
STRESSES = ("", "ˈ", "ˌ")
# Every symbol that the English lexicon and its letter-to-sound model can give. The order is part of every dataset and
# checkpoint made so far: append, never insert.
ENGLISH_SYMBOLS = [PAD, END, PAUSE, *CONSONANTS, *(stress + vowel for vowel in VOWELS for stress in STRESSES)]

MAX_CHARACTERS = 5000
_WORD = re.compile(r"[A-Za-z][A-Za-z'.]*|'[A-Za-z][A-Za-z'.]*")


class PhonemeInventory:
    """The symbols of a dataset; a symbol's index is its id, and id 0 is padding.

    Raises:
        HocketError: MANIFEST_INVALID if the symbols are no inventory.
    """

    pad = 0

    def __init__(self, symbols: Sequence[str]) -> None:
        if not symbols or symbols[0] != PAD or len(set(symbols)) != len(symbols) or len(symbols) > 65535:
            raise HocketError(Code.MANIFEST_INVALID, f"a phoneme inventory begins with {PAD} and names each symbol once")
        self.symbols = list(symbols)
        self._ids = {symbol: index for index, symbol in enumerate(symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, phonemes: Iterable[str]) -> NDArray[np.uint16]:
        """Ids uint16 [P].

        Raises:
            HocketError: NO_PHONEMES with the symbols that are not in the inventory; none is ever left out silently.
        """
        wanted = list(phonemes)
        unknown = sorted({symbol for symbol in wanted if symbol not in self._ids or symbol == PAD})
        if unknown:
            raise HocketError(Code.NO_PHONEMES, f"symbols outside the inventory: {' '.join(unknown)}")
        return np.array([self._ids[symbol] for symbol in wanted], dtype=np.uint16)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Symbols of ids; NO_PHONEMES for an id that there is not."""
        numbers = [int(number) for number in ids]
        wrong = [number for number in numbers if not 0 < number < len(self.symbols)]
        if wrong:
            raise HocketError(Code.NO_PHONEMES, f"ids outside the inventory: {wrong[:5]}")
        return [self.symbols[number] for number in numbers]


@dataclass(frozen=True)
class PhonemeText:
    """What a text sounds like.

    Args:
        spoken: the words as they are said, numbers and abbreviations written out.
        phonemes: symbols, `_` first and last, `|` at clause breaks.
        word_starts: as long as `phonemes`; true at the first phoneme of each word.
    """

    spoken: str
    phonemes: list[str]
    word_starts: list[bool]


class Phonemizer:
    """Phonemes of English text, by gruut's lexicon and letter-to-sound model.

    Args:
        language: a tag that `check_language` takes; "en" and "en-US" are spoken.

    Raises:
        HocketError: LANGUAGE_REFUSED for a wrong tag and for languages that have no reader here.
    """

    def __init__(self, language: str = "en-US") -> None:
        self.language = check_language(language)
        if self.language not in ("en", "en-US"):
            detail = f"{self.language} has no text-to-phoneme reader here"
            raise HocketError(Code.LANGUAGE_REFUSED, detail, remedy="use en-US")
        self.inventory = PhonemeInventory(ENGLISH_SYMBOLS)
        self._lock = threading.Lock()
        self._processor = _load_processor()

    def phonemize(self, text: str) -> PhonemeText:
        """Read `text` aloud, on paper.

        Raises:
            HocketError: NO_PHONEMES if nothing in it can be spoken, or if a word or character of it has no reading.
        """
        if len(text) > MAX_CHARACTERS:
            raise HocketError(Code.NO_PHONEMES, f"a text of {len(text)} characters, at most {MAX_CHARACTERS} go in one piece")
        text = tidy(text)
        phonemes, starts = [END], [False]
        spoken: list[str] = []
        pause = False
        silent: list[str] = []
        try:
            with self._lock:
                graph, root = self._processor(text, lang="en-us", ssml=False)
                sentences = list(self._processor.sentences(graph, root))
        except (ArithmeticError, ValueError) as error:  # numbers beyond what has a name
            raise HocketError(Code.NO_PHONEMES, f"a number in {text[:60]!r} has no reading") from error
        for sentence in sentences:
            for word in sentence:
                if word.is_minor_break or word.is_major_break:
                    pause = True
                elif word.is_spoken:
                    # Letters are read; a digit or a sign that is still there would be passed over.
                    if not word.phonemes or not _WORD.fullmatch(word.text):
                        silent.append(word.text)
                        continue
                    if pause and spoken:
                        phonemes.append(PAUSE)
                        starts.append(False)
                    pause = False
                    spoken.append(word.text)
                    phonemes.extend(word.phonemes)
                    starts.extend([True] + [False] * (len(word.phonemes) - 1))
        if silent:
            raise HocketError(Code.NO_PHONEMES, f"no reading for {', '.join(map(repr, silent[:5]))} in {text[:60]!r}")
        if not spoken:
            raise HocketError(Code.NO_PHONEMES, f"nothing to say in {text[:60]!r}")
        phonemes.append(END)
        starts.append(False)
        self.inventory.encode(phonemes)
        return PhonemeText(" ".join(spoken), phonemes, starts)


def _load_processor() -> TextProcessor:
    """gruut's English text processor over a copy of its lexicon in memory, indexed: looking up a word in the file, which has
    no index, takes 10 ms."""
    import gruut_lang_en
    from gruut.phonemize import SqlitePhonemizer
    from gruut.text_processor import TextProcessor
    from gruut.utils import remove_non_word_chars

    lexicon = sqlite3.connect(":memory:", check_same_thread=False)
    stored = sqlite3.connect(f"file:{gruut_lang_en.get_lang_dir() / 'lexicon.db'}?mode=ro", uri=True)
    try:
        lexicon.execute("CREATE TABLE word_phonemes (word TEXT, pron_order INTEGER, phonemes TEXT, role TEXT)")
        lexicon.executemany(
            "INSERT INTO word_phonemes VALUES (?, ?, ?, ?)",
            stored.execute("SELECT word, pron_order, phonemes, role FROM word_phonemes ORDER BY id"),
        )
    finally:
        stored.close()
    lexicon.execute("CREATE INDEX by_word ON word_phonemes (word)")
    transforms = [str.lower, remove_non_word_chars, lambda word: remove_non_word_chars(word.lower())]
    lookup = SqlitePhonemizer(db_conn=lexicon, word_transform_funcs=transforms)
    return TextProcessor(default_lang="en-us", lookup_phonemes=lookup)
