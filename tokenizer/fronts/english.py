"""English, by gruut's text processor: its lexicon knows parts of speech ("read", "the"), and its model guesses other words."""

from __future__ import annotations

import re
import sqlite3
import threading
from typing import TYPE_CHECKING

from common.errors import Code, HocketError
from tokenizer.fronts.front import PhonemeText, spell
from tokenizer.fronts.lexicon import language_folder
from tokenizer.fronts.symbols import ENGLISH_SYMBOLS
from tokenizer.text import tidy

if TYPE_CHECKING:
    from gruut.text_processor import TextProcessor

SYMBOLS = tuple(ENGLISH_SYMBOLS)
_WORD = re.compile(r"[A-Za-z][A-Za-z'.]*|'[A-Za-z][A-Za-z'.]*")


class EnglishFront:
    """Reads English aloud, on paper, as General American."""

    symbols = SYMBOLS

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processor = _load_processor()

    def read(self, text: str) -> PhonemeText:
        """Phonemes of a text.

        Raises:
            HocketError: NO_PHONEMES if nothing in it can be spoken, or if a word or number of it has no reading.
        """
        text = tidy(text)
        words: list[tuple[str, list[str]] | None] = []
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
                    words.append(None)
                elif word.is_spoken:
                    # Letters are read; a digit or a sign that is still there would be passed over.
                    if not word.phonemes or not _WORD.fullmatch(word.text):
                        silent.append(word.text)
                    else:
                        words.append((word.text, word.phonemes))
        if silent:
            raise HocketError(Code.NO_PHONEMES, f"no reading for {', '.join(map(repr, silent[:5]))} in {text[:60]!r}")
        if not any(words):
            raise HocketError(Code.NO_PHONEMES, f"nothing to say in {text[:60]!r}")
        return spell(words)


def load() -> EnglishFront:
    """The front end; takes a second or two."""
    return EnglishFront()


def _load_processor() -> TextProcessor:
    """gruut's English text processor over a copy of its lexicon in memory, indexed: looking up a word in the file, which has
    no index, takes 10 ms."""
    from gruut.phonemize import SqlitePhonemizer
    from gruut.text_processor import TextProcessor
    from gruut.utils import remove_non_word_chars

    lexicon = sqlite3.connect(":memory:", check_same_thread=False)
    stored = sqlite3.connect(f"file:{language_folder('en') / 'lexicon.db'}?mode=ro", uri=True)
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
