"""German."""

from __future__ import annotations

import re

from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech, roman_value
from tokenizer.fronts.symbols import SILENT, stressed
from tokenizer.fronts.written import WrittenFront

_VOWELS = "a aː ɛ ɛː eː ə ɪ iː ɔ oː œ øː ʊ uː ʏ yː ɐ ɑ̃ aɪ aʊ ɔʏ"
_CONSONANTS = "p b t d k ɡ f v s z ʃ ʒ ç x h m n ŋ l ʁ j t͡s t͡ʃ p͡f d͡ʒ".split()  # noqa: SIM905
SYMBOLS = (*SILENT, *_CONSONANTS, *stressed(_VOWELS))
# The lexicon writes r in two ways, the "er" at the end of words as a long vowel's sign, and English words with English vowels.
mend = Mend(
    vowels=frozenset(_VOWELS.split()),
    rewrite={
        "ɾ": "ʁ",
        "r": "ʁ",
        "ɹ": "ʁ",
        "ɜ": "ɐ",
        "ɑ": "a",
        "ɑː": "aː",
        "n̩": "ə n",
        "w": "v",
        "θ": "s",
        "ð": "z",
        "ʌ": "a",
        "ɒ": "ɔ",
        "ɔː": "oː",
        "ɜː": "œ",
        "i": "iː",
        "e": "eː",
        "o": "oː",
        "ø": "ʏ",
        "u": "uː",
        "y": "yː",
        "ɬ": "l",
    },
    merge={
        ("a", "ɪ"): "aɪ",
        ("a", "ʊ"): "aʊ",
        ("ɔ", "ʏ"): "ɔʏ",
        ("t", "s"): "t͡s",
        ("t", "ʃ"): "t͡ʃ",
        ("p", "f"): "p͡f",
        ("d", "ʒ"): "d͡ʒ",
    },
)
_CASE = re.compile(r"(?i)\b(am|den|dem|vom|zum|beim|bis|im|des|seit|ab|und|zur|einer|der letzten)\s*$")
_NAMED = re.compile(r"(?i)\b(der|die|das|diese|dieser|dieses|jede|jeder|jedes)\s*$")


def load() -> WrittenFront:
    """The front end; takes a second or two."""
    return WrittenFront(SPEECH, "espeak", mend, SYMBOLS)


def _day(day: int, ending: str) -> str:
    from num2words import num2words

    return f"{num2words(day, lang='de', to='ordinal')}{ending}"


def _ordinal(match: re.Match[str]) -> str:
    return _day(int(match["n"]), _ending(match.string[: match.start()]))


def _ending(before: str) -> str:
    return "n" if _CASE.search(before) else "r" if not _NAMED.search(before) else ""


def _date(day: int, month: str, year: int | None, before: str, marked: bool) -> str:
    return f"{_day(day, _ending(before))} {month} {SPEECH.year(year) if year else ''}".strip()


def _roman(match: re.Match[str]) -> str:
    value = roman_value(match.group(1))
    return match.group(0) if value is None else f"der {_day(value, '').capitalize()}"


SPEECH: Speech = Speech(
    code="de",
    point="Komma",
    digits=True,
    grouping=".\u00a0\u202f'",
    currencies={"€": ("Euro", "Euro", ""), "$": ("Dollar", "Dollar", "Cent"), "£": ("Pfund", "Pfund", "Pence")},
    and_cents="",
    signs={
        "&": "und",
        "+": "plus",
        "=": "gleich",
        "°": "Grad",
        "@": "ät",
        "#": "Raute",
        "*": "Stern",
        "§": "Paragraf",
        "/": "durch", "-": "minus",
    },
    percent=lambda number: "Prozent",
    units={
        "km/h": "Kilometer pro Stunde", "km": "Kilometer", "kg": "Kilogramm", "cm": "Zentimeter", "mm": "Millimeter",
        "m": "Meter", "m²": "Quadratmeter", "°C": "Grad Celsius", "h": "Stunden", "g": "Gramm",
        "l": "Liter",
    },
    fractions={
        "1/2": "einhalb", "½": "einhalb", "1/3": "ein Drittel", "1/4": "ein Viertel", "¼": "ein Viertel", "3/4": "drei Viertel",
        "¾": "drei Viertel",
    },
    years=range(1100, 2000),
    agree=lambda said, value, following: said[:-1] if following and said.endswith("eins") else said,
    abbreviations={
        "dr": "Doktor",
        "prof": "Professor",
        "hr": "Herr",
        "fr": "Frau",
        "nr": "Nummer",
        "str": "Straße",
        "usw": "und so weiter",
        "bzw": "beziehungsweise",
        "z.b": "zum Beispiel",
        "d.h": "das heißt",
        "u.a": "unter anderem",
        "ca": "circa",
        "st": "Sankt",
        "evtl": "eventuell",
        "inkl": "inklusive",
        "min": "Minuten",
        "std": "Stunden",
        "tel": "Telefon",
        "vgl": "vergleiche",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})\.(?=\s+[a-zäöüßA-ZÄÖÜ])"),
    say_ordinal=_ordinal,
    date=_date,
    clock=lambda h, m: f"{_number(h, 'ein')} Uhr {_number(m) if m else ''}".strip(),
    before=(
        (re.compile(r"(?<=[a-zäöü])str\.(?!\w)"), "straße"), (re.compile(r"\b([IVX]{2,})\.(?=\W|$)"), _roman),
        (re.compile(r"\bz\.\s+B\."), "z.B."), (re.compile(r"\bd\.\s+h\."), "d.h."), (re.compile(r"\bu\.\s+a\."), "u.a."),
    ),
)


def _number(value: int, one: str = "eins") -> str:
    return one if value == 1 else SPEECH.number(value)
