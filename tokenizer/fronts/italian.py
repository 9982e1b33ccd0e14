"""Italian."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech, roman_value
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


def _agree(said: str, value: int, following: str) -> str:
    """One is "un" before a noun, "una" before most that end in a."""
    if said != "uno" or not following or following.lower() in ("e", "o", "a", "di", "in", "con", "per", "che", "è"):
        return said
    return "una" if following.lower().endswith("a") else "un"


def _roman(match: re.Match[str]) -> str:
    value = roman_value(match.group(1))
    return match.group(0) if value is None else SPEECH.number(value, "ordinal")


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
        "/": "fratto", "-": "meno",
    },
    percent=lambda number: "per cento",
    units={
        "km/h": "chilometro all'ora/chilometri all'ora", "km": "chilometro/chilometri", "kg": "chilo/chili",
        "cm": "centimetro/centimetri", "mm": "millimetro/millimetri", "m": "metro/metri", "m²": "metro quadrato/metri quadrati",
        "°C": "grado Celsius/gradi Celsius", "h": "ora/ore", "g": "grammo/grammi", "l": "litro/litri",
    },
    fractions={
        "1/2": "un mezzo", "½": "un mezzo", "1/3": "un terzo", "1/4": "un quarto", "¼": "un quarto", "3/4": "tre quarti",
        "¾": "tre quarti",
    },
    million_of=" di ",
    agree=_agree,
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
    date=lambda day, month, year, before, marked: (
        f"{'primo' if day == 1 else SPEECH.number(day)} {month} {SPEECH.year(year) if year else ''}".strip()
    ),
    before=((re.compile(r"\b([IVX]{2,})\b"), _roman),),
    clock=lambda h, m: f"{'una' if h == 1 else SPEECH.number(h)} {'e ' + SPEECH.number(m) if m else 'in punto'}",
)
