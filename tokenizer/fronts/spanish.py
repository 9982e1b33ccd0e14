"""Spanish."""

from __future__ import annotations

import re

from tokenizer.fronts.speech import Speech
from tokenizer.fronts.symbols import ENGLISH_SYMBOLS

SYMBOLS = (
    *ENGLISH_SYMBOLS[:3],
    *"a b d e f i k l m n o p r s t u x ɡ ɲ ɾ ʎ ʝ θ t͡ʃ ei ai au eu oi ou wa we wi wo".split(),  # noqa: SIM905
)
_ENDINGS = {"º": "", "er": "", "ª": "a"}


def mend(word: str, phonemes: list[str]) -> list[str]:
    """The package writes the voiced velar stop with a plain g."""
    return ["ɡ" if symbol == "g" else symbol for symbol in phonemes]


def _ordinal(match: re.Match[str]) -> str:
    said = SPEECH.number(int(match["n"]), "ordinal")
    if match["e"] in ("ª", "a"):
        return said[:-1] + "a"
    if match["e"] == "er" and said in ("primero", "tercero"):
        return said[:-1]
    return said


SPEECH = Speech(
    code="es",
    point="coma",
    digits=False,
    grouping=".\u00a0\u202f ",
    currencies={"€": ("euro", "euros", ""), "$": ("dólar", "dólares", ""), "£": ("libra", "libras", "")},
    and_cents="con",
    signs={"&": "y", "+": "más", "=": "igual a", "°": "grados", "@": "arroba", "#": "almohadilla", "*": "asterisco", "-": "menos"},
    percent=lambda number: "por ciento",
    units={"km/h": "kilómetros por hora", "km": "kilómetros", "kg": "kilos", "cm": "centímetros", "mm": "milímetros", "m²": "metros cuadrados"},
    abbreviations={
        "sr": "señor", "sra": "señora", "srta": "señorita", "dr": "doctor", "dra": "doctora", "d": "don", "etc": "etcétera",
        "ud": "usted", "uds": "ustedes", "núm": "número", "pág": "página", "avda": "avenida", "p.ej": "por ejemplo", "tel": "teléfono",
        "aprox": "aproximadamente",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})\.?(?P<e>º|ª|er\b)"),
    say_ordinal=_ordinal,
    date=lambda day, month, year: f"{SPEECH.number(day)} de {month}{' de ' + year if year else ''}",
    clock=lambda h, m: f"{'una' if h == 1 else SPEECH.number(h)} {'y ' + SPEECH.number(m) if m else 'en punto'}",
    before=((re.compile(r"\bn[.º]+\s?(?=\d)", re.IGNORECASE), "número "),),
)  # fmt: skip
