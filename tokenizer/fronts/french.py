"""French."""

from __future__ import annotations

import re

from tokenizer.fronts.liaison import link
from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech, roman_value
from tokenizer.fronts.symbols import SILENT
from tokenizer.fronts.written import WrittenFront

SYMBOLS = (
    *SILENT,
    *"a b d e f i j k l m n o p s t u v w y z ø ŋ œ ɑ̃ ɔ ɔ̃ ə ɛ ɛ̃ œ̃ ɡ ɥ ɲ ʁ ʃ ʒ".split(),  # noqa: SIM905
)
# French words bear no stress of their own.
mend = Mend(vowels=frozenset(), rewrite={"SIL": ""})
_FEMININE = ("heure", "minute", "seconde", "livre", "page", "fois", "personne", "semaine", "année", "journée")
_ELIDED = {
    "l": "l",
    "d": "d",
    "j": "ʒ",
    "m": "m",
    "t": "t",
    "s": "s",
    "n": "n",
    "c": "s",
    "qu": "k",
    "jusqu": "ʒ y s k",
    "lorsqu": "l ɔ ʁ s k",
    "puisqu": "p ɥ i s k",
    "quoiqu": "k w a k",
    "quelqu": "k ɛ l k",
    "presqu": "p ʁ ɛ s k",
    "entr": "ɑ̃ t ʁ",
}


def load() -> WrittenFront:
    """The front end; takes a second or two."""
    return WrittenFront(SPEECH, "", mend, SYMBOLS, elided={word: sounds.split() for word, sounds in _ELIDED.items()}, join=link)


def _ordinal(match: re.Match[str]) -> str:
    number, ending = int(match["n"]), match["e"].lower()
    if number == 1:
        return "première" if ending in ("re", "ère") else "premier"
    return SPEECH.number(number, "ordinal")


def _hours(count: int) -> str:
    said = SPEECH.number(count)
    return f"{said}e" if said.endswith("un") else said


def _roman(match: re.Match[str]) -> str:
    value = roman_value(match.group(1))
    return match.group(0) if value is None else f"{value}{match.group(2)}"


SPEECH: Speech = Speech(
    code="fr",
    point="virgule",
    digits=False,
    grouping=".\u00a0\u202f ",
    currencies={"€": ("euro", "euros", ""), "$": ("dollar", "dollars", ""), "£": ("livre", "livres", "")},
    and_cents="",
    signs={"&": "et", "+": "plus", "=": "égale", "°": "degrés", "@": "arobase", "#": "dièse",
        "*": "étoile", "/": "sur", "-": "moins"},
    percent=lambda number: "pour cent",
    units={
        "km/h": "kilomètre heure/kilomètres heure", "km": "kilomètre/kilomètres", "kg": "kilo/kilos",
        "cm": "centimètre/centimètres", "mm": "millimètre/millimètres", "m": "mètre/mètres", "m²": "mètre carré/mètres carrés",
        "°C": "degré Celsius/degrés Celsius", "h": "heure/heures", "g": "gramme/grammes", "l": "litre/litres",
    },
    fractions={
        "1/2": "un demi", "½": "un demi", "1/3": "un tiers", "1/4": "un quart", "¼": "un quart", "3/4": "trois quarts",
        "¾": "trois quarts",
    },
    million_of=" d'",
    agree=lambda said, value, following: f"{said}e" if said.endswith("un") and following in _FEMININE else said,
    abbreviations={
        "m": "monsieur",
        "mm": "messieurs",
        "mme": "madame",
        "mmes": "mesdames",
        "mlle": "mademoiselle",
        "dr": "docteur",
        "st": "saint",
        "ste": "sainte",
        "etc": "et cætera",
        "av": "avenue",
        "bd": "boulevard",
        "n°": "numéro",
        "p.ex": "par exemple",
        "tél": "téléphone",
        "min": "minutes",
        "env": "environ",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})(?P<e>er|ère|re|ème|e|nd|nde)\b"),
    say_ordinal=_ordinal,
    date=lambda day, month, year, before, marked: (
        f"{'premier' if day == 1 else SPEECH.number(day)} {month} {SPEECH.year(year) if year else ''}".strip()
    ),
    clock=lambda h, m: (
        f"{_hours(h)} heure{'s' if h > 1 else ''} {SPEECH.number(m) if m else ''}".strip()
    ),
    before=(
        (re.compile(r"\b[Nn]°\s?(?=\d)"), "numéro "), (re.compile(r"\bp\.\s+ex\."), "par exemple"),
        (re.compile(r"\b([IVX]+)(er|ère|re|ème|e)\b"), _roman),
        (re.compile(r"\b([IVX]{2,})()\b"), _roman),
    ),
)
