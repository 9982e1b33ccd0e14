"""Whether texts are in the language that they are said to be in, by how many of their words each lexicon knows.

Measured (docs/tokenisation.md): the lexicon of a text's own language knows 85 to 100 % of its running words, that of any other at
most 58 %, single words and prompts of two words included, for which identifiers by letters fail on four lines of ten.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizer.fronts.choice import front_language
from tokenizer.fronts.lexicon import language_folder
from tokenizer.languages import check_language

# Where each language's lexicon lies in its package. Japanese is not here: its script tells.
LEXICONS = {"de": "espeak", "en": "", "es": "espeak", "fr": "", "it": "espeak", "ru": "espeak"}
SURE = 0.9  # of the words known: no other lexicon needs a look
STRANGE = 0.6  # fewer than this known: not this language, whichever it is
MARGIN = 0.15  # by so much another lexicon must know more
FEWEST_WORDS = 10
MOST_TEXTS = 1000
_WORD = re.compile(r"[^\W\d_]+")
_SPREAD = str.maketrans({"œ": "oe", "æ": "ae"})


@dataclass(frozen=True)
class Verdict:
    """Whether texts fit the language that they are said to be in.

    Args:
        likely: the language that they rather are in, if one of those that can be read.
        reason: with the figures.
    """

    fits: bool
    likely: str | None
    reason: str


def count_words(texts: Sequence[str]) -> Counter[str]:
    """How often each word is there, in lower case; what stands before an apostrophe is a word of its own."""
    step = max(1, len(texts) // MOST_TEXTS)
    counted: Counter[str] = Counter()
    for text in texts[::step]:
        counted.update(word for word in _WORD.findall(unicodedata.normalize("NFC", text).lower()) if len(word) > 1)
    return counted


def hit_rate(words: Mapping[str, int], language: str) -> float:
    """Which share of running words the lexicon of a language knows; 0 for no words. The lexicon is passed through, not kept.

    Raises:
        HocketError: EXTRA_MISSING where the language's package is not installed.
    """
    path = language_folder(language) / LEXICONS[language] / "lexicon.db"
    stored = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        known: set[str] = set()
        spread = {word.translate(_SPREAD): word for word in words}
        for (entry,) in stored.execute("SELECT word FROM word_phonemes"):
            # "aujourd'hui" and "don't" stand whole in the lexicon, their parts do not.
            for part in (entry, *entry.split("'")) if "'" in entry else (entry,):
                word = part if part in words else spread.get(part.translate(_SPREAD))
                if word is not None:
                    known.add(word)
    finally:
        stored.close()
    return sum(words[word] for word in known) / max(1, sum(words.values()))


def judge_language(rates: Mapping[str, float], words: int, said: str) -> Verdict:
    """The decision, from the share of words that each lexicon knows; `said` is one of them. Pure.

    Args:
        words: how many the texts have; too few tell nothing.
    """
    own = rates[said]
    if words < FEWEST_WORDS:
        return Verdict(True, None, f"{words} words are too few to tell the language")
    best = max(sorted(rates), key=lambda language: rates[language])
    if rates[best] > own + MARGIN:
        reason = f"{own:.0%} of {words} words are in the lexicon of {said}, {rates[best]:.0%} in that of {best}"
        return Verdict(False, best, reason)
    reason = f"{own:.0%} of {words} words are in the lexicon of {said}"
    return Verdict(own >= STRANGE, None, reason)


def likely_language(texts: Sequence[str], said: str) -> Verdict:
    """Whether texts are in the language of the tag `said`, over all of them together.

    Raises:
        HocketError: LANGUAGE_REFUSED for a tag that has no front end; EXTRA_MISSING where its package is not installed.
    """
    language = front_language(check_language(said))
    if language not in LEXICONS:
        return Verdict(True, None, f"{language} is told by its script, which every text is checked for")
    words = count_words(texts)
    total = sum(words.values())
    rates = {language: hit_rate(words, language)}
    if total >= FEWEST_WORDS and rates[language] < SURE:
        rates |= {other: hit_rate(words, other) for other in LEXICONS if other != language}
    return judge_language(rates, total, language)
