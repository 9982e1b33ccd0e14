"""Italian."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech
from tokenizer.fronts.symbols import SILENT, stressed
from tokenizer.fronts.written import WrittenFront

_VOWELS = "a e ɛ i o ɔ u"
_CONSONANTS = "p b t d k ɡ f v s z ʃ ʒ m n ŋ ɲ l ʎ r j w t͡s d͡z t͡ʃ d͡ʒ".split()  # noqa: SIM905
SYMBOLS = (*SILENT, *_CONSONANTS, *stressed(_VOWELS, ("", "ˈ")))
_DOUBLES = "p b t d k ɡ f v s z ʃ ʒ m n l r".split()  # noqa: SIM905
MEND = Mend(
    vowels=frozenset(_VOWELS.split()),
    rewrite={
        "ɾ": "r",
        "ʁ": "r",
        "ɹ": "r",
        "ɪ": "i",
        "ʊ": "u",
        "t̪": "t",
        "d̪": "d",
        "t̪ː": "t t",
        "h": "",
        "ə": "e",
        "y": "i",
        "ʌ": "a",
        "ɒ": "ɔ",
        "ɜː": "ɛ",
        "æ": "ɛ",
        "iː": "i",
        "eː": "e",
        "ɛː": "ɛ",
        "aː": "a",
        "ɔː": "ɔ",
        "oː": "o",
        "uː": "u",
        "ɪː": "i",
        "ɑː": "a",
        "yː": "i",
        "θ": "t",
        "ð": "d",
    }
    | {f"{sound}ː": f"{sound} {sound}" for sound in _DOUBLES},
    merge={("t", "s"): "t͡s", ("d", "z"): "d͡z", ("t", "ʃ"): "t͡ʃ", ("d", "ʒ"): "d͡ʒ"},
    secondary=False,
)


def mend(word: str, phonemes: Sequence[str]) -> list[str]:
    """Symbols of a word: a double consonant is two, and of a long affricate the closure is doubled ("ragazzo")."""
    made: list[str] = []
    for symbol in phonemes:
        if symbol in ("sː", "zː", "ʃː", "ʒː") and made and made[-1] in ("t", "d"):
            made += [made[-1], symbol[0]]
        else:
            made.append(symbol)
    return MEND(word, made)


def load() -> WrittenFront:
    """The front end; takes a second or two."""
    return WrittenFront(SPEECH, "espeak", mend, SYMBOLS, elided={})


def _ordinal(match: re.Match[str]) -> str:
    said = SPEECH.number(int(match["n"]), "ordinal")
    return said[:-1] + "a" if match["e"] == "ª" else said


SPEECH: Speech = Speech(
    code="it",
    point="virgola",
    digits=False,
    grouping=".\u00a0\u202f ",
    currencies={"€": ("euro", "euro", ""), "$": ("dollaro", "dollari", ""), "£": ("sterlina", "sterline", "")},
    and_cents="e",
    signs={
        "&": "e",
        "+": "più",
        "=": "uguale",
        "°": "gradi",
        "@": "chiocciola",
        "#": "cancelletto",
        "*": "asterisco",
        "-": "meno",
    },
    percent=lambda number: "per cento",
    units={
        "km/h": "chilometri all'ora",
        "km": "chilometri",
        "kg": "chili",
        "cm": "centimetri",
        "mm": "millimetri",
        "m²": "metri quadrati",
    },
    abbreviations={
        "sig": "signor",
        "sig.ra": "signora",
        "dott": "dottor",
        "dott.ssa": "dottoressa",
        "prof": "professor",
        "ecc": "eccetera",
        "pag": "pagina",
        "tel": "telefono",
        "es": "esempio",
        "avv": "avvocato",
        "ing": "ingegner",
        "n": "numero",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})(?P<e>º|ª|°(?=\s+[a-zà-ù]))"),
    say_ordinal=_ordinal,
    date=lambda day, month, year: f"{'primo' if day == 1 else SPEECH.number(day)} {month} {year}".strip(),
    clock=lambda h, m: f"{'una' if h == 1 else SPEECH.number(h)} {'e ' + SPEECH.number(m) if m else 'in punto'}",
)
