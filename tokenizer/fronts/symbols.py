"""The phoneme symbols of all languages in one table: a symbol's place is its id, in every dataset and checkpoint ever made.

Append, never insert: a golden file in the tests pins the table.
"""

from __future__ import annotations

PAD = "<pad>"
END = "_"
PAUSE = "|"
CONSONANTS = "p b t d k ɡ f v θ ð s z ʃ ʒ h m n ŋ l ɹ j w t͡ʃ d͡ʒ".split()  # noqa: SIM905
VOWELS = "ə ɚ ɪ i ɛ æ ɑ ɔ ʌ ʊ u aɪ aʊ eɪ oʊ ɔɪ".split()  # noqa: SIM905
STRESSES = ("", "ˈ", "ˌ")
# Every symbol that the English lexicon and its letter-to-sound model can give.
ENGLISH_SYMBOLS = [PAD, END, PAUSE, *CONSONANTS, *(stress + vowel for vowel in VOWELS for stress in STRESSES)]

# What the other languages add, in the order in which they came.
_FRENCH = "ʁ a e o y ø œ ɑ̃ ɔ̃ ɛ̃ œ̃ ɥ ɲ".split()  # noqa: SIM905
_SPANISH = "ɾ r x ʝ ʎ ei ai au eu oi ou wa we wi wo".split()  # noqa: SIM905
_ITALIAN = "ˈa ˈe ˈo t͡s d͡z ɱ".split()  # noqa: SIM905
_GERMAN = "aː eː iː oː uː yː øː ɛː ʏ ɐ ʔ ç χ p͡f aɪ̯ aʊ̯ ɔʏ̯ ãː ɛ̃ː õː".split()  # noqa: SIM905
_RUSSIAN = "ɨ ɨː ʂ ʐ ɕː t͡ɕ bʲ dʲ fʲ ɡʲ kʲ lʲ mʲ nʲ pʲ rʲ sʲ tʲ vʲ xʲ zʲ".split()  # noqa: SIM905
_JAPANESE = "ɯ ɯ̥ i̥ ɸ ɕ d͡ʑ ɴ".split()  # noqa: SIM905

SYMBOLS = [*ENGLISH_SYMBOLS, *_FRENCH, *_SPANISH, *_ITALIAN, *_GERMAN, *_RUSSIAN, *_JAPANESE]
