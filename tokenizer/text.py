"""English text made plain for the phoneme reader: typography, accents, lone signs, money, decades, letters beside digits.

The reader passes over what it does not know without a word; so everything that it does not know is either written out here
or refused. Nothing of a text is ever left out silently.
"""

from __future__ import annotations

import re
import unicodedata

from common.errors import Code, HocketError

_KNOWN_SIGNS = set("%$£€.,;:!?'\"-()[]")
_CURRENCIES = {"$": "dollars", "£": "pounds", "€": "euros"}
_SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion"}
_TENS = "hundreds tens twenties thirties forties fifties sixties seventies eighties nineties".split()  # noqa: SIM905
# Signs that stand alone are read by their name, as in "press # to go on".
_NAMED_SIGNS = {"*": "star", "#": "pound", "@": "at", "+": "plus", "=": "equals", "/": "slash", "°": "degrees"}
_LETTERS = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ł": "l", "Ł": "L"}
)
_NUMBER = r"\d[\d,]*(?:\.\d+)?"


def _money(match: re.Match[str]) -> str:
    sign, amount, scale = match.group(1), match.group(2), match.group(3)
    return f"{amount} {_SCALES.get(scale.lower(), scale)} {_CURRENCIES[sign]}"


def _decade(match: re.Match[str]) -> str:
    century, tens = match.group(1) or "", _TENS[int(match.group(2))]
    if century == "20" and tens == "hundreds":
        return "two thousands"
    return f"{century} {tens}".strip()


def _beside_digits(match: re.Match[str]) -> str:
    """Letters that touch digits: spelled when they are few ("mp3", "3D"), a word of their own when they are many."""
    token = match.group(0)
    if re.fullmatch(r"\d+(st|nd|rd|th)", token.lower()):
        return token
    parts = re.findall(r"\d+|[A-Za-z]+", token)
    return " ".join(" ".join(part.upper()) if part.isalpha() and len(part) <= 3 else part for part in parts)


# A dash or an ellipsis between words is a clause break. The rules are applied in this order.
_TYPOGRAPHY: list[tuple[re.Pattern[str], str]] = [
    (re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]"), ""),
    (re.compile("[‘’`´ʼ]"), "'"),
    (re.compile("[“”«»„‟]"), '"'),
    (re.compile(r"\s*(?:…|\.\.\.+)\s*"), ", "),
    (re.compile(r"\s*—\s*|\s+[–-]+\s+|\s*--+\s*"), ", "),
    (re.compile("[–‐‑]"), "-"),
    (re.compile(r"\s*&\s*"), " and "),
    (re.compile(r"\b(?:US|U\.S\.)\$"), "$"),
    (re.compile(rf"({_NUMBER})\s?([$£€])(?!\d)"), r"\2\1"),
    (re.compile(r"([$£€])\s+(?=\d)"), r"\1"),
    (re.compile(r"(\d)\s+%"), r"\1%"),
]
_MONEY = re.compile(rf"([$£€])({_NUMBER})\s?(thousand|million|billion|trillion|bn|[kKmMbB])\b")
_DECADE = re.compile(r"(?<![\w$£€.,])(\d\d)?'?(\d)0'?s\b")
_MIXED = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]+(?![A-Za-z0-9])")
_SIGN_ALONE = re.compile(r"(?:(?<=\s)|^)([*#@+=/°])(?=[\s.,;:!?]|$)|(?<=\d)(°)(?=[\s.,;:!?]|$)")


def tidy(text: str) -> str:
    """`text` in letters without accents, digits and the few signs that the reader knows.

    Raises:
        HocketError: NO_PHONEMES with the characters that have no reading (other scripts, emoji, most signs).
    """
    for pattern, plain in _TYPOGRAPHY:
        text = pattern.sub(plain, text)
    text = _SIGN_ALONE.sub(lambda sign: f" {_NAMED_SIGNS[sign.group(1) or sign.group(2)]}", text.translate(_LETTERS))
    # Accents fall away; compatibility forms ("½", "①") do not become other characters unnoticed.
    folded = "".join(part for part in unicodedata.normalize("NFD", text) if not unicodedata.combining(part))
    folded = _MIXED.sub(_beside_digits, _DECADE.sub(_decade, _MONEY.sub(_money, folded)))
    strange = [part for part in folded if not (part.isspace() or part in _KNOWN_SIGNS or (part.isascii() and part.isalnum()))]
    strange += re.findall(r"[$£€](?![-]?\d)|(?<!\d)%", folded)
    if strange:
        listed = " ".join(dict.fromkeys(strange[:50]))
        raise HocketError(Code.NO_PHONEMES, f"no reading for the characters {listed} in {text[:60]!r}")
    return " ".join(folded.split())
