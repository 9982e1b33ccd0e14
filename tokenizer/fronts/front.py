"""What a language's front end gives: the words as they are said, and their phonemes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tokenizer.fronts.symbols import END, PAUSE

MAX_CHARACTERS = 5000


@dataclass(frozen=True)
class PhonemeText:
    """What a text sounds like.

    Args:
        spoken: the words as they are said, numbers and abbreviations written out.
        phonemes: symbols, `_` first and last, `|` at clause breaks.
        word_starts: as long as `phonemes`; true at the first phoneme of each word.
        dropped: characters of the text that have no reading and were left out, in their order.
    """

    spoken: str
    phonemes: list[str]
    word_starts: list[bool]
    dropped: str = ""


class TextFront(Protocol):
    """Reads texts of one language aloud, on paper."""

    symbols: tuple[str, ...]
    """Every symbol that it can give."""

    def read(self, text: str) -> PhonemeText:
        """Phonemes of a text whose script has been checked; NO_PHONEMES if nothing in it can be said."""
        ...


def spell(words: list[tuple[str, list[str]] | None], dropped: str = "") -> PhonemeText:
    """Words (what is said, phonemes), None at clause breaks, as a `PhonemeText`. No two pauses meet, none stands at an end."""
    phonemes, starts, spoken = [END], [False], list[str]()
    pause = False
    for word in words:
        if word is None:
            pause = True
            continue
        if pause and spoken:
            phonemes.append(PAUSE)
            starts.append(False)
        pause = False
        spoken.append(word[0])
        phonemes.extend(word[1])
        starts.extend([True] + [False] * (len(word[1]) - 1))
    return PhonemeText(" ".join(spoken), [*phonemes, END], [*starts, False], dropped)
