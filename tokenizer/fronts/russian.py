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


def _date(day: int, month: str, year: int | None, before: str, marked: bool) -> str:
    said = f"{_of(SPEECH.number(day, 'ordinal'))} {month}"
    return f"{said} {_of(SPEECH.number(year, 'ordinal'))} года" if year else said


def _year(match: re.Match[str]) -> str:
    """A year before the word for year, in its case."""
    if match["d"] and match["y"] == "года":  # of a date, which says it itself
        return f"{match['d']}{match['n']}"
    said, word = SPEECH.number(int(match["n"]), "ordinal"), match["y"].lower()
    if word in ("году", "годе"):
        said = re.sub("(ый|ой)$", "ом", re.sub("ий$", "ьем", said))
    elif word == "года":
        said = _of(said)
    return f"{match['d'] or ''}{said} {match['y']}"


def _agree(said: str, value: int, following: str) -> str:
    """One and two agree with the gender of what they count, which its ending shows."""
    word = following.lower()
    if said.endswith("один") and word:
        return said[:-4] + ("одна" if word.endswith(("а", "я")) else "одно" if word.endswith(("о", "е")) else "один")
    return f"{said[:-3]}две" if said.endswith("два") and word.endswith(("и", "ы")) else said


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
        "/": "дробь", "-": "минус",
    },
    percent=_percent,
    units={
        "км/ч": "километр в час/километра в час/километров в час", "км": "километр/километра/километров",
        "кг": "килограмм/килограмма/килограммов", "см": "сантиметр/сантиметра/сантиметров",
        "мм": "миллиметр/миллиметра/миллиметров",
        "м": "метр/метра/метров", "°C": "градус Цельсия/градуса Цельсия/градусов Цельсия", "г": "грамм/грамма/граммов",
        "л": "литр/литра/литров", "ч": "час/часа/часов",
    },
    fractions={
        "1/2": "одна вторая", "½": "одна вторая", "1/3": "одна треть", "1/4": "одна четверть", "¼": "одна четверть",
        "3/4": "три четверти", "¾": "три четверти",
    },
    agree=_agree,
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
    before=(
        (re.compile(r"\bт\.\s+(?=[едп]\.)"), "т."),
        (re.compile(r"(?<!\d)(?P<n>[12]\d{3})\s?г\."), r"\g<n> года"),
        (re.compile(r"(?<!\d)(?P<d>\d{1,2}\s+[а-я]+\s+)?(?P<n>[12]\d{3})\s(?P<y>год(?:у|а|е)?)\b", re.IGNORECASE), _year),
    ),
)
