"""Russian."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizer.fronts.mending import Mend
from tokenizer.fronts.speech import Speech
from tokenizer.fronts.symbols import SILENT, stressed
from tokenizer.fronts.written import WrittenFront

_VOWELS = "a e ɛ i ɪ o u ʌ ɨ"
_SOFT = "p b t d k ɡ f v s z x m n l r".split()  # noqa: SIM905
_CONSONANTS = "p b t d k ɡ f v s z x m n l r j ʂ ʐ ɕ t͡s t͡ɕ t͡ʂ d͡z d͡ʐ".split()  # noqa: SIM905
SYMBOLS = (*SILENT, *_CONSONANTS, *(f"{sound}ʲ" for sound in _SOFT), *stressed(_VOWELS))
_SOFTENING = ("е", "ё", "и", "ю", "я", "ь")
_HARD = {"л": "l", "н": "n", "х": "x"}  # the lexicon writes these as hard everywhere
MEND = Mend(
    vowels=frozenset(_VOWELS.split()),
    rewrite={
        "ɑ": "a",
        "ɵ": "o",
        "ɔ": "o",
        "ɐ": "a",
        "y": "ɨ",
        "ŋ": "n",
        "ɭ": "l",
        "ʑ": "zʲ",
        "ʃ": "ʂ",
        "ʒ": "ʐ",
        "ʃʲ": "ɕ",
        "ʒʲ": "ʐ",
    },
    merge={
        ("t", "s"): "t͡s",
        ("t", "ʂ"): "t͡ʂ",
        ("t", "ɕ"): "t͡ɕ",
        ("d", "z"): "d͡z",
        ("d", "ʐ"): "d͡ʐ",
        ("j", "j"): "j",
    },
)


def mend(word: str, phonemes: Sequence[str]) -> list[str]:
    """Symbols of a word: the sign of softness goes with its consonant. Of l, n and x the lexicon
    does not tell soft ones from hard ones, so the letter behind them decides."""
    made: list[str] = []
    for symbol in phonemes:
        last = made[-1] if made else ""
        if symbol == "ʲ":
            if last in _SOFT or last in ("ʃ", "ʒ"):
                made[-1] = f"{last}ʲ"
        elif symbol == "^":  # a soft r at the end of a syllable is written as r and a vowel with this sign
            if made[-2:] == ["r", "ɪ"]:
                made[-2:] = ["rʲ"]
        elif symbol not in ('"', "ʲʲ"):
            made.append(symbol)
    symbols = MEND(word, made)
    for letter, sound in _HARD.items():
        _soften(word, symbols, letter, sound)
    return symbols


def _soften(word: str, symbols: list[str], letter: str, sound: str) -> None:
    """Makes `sound` soft where its letter stands before a softening one; a word in which they do not pair off stays as it is."""
    letters = [place for place, found in enumerate(word) if found == letter]
    places = [place for place, symbol in enumerate(symbols) if symbol == sound]
    if len(letters) == len(places):
        for at, place in zip(letters, places, strict=True):
            if word[at + 1 : at + 2] in _SOFTENING:
                symbols[place] = f"{sound}ʲ"


def load() -> WrittenFront:
    """The front end; takes a second or two."""
    return WrittenFront(SPEECH, "espeak", mend, SYMBOLS)


def _ordinal(match: re.Match[str]) -> str:
    said = SPEECH.number(int(match["n"]), "ordinal")
    ending = match["e"].lower()
    if ending in ("я", "ая"):
        return re.sub("(ый|ой)$", "ая", re.sub("ий$", "ья", said))
    if ending in ("е", "ое"):
        return re.sub("(ый|ой)$", "ое", re.sub("ий$", "ье", said))
    if ending in ("го", "ого"):
        return re.sub("(ый|ой)$", "ого", re.sub("ий$", "ьего", said))
    return said


def _of(text: str) -> str:
    """An ordinal in the genitive, as in dates."""
    return re.sub("(ый|ой)$", "ого", re.sub("ий$", "ьего", text))


def _date(day: int, month: str, year: str) -> str:
    said = f"{re.sub('(ый|ой)$', 'ое', re.sub('ий$', 'ье', SPEECH.number(day, 'ordinal')))} {month}"
    return f"{said} {year}" if year else said


def _percent(number: str) -> str:
    last, tens = int(number[-1]), int(number[-2:])
    if last == 1 and tens != 11:
        return "процент"
    return "процента" if 2 <= last <= 4 and not 12 <= tens <= 14 else "процентов"


SPEECH: Speech = Speech(
    code="ru",
    point="запятая",
    digits=False,
    grouping="\u00a0\u202f ",
    currencies={
        "€": ("евро", "евро", "евроцентов"),
        "$": ("доллар", "доллара/долларов", "центов"),
        "₽": ("рубль", "рубля/рублей", "копеек"),
        "£": ("фунт", "фунта/фунтов", "пенсов"),
    },
    and_cents="",
    signs={
        "&": "и",
        "+": "плюс",
        "=": "равно",
        "°": "градусов",
        "@": "собака",
        "#": "решётка",
        "*": "звёздочка",
        "№": "номер",
        "-": "минус",
    },
    percent=_percent,
    units={"км/ч": "километров в час", "км": "километров", "кг": "килограммов", "см": "сантиметров", "мм": "миллиметров"},
    abbreviations={
        "г": "год",
        "т.е": "то есть",
        "т.д": "так далее",
        "т.п": "тому подобное",
        "др": "другие",
        "ул": "улица",
        "руб": "рублей",
        "тел": "телефон",
        "им": "имени",
        "проф": "профессор",
        "млн": "миллионов",
        "тыс": "тысяч",
        "стр": "страница",
        "см": "смотри",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,4})-(?P<e>й|ый|ой|я|ая|е|ое|го|ого)\b"),
    say_ordinal=_ordinal,
    date=_date,
    clock=lambda h, m: f"{SPEECH.number(h)} {'ноль ' if 0 < m < 10 else ''}{SPEECH.number(m) if m else 'ровно'}",
    before=((re.compile(r"\bт\.\s+(?=[едп]\.)"), "т."),),
)
