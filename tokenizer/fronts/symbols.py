"""The phoneme symbols of all languages in one table: a symbol's place is its id, in every dataset and checkpoint ever made.

Append, never insert: a golden file in the tests pins the table.
"""

from __future__ import annotations

PAD = "<pad>"
END = "_"
PAUSE = "|"
SILENT = (PAD, END, PAUSE)
STRESSES = ("", "ˈ", "ˌ")


def stressed(vowels: str, stresses: tuple[str, ...] = STRESSES) -> list[str]:
    """Every vowel, given between spaces, with every stress mark."""
    return [stress + vowel for vowel in vowels.split() for stress in stresses]


CONSONANTS = "p b t d k ɡ f v θ ð s z ʃ ʒ h m n ŋ l ɹ j w t͡ʃ d͡ʒ".split()  # noqa: SIM905
# Every symbol that the English lexicon and its letter-to-sound model can give.
ENGLISH_SYMBOLS = [*SILENT, *CONSONANTS, *stressed("ə ɚ ɪ i ɛ æ ɑ ɔ ʌ ʊ u aɪ aʊ eɪ oʊ ɔɪ")]

# What the other languages add, in the order in which they came.
_FRENCH = "ʁ a e o y ø œ ɑ̃ ɔ̃ ɛ̃ œ̃ ɥ ɲ".split()  # noqa: SIM905
_SPANISH = [*"ɾ r x β ɣ ʝ ʎ".split(), *stressed("a e o", ("ˈ",)), *stressed("oɪ eʊ", ("", "ˈ"))]  # noqa: SIM905
_ITALIAN = ["t͡s", "d͡z"]
_GERMAN = [
    *"ç p͡f".split(),  # noqa: SIM905
    *stressed("a", ("ˌ",)),
    *stressed("aː ɛː eː iː oː øː uː yː ʏ ɔʏ ɐ"),
    *stressed("œ ɑ̃", ("ˈ", "ˌ")),
]
_RUSSIAN = [*"ʂ ʐ ɕ t͡ɕ t͡ʂ d͡ʐ pʲ bʲ tʲ dʲ kʲ ɡʲ fʲ vʲ sʲ zʲ xʲ mʲ nʲ lʲ rʲ".split(), *stressed("ɨ"), *stressed("e o", ("ˌ",))]  # noqa: SIM905
_JAPANESE = "ɯ ɯ̥ i̥ ɸ d͡ʑ ɴ ʔ ɾʲ".split()  # noqa: SIM905

SYMBOLS = [*ENGLISH_SYMBOLS, *_FRENCH, *_SPANISH, *_ITALIAN, *_GERMAN, *_RUSSIAN, *_JAPANESE]


def prefix_for(symbols: frozenset[str]) -> list[str]:
    """The shortest beginning of the table that holds all of `symbols`."""
    return SYMBOLS[: max(SYMBOLS.index(symbol) for symbol in symbols) + 1]
