"""Spanish."""

from __future__ import annotations

import re

from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech, roman_value
from tokenizer.fronts.symbols import SILENT, stressed
from tokenizer.fronts.written import WrittenFront

_VOWELS = "a e i o u ɪ ʊ aɪ eɪ oɪ aʊ eʊ oʊ"
_CONSONANTS = "p b t d k ɡ f θ s x m n ŋ ɲ l ʎ ɾ r j w ʝ β ð ɣ ʃ t͡ʃ".split()  # noqa: SIM905
SYMBOLS = (*SILENT, *_CONSONANTS, *stressed(_VOWELS, ("", "ˈ")))
mend = Mend(
    vowels=frozenset(_VOWELS.split()),
    rewrite={"pː": "p", "ɛ": "e", "h": "x", "ʒ": "ʝ", "ɟ": "ʝ"},
    merge={
        ("ɾ", "ɾ"): "r",
        ("t", "ʃ"): "t͡ʃ",
        ("a", "ɪ"): "aɪ",
        ("e", "ɪ"): "eɪ",
        ("o", "ɪ"): "oɪ",
        ("a", "ʊ"): "aʊ",
        ("e", "ʊ"): "eʊ",
        ("o", "ʊ"): "oʊ",
    },
    secondary=False,
)


def load() -> WrittenFront:
    """The front end; takes a second or two."""
    return WrittenFront(SPEECH, "espeak", mend, SYMBOLS)


def _ordinal(match: re.Match[str]) -> str:
    said = SPEECH.number(int(match["n"]), "ordinal")
    if match["e"] in ("ª", "a"):
        return said[:-1] + "a"
    if match["e"] == "er" and said in ("primero", "tercero"):
        return said[:-1]
    return said


_NO_NOUN = ("de", "y", "o", "a", "en", "con", "por", "para", "el", "la", "que", "del", "al", "más", "es")


def _agree(said: str, value: int, following: str) -> str:
    """One loses its last vowel before a noun; it and the hundreds agree with a feminine one."""
    if not following or following.lower() in _NO_NOUN:
        return said
    feminine = bool(re.search("(as|a|ción|ciones|dad|dades)$", following.lower()))
    if said.endswith("uno"):
        said = said[:-3] + ("una" if feminine else "ún" if said.endswith("iuno") else "un")
    return said.replace("cientos", "cientas").replace("quinientos", "quinientas") if feminine else said


def _roman(match: re.Match[str]) -> str:
    value = roman_value(match.group(1))
    if value is None:
        return match.group(0)
    century = re.search(r"(?i)\bsiglo\s*$", match.string[: match.start()])
    return str(value) if value > 10 or century else SPEECH.number(value, "ordinal")


SPEECH: Speech = Speech(
    code="es",
    point="coma",
    digits=False,
    grouping=".\u00a0\u202f ",
    currencies={"€": ("euro", "euros", ""), "$": ("dólar", "dólares", ""), "£": ("libra", "libras", "")},
    and_cents="con",
    signs={
        "&": "y",
        "+": "más",
        "=": "igual a",
        "°": "grados",
        "@": "arroba",
        "#": "almohadilla",
        "*": "asterisco",
        "/": "barra", "-": "menos",
    },
    percent=lambda number: "por ciento",
    units={
        "km/h": "kilómetro por hora/kilómetros por hora", "km": "kilómetro/kilómetros", "kg": "kilo/kilos",
        "cm": "centímetro/centímetros", "mm": "milímetro/milímetros", "m": "metro/metros",
        "m²": "metro cuadrado/metros cuadrados",
        "°C": "grado Celsius/grados Celsius", "h": "hora/horas", "g": "gramo/gramos", "l": "litro/litros",
    },
    fractions={
        "1/2": "un medio", "½": "un medio", "1/3": "un tercio", "1/4": "un cuarto", "¼": "un cuarto", "3/4": "tres cuartos",
        "¾": "tres cuartos",
    },
    million_of=" de ",
    agree=_agree,
    abbreviations={
        "sr": "señor",
        "sra": "señora",
        "srta": "señorita",
        "dr": "doctor",
        "dra": "doctora",
        "d": "don",
        "etc": "etcétera",
        "ud": "usted",
        "uds": "ustedes",
        "núm": "número",
        "pág": "página",
        "avda": "avenida",
        "p.ej": "por ejemplo",
        "tel": "teléfono",
        "aprox": "aproximadamente",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})\.?(?P<e>º|ª|er\b)"),
    say_ordinal=_ordinal,
    date=lambda day, month, year, before, marked: (
        f"{'primero' if marked and day == 1 else SPEECH.number(day)} de {month}{' de ' + SPEECH.year(year) if year else ''}"
    ),
    clock=lambda h, m: f"{'una' if h == 1 else SPEECH.number(h)} {'y ' + SPEECH.number(m) if m else 'en punto'}",
    before=(
        (re.compile(r"\bn[.º]+\s?(?=\d)", re.IGNORECASE), "número "), (re.compile(r"\b([IVX]{2,})\b"), _roman),
    ),
)
