"""Spanish."""

from __future__ import annotations

import re

from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech
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
        "-": "menos",
    },
    percent=lambda number: "por ciento",
    units={
        "km/h": "kilómetros por hora",
        "km": "kilómetros",
        "kg": "kilos",
        "cm": "centímetros",
        "mm": "milímetros",
        "m²": "metros cuadrados",
    },
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
    date=lambda day, month, year: f"{SPEECH.number(day)} de {month}{' de ' + year if year else ''}",
    clock=lambda h, m: f"{'una' if h == 1 else SPEECH.number(h)} {'y ' + SPEECH.number(m) if m else 'en punto'}",
    before=((re.compile(r"\bn[.º]+\s?(?=\d)", re.IGNORECASE), "número "),),
)
