"""A pronunciation lexicon in memory, and the letter-to-sound model for words that it lacks, from gruut's language packages."""

from __future__ import annotations

import importlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError

KEPT_WORDS = 20_000  # pronunciations that stay at hand


def language_folder(language: str) -> Path:
    """The folder of a language's package.

    Raises:
        HocketError: EXTRA_MISSING where it is not installed.
    """
    try:
        package = importlib.import_module(f"gruut_lang_{language}")
    except ImportError as error:
        detail = f"reading {language} needs the package gruut_lang_{language}"
        raise HocketError(Code.EXTRA_MISSING, detail, remedy=f"pip install 'gruut[{language}]'") from error
    return Path(package.get_lang_dir())


class Lexicon:
    """Phonemes of single words; safe to use from several threads.

    Args:
        language: of two letters.
        variant: folder of the package that holds the lexicon and its model; "" for the package's own.
        mend: turns the package's phonemes of a word, given with the word, into symbols of our table.
    """

    def __init__(self, language: str, variant: str, mend: Callable[[str, Sequence[str]], list[str]]) -> None:
        from gruut.g2p import GraphemesToPhonemes

        folder = language_folder(language) / variant
        self._mend = mend
        # The package's file has no index: a word takes tens of milliseconds there.
        self._words = sqlite3.connect(":memory:", check_same_thread=False)
        stored = sqlite3.connect(f"file:{folder / 'lexicon.db'}?mode=ro", uri=True)
        try:
            self._words.execute("CREATE TABLE words (word TEXT PRIMARY KEY, phonemes TEXT) WITHOUT ROWID")
            self._words.executemany(
                "INSERT OR IGNORE INTO words VALUES (?, ?)",
                stored.execute("SELECT word, phonemes FROM word_phonemes ORDER BY pron_order, id"),
            )
        finally:
            stored.close()
        self._guess: Any = GraphemesToPhonemes(folder / "g2p" / "model.crf")
        self._lock = threading.Lock()
        self._kept = lru_cache(maxsize=KEPT_WORDS)(self._look_up)

    def has(self, word: str) -> bool:
        """Whether the lexicon knows a word, in lower case."""
        with self._lock:
            return self._words.execute("SELECT 1 FROM words WHERE word = ?", (word,)).fetchone() is not None

    def phonemes(self, word: str) -> tuple[str, ...]:
        """Symbols of a word in lower case, from the lexicon or else from the model; empty where there are none."""
        with self._lock:
            return self._kept(word)

    def _look_up(self, word: str) -> tuple[str, ...]:
        found = self._words.execute("SELECT phonemes FROM words WHERE word = ?", (word,)).fetchone()
        raw = found[0].split() if found else [part for part in self._guess(word) if part.strip()]
        return tuple(self._mend(word, raw))
