"""Text to phonemes: IPA symbols with stress on the vowel, pauses at clause breaks and at both ends.

The speech of a word runs into the next one, so there is no token between words (a token without sound of its own breaks
the alignment); `word_starts` says where words begin. Diphthongs and affricates are one symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.fronts.choice import front_language, load_front, symbols_of
from tokenizer.fronts.front import MAX_CHARACTERS, PhonemeText
from tokenizer.fronts.script import sift
from tokenizer.fronts.symbols import END, ENGLISH_SYMBOLS, PAD, PAUSE, prefix_for
from tokenizer.languages import check_language

__all__ = ["END", "ENGLISH_SYMBOLS", "PAD", "PAUSE", "PhonemeInventory", "PhonemeText", "Phonemizer", "inventory_for"]


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


def inventory_for(languages: Sequence[str]) -> PhonemeInventory:
    """The beginning of the table of all symbols that holds those of every one of `languages`.

    An id so means the same sound in every dataset, and the inventory of more languages only goes on where another ends.

    Raises:
        HocketError: LANGUAGE_REFUSED for a wrong tag and for languages that have no front end.
    """
    needed = {symbol for language in languages for symbol in symbols_of(front_language(check_language(language)))}
    return PhonemeInventory(prefix_for(frozenset(needed or ENGLISH_SYMBOLS)))


class Phonemizer:
    """Phonemes of texts in one language.

    Args:
        language: a tag that `check_language` takes and whose language has a front end; a region ("fr-CA") is read by the front
            end of its language and kept in `language`.

    Raises:
        HocketError: LANGUAGE_REFUSED for a wrong tag and for languages that have no front end; EXTRA_MISSING where the package
            that reads the language is not installed.
    """

    def __init__(self, language: str = "en-US") -> None:
        self.language = check_language(language)
        self._name = front_language(self.language)
        self.inventory = inventory_for([self.language])
        self._front = load_front(self._name)

    def phonemize(self, text: str) -> PhonemeText:
        """Read `text` aloud, on paper.

        Raises:
            HocketError: SCRIPT_MISMATCH for a text in a script that the language does not use; NO_PHONEMES if nothing in it can
                be spoken, if a word or number of it has no reading, or if more than a small share of its letters is lost.
        """
        if len(text) > MAX_CHARACTERS:
            raise HocketError(Code.NO_PHONEMES, f"a text of {len(text)} characters, at most {MAX_CHARACTERS} go in one piece")
        sifted = sift(text, self._name)
        read = self._front.read(sifted.text)
        self.inventory.encode(read.phonemes)
        return PhonemeText(read.spoken, read.phonemes, read.word_starts, sifted.dropped + read.dropped)
