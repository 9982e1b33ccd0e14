"""The letters of a text: whether they are of its language's script, and which characters have no reading. Pure."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from common.errors import Code, HocketError

MAX_LOST = 0.02  # of a text's letters
SCRIPTS = {
    "en": ("LATIN",), "fr": ("LATIN",), "es": ("LATIN",), "it": ("LATIN",), "de": ("LATIN",), "ru": ("CYRILLIC",),
    "ja": ("HIRAGANA", "KATAKANA", "CJK", "LATIN", "FULLWIDTH", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HALFWIDTH"),
}  # fmt: skip


@dataclass(frozen=True)
class Sifted:
    """A text without the characters that have no reading, and these in their order."""

    text: str
    dropped: str


def script_of(letter: str) -> str:
    """The first word of a letter's Unicode name: "LATIN", "CYRILLIC", "CJK"; empty for what has no name."""
    return unicodedata.name(letter, "").split(" ")[0]


def sift(text: str, language: str) -> Sifted:
    """Take out what has no reading: pictures, signs of format and a few foreign letters. Numbers are never taken out.

    Args:
        language: of `SCRIPTS`.

    Raises:
        HocketError: SCRIPT_MISMATCH when most letters are of another script; NO_PHONEMES when more than a fiftieth of the letters
            would be lost.
    """
    scripts = SCRIPTS[language]
    kept: list[str] = []
    dropped: list[str] = []
    letters = lost = 0
    foreign: dict[str, int] = {}
    for place, part in enumerate(text):
        kind = unicodedata.category(part)
        if kind[0] == "L":
            letters += 1
            script = script_of(part)
            unit = place > 0 and part in "CF" and text[place - 1] == "°"
            if script not in scripts and kind != "Lm" and part not in "ªº" and not unit:
                lost += 1
                foreign[script] = foreign.get(script, 0) + 1
                dropped.append(part)
                continue
        elif (kind == "So" and part not in "°№") or (kind in ("Cf", "Co", "Cn", "Cs", "Sk") and part not in "`´^"):
            if kind != "Cf":  # soft hyphens and marks of direction are no loss
                dropped.append(part)
            continue
        elif kind == "Cc" and not part.isspace():
            dropped.append(part)
            continue
        kept.append(part)
    if lost > letters / 2:
        found = ", ".join(sorted(script.title() for script in foreign if script)) or "an unknown script"
        wanted = " or ".join(script.title() for script in scripts[:3])
        raise HocketError(Code.SCRIPT_MISMATCH, f"{found} in {text[:60]!r}, {language} is written in {wanted}")
    if lost > MAX_LOST * letters:
        signs = " ".join(dict.fromkeys(part for part in dropped if unicodedata.category(part)[0] == "L"))[:50]
        detail = f"{lost} of {letters} letters have no reading in {language} ({signs}) in {text[:60]!r}"
        raise HocketError(Code.NO_PHONEMES, detail)
    return Sifted("".join(kept), "".join(dropped))
