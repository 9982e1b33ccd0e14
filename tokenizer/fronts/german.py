"""German."""

from __future__ import annotations

import re

from tokenizer.fronts.speech import Speech
from tokenizer.fronts.symbols import ENGLISH_SYMBOLS

SYMBOLS = (
    *ENGLISH_SYMBOLS[:3],
    *"a b d f h j k l m n p s t v x z ŋ œ ə ɛ ɔ ɪ ʊ ɡ ʁ ʃ ʒ o e i u aː eː iː oː uː yː øː ɛː ʏ ɐ ʔ ç χ".split(),  # noqa: SIM905
    *"p͡f t͡s t͡ʃ d͡ʒ aɪ̯ aʊ̯ ɔʏ̯ ãː ɛ̃ː õː".split(),  # noqa: SIM905
)
_CASE = re.compile(r"(?i)\b(am|den|dem|vom|zum|beim|bis|im|des|seit|ab)\s*$")


def mend(word: str, phonemes: list[str]) -> list[str]:
    """The package writes many diphthongs as two vowels and the affricate of "z" as two consonants."""
    made: list[str] = []
    for symbol in phonemes:
        symbol = {"g": "ɡ", "ʔeː": "eː"}.get(symbol, symbol)
        last = made[-1] if made else ""
        if last == "a" and symbol in ("eː", "ɪ") and re.search("ei|ai|ey|ay", word):
            made[-1] = "aɪ̯"
        elif last == "a" and symbol in ("oː", "ʊ") and "au" in word:
            made[-1] = "aʊ̯"
        elif last == "ɔ" and symbol in ("ʏ", "ɪ", "yː", "ʏ̯") and re.search("eu|äu|oi", word):
            made[-1] = "ɔʏ̯"
        elif last == "t" and symbol == "s" and re.search("z|ts", word):
            made[-1] = "t͡s"
        else:
            made.append(symbol)
    return made


def _day(day: int, ending: str) -> str:
    from num2words import num2words

    return f"{num2words(day, lang='de', to='ordinal')}{ending}"


def _ordinal(match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    return _day(int(match["n"]), "n" if _CASE.search(before) else "")


def _date(day: int, month: str, year: str) -> str:
    return f"{_day(day, 'n')} {month} {year}".strip()


SPEECH = Speech(
    code="de",
    point="Komma",
    digits=True,
    grouping=".\u00a0\u202f'",
    currencies={"€": ("Euro", "Euro", ""), "$": ("Dollar", "Dollar", "Cent"), "£": ("Pfund", "Pfund", "Pence")},
    and_cents="",
    signs={"&": "und", "+": "plus", "=": "gleich", "°": "Grad", "@": "ät", "#": "Raute", "*": "Stern", "§": "Paragraf", "-": "minus"},
    percent=lambda number: "Prozent",
    units={"km/h": "Kilometer pro Stunde", "km": "Kilometer", "kg": "Kilogramm", "cm": "Zentimeter", "mm": "Millimeter", "m²": "Quadratmeter"},
    abbreviations={
        "dr": "Doktor", "prof": "Professor", "hr": "Herr", "fr": "Frau", "nr": "Nummer", "str": "Straße", "usw": "und so weiter",
        "bzw": "beziehungsweise", "z.b": "zum Beispiel", "d.h": "das heißt", "u.a": "unter anderem", "ca": "circa", "st": "Sankt",
        "evtl": "eventuell", "inkl": "inklusive", "min": "Minuten", "std": "Stunden", "tel": "Telefon", "vgl": "vergleiche",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})\.(?=\s+[a-zäöüßA-ZÄÖÜ])"),
    say_ordinal=_ordinal,
    date=_date,
    clock=lambda h, m: f"{_number(h, 'ein')} Uhr {_number(m) if m else ''}".strip(),
    before=((re.compile(r"\bz\.\s+B\."), "z.B."), (re.compile(r"\bd\.\s+h\."), "d.h."), (re.compile(r"\bu\.\s+a\."), "u.a.")),
)  # fmt: skip


def _number(value: int, one: str = "eins") -> str:
    return one if value == 1 else SPEECH.number(value)
