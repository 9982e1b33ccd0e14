"""Italian."""

from __future__ import annotations

import re

from tokenizer.fronts.speech import Speech
from tokenizer.fronts.symbols import ENGLISH_SYMBOLS

_VOWELS = ("a", "e", "i", "o", "u", "ɛ", "ɔ")
SYMBOLS = (
    *ENGLISH_SYMBOLS[:3],
    *"a b d e f i j k l m n o p r s t u v w z ŋ ɔ ɛ ɡ ɱ ɲ ʃ ʎ t͡s d͡z t͡ʃ d͡ʒ ˈa ˈe ˈi ˈo ˈu ˈɛ ˈɔ".split(),  # noqa: SIM905
)


def mend(word: str, phonemes: list[str]) -> list[str]:
    """The package marks stress at the first consonant of a syllable; here it stands on the vowel. Secondary stress is left out."""
    made: list[str] = []
    waiting = False
    for symbol in phonemes:
        bare = symbol.lstrip("ˈˌ")
        waiting = waiting or symbol.startswith("ˈ")
        if waiting and bare in _VOWELS:
            bare, waiting = f"ˈ{bare}", False
        made.append(bare)
    return made


def _ordinal(match: re.Match[str]) -> str:
    said = SPEECH.number(int(match["n"]), "ordinal")
    return said[:-1] + "a" if match["e"] == "ª" else said


SPEECH = Speech(
    code="it",
    point="virgola",
    digits=False,
    grouping=".\u00a0\u202f ",
    currencies={"€": ("euro", "euro", ""), "$": ("dollaro", "dollari", ""), "£": ("sterlina", "sterline", "")},
    and_cents="e",
    signs={"&": "e", "+": "più", "=": "uguale", "°": "gradi", "@": "chiocciola", "#": "cancelletto", "*": "asterisco", "-": "meno"},
    percent=lambda number: "per cento",
    units={"km/h": "chilometri all'ora", "km": "chilometri", "kg": "chili", "cm": "centimetri", "mm": "millimetri", "m²": "metri quadrati"},
    abbreviations={
        "sig": "signor", "sig.ra": "signora", "dott": "dottor", "dott.ssa": "dottoressa", "prof": "professor", "ecc": "eccetera",
        "pag": "pagina", "tel": "telefono", "es": "esempio", "avv": "avvocato", "ing": "ingegner", "n": "numero",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,3})(?P<e>º|ª|°(?=\s+[a-zà-ù]))"),
    say_ordinal=_ordinal,
    date=lambda day, month, year: f"{'primo' if day == 1 else SPEECH.number(day)} {month} {year}".strip(),
    clock=lambda h, m: f"{'una' if h == 1 else SPEECH.number(h)} {'e ' + SPEECH.number(m) if m else 'in punto'}",
)  # fmt: skip
