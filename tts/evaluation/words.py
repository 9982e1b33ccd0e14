"""Word and character error rates of what a recogniser understood. Pure; the normalisation is for English.

An error rate is the edit distance (Levenshtein, 1966) between the words that should be there and those that are, summed over
all sentences and divided by all words that should be there. Both sides are normalised first, as a recogniser writes "30" and
"Mr." where a text has "thirty" and "mister".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

import numpy as np
from num2words import num2words

from tts.draws import draw_key

Item = TypeVar("Item")

LEVEL = 0.95
DRAWS = 1000
_MAX_DIGITS = 15  # longer ones are read digit by digit, as a telephone number is
_SPOKEN = {"mr": "mister", "mrs": "missus", "ms": "miss", "dr": "doctor", "ok": "okay", "vs": "versus", "etc": "et cetera"}
_APOSTROPHES = re.compile("['\u2019\u2018`\u00b4\u02bc]")
_MONEY = re.compile(r"([$£€])\s?(\d+(?:,\d{3})*(?:\.\d+)?)((?:\s(?:hundred|thousand|million|billion))?)")
_CURRENCIES = {"$": "dollar", "£": "pound", "€": "euro"}
_CLOCK = re.compile(r"\b(\d{1,2}):(\d\d)\b")
_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.(\d+)|(st|nd|rd|th)\b|(s)\b)?")
_SIGNS = {"%": " percent ", "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "°": " degrees "}
_NOT_A_LETTER = re.compile(r"[^a-z]+")


def normalise(text: str) -> list[str]:
    """The words of an English text as they are said: lower case, numbers spelt out, no punctuation, hyphens as spaces."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign)).lower()
    plain = _APOSTROPHES.sub("", plain)
    plain = _MONEY.sub(_money, plain)
    plain = _CLOCK.sub(_clock, plain)
    plain = _NUMBER.sub(_number, plain)
    for sign, name in _SIGNS.items():
        plain = plain.replace(sign, name)
    return [word for written in _NOT_A_LETTER.sub(" ", plain).split() for word in _SPOKEN.get(written, written).split()]


def _money(match: re.Match[str]) -> str:
    name = _CURRENCIES[match[1]]
    return f"{match[2]}{match[3]} {name if match[2] == '1' and not match[3] else name + 's'}"


def _clock(match: re.Match[str]) -> str:
    minutes = int(match[2])
    if minutes == 0:
        return f"{match[1]} oclock"
    return f"{match[1]} {'oh ' if minutes < 10 else ''}{minutes}"


def _number(match: re.Match[str]) -> str:
    written, fraction, ordinal, plural = match.groups()
    digits = written.replace(",", "")
    if len(digits) > _MAX_DIGITS or (len(digits) > 1 and digits.startswith("0")):
        spoken = " ".join(_named(int(digit), "cardinal") for digit in digits)
    elif ordinal:
        spoken = _named(int(digits), "ordinal")
    elif len(written) == 4 and 1100 <= int(digits) < 2100 and not fraction:  # years have no comma
        spoken = _named(int(digits), "year")
    else:
        spoken = _named(int(digits), "cardinal")
    if fraction:
        spoken += " point " + " ".join(_named(int(digit), "cardinal") for digit in fraction)
    if plural:
        spoken = spoken[:-1] + "ies" if spoken.endswith("y") else spoken + "s"
    return f" {spoken} "


@lru_cache(maxsize=4096)
def _named(number: int, form: str) -> str:
    words = re.split(r"[\s,-]+", num2words(number, lang="en", to=form))
    return " ".join(word for word in words if word and word != "and")


class Change(Enum):
    """What became of a word."""

    SAME = "same"
    OTHER = "other"
    MISSING = "missing"
    ADDED = "added"


def edit_distance(reference: Sequence[Item], found: Sequence[Item]) -> int:
    """The least number of substitutions, omissions and insertions that make `found` of `reference`."""
    row = list(range(len(found) + 1))
    for number, wanted in enumerate(reference, start=1):
        diagonal, row[0] = row[0], number
        for place, item in enumerate(found, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (wanted != item))
    return row[-1]


def changes(reference: Sequence[Item], found: Sequence[Item]) -> list[tuple[Change, Item | None, Item | None]]:
    """A shortest way from `reference` to `found`: (what became of it, the wanted item, the found one), in order.

    Of several shortest ways, one that keeps most items as they are.
    """
    edit = len(reference) + len(found) + 1  # more than all that can be gained by items that stay the same

    def pair(i: int, j: int) -> int:
        return -1 if reference[i - 1] == found[j - 1] else edit

    costs = [[edit * place for place in range(len(found) + 1)]]
    for i in range(1, len(reference) + 1):
        above, row = costs[-1], [edit * i]
        for j in range(1, len(found) + 1):
            row.append(min(above[j] + edit, row[j - 1] + edit, above[j - 1] + pair(i, j)))
        costs.append(row)
    way: list[tuple[Change, Item | None, Item | None]] = []
    i, j = len(reference), len(found)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + pair(i, j):
            i, j = i - 1, j - 1
            way.append((Change.SAME if reference[i] == found[j] else Change.OTHER, reference[i], found[j]))
        elif i and costs[i][j] == costs[i - 1][j] + edit:
            i -= 1
            way.append((Change.MISSING, reference[i], None))
        else:
            j -= 1
            way.append((Change.ADDED, None, found[j]))
    return way[::-1]


@dataclass(frozen=True)
class ErrorRate:
    """Errors among a number of words or characters."""

    errors: int
    words: int

    def __add__(self, other: ErrorRate) -> ErrorRate:
        return ErrorRate(self.errors + other.errors, self.words + other.words)

    @property
    def rate(self) -> float:
        """Errors a word; above 1 where more was added than there is."""
        return self.errors / max(1, self.words)


def word_errors(reference: Sequence[str], found: Sequence[str]) -> ErrorRate:
    """Errors in the words of one sentence."""
    return ErrorRate(edit_distance(reference, found), len(reference))


def character_errors(reference: Sequence[str], found: Sequence[str]) -> ErrorRate:
    """Errors in the characters of one sentence, the spaces between words included."""
    wanted = " ".join(reference)
    return ErrorRate(edit_distance(wanted, " ".join(found)), len(wanted))


def total(rates: Sequence[ErrorRate]) -> ErrorRate:
    """Errors of all sentences among the words of all of them."""
    return sum(rates, ErrorRate(0, 0))


def bootstrap_interval(
    rates: Sequence[ErrorRate], seed: int, *, level: float = LEVEL, draws: int = DRAWS
) -> tuple[float, float] | None:
    """Within which the rate would lie if other sentences of the kind had been taken (Efron, 1979: the percentile interval).

    Sentences are drawn with replacement, as the words of one sentence do not fail by themselves.

    Returns: (low, high), or None for no sentence.
    """
    if not rates:
        return None
    random = np.random.Generator(np.random.Philox(key=draw_key(seed, "evaluation", "interval")))
    picked = random.integers(0, len(rates), (draws, len(rates)))
    errors = np.array([rate.errors for rate in rates])[picked].sum(axis=1)
    words = np.array([rate.words for rate in rates])[picked].sum(axis=1)
    low, high = np.quantile(errors / np.maximum(words, 1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
