"""Russian."""

from __future__ import annotations

import re

from tokenizer.fronts.speech import Speech
from tokenizer.fronts.symbols import ENGLISH_SYMBOLS

SYMBOLS = (
    *ENGLISH_SYMBOLS[:3],
    *"a b d e f i j k l m n o p r s t u v x z ɡ aː eː iː oː uː ɨ ɨː ʂ ʐ ɕː t͡ɕ t͡s".split(),  # noqa: SIM905
    *"bʲ dʲ fʲ ɡʲ kʲ lʲ mʲ nʲ pʲ rʲ sʲ tʲ vʲ xʲ zʲ".split(),  # noqa: SIM905
)


def mend(word: str, phonemes: list[str]) -> list[str]:
    """As the package has them."""
    return phonemes


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


SPEECH = Speech(
    code="ru",
    point="запятая",
    digits=False,
    grouping="\u00a0\u202f ",
    currencies={
        "€": ("евро", "евро", "евроцентов"), "$": ("доллар", "доллара/долларов", "центов"), "₽": ("рубль", "рубля/рублей", "копеек"),
        "£": ("фунт", "фунта/фунтов", "пенсов"),
    },
    and_cents="",
    signs={"&": "и", "+": "плюс", "=": "равно", "°": "градусов", "@": "собака", "#": "решётка", "*": "звёздочка", "№": "номер", "-": "минус"},
    percent=_percent,
    units={"км/ч": "километров в час", "км": "километров", "кг": "килограммов", "см": "сантиметров", "мм": "миллиметров"},
    abbreviations={
        "г": "год", "т.е": "то есть", "т.д": "так далее", "т.п": "тому подобное", "др": "другие", "ул": "улица", "руб": "рублей",
        "тел": "телефон", "им": "имени", "проф": "профессор", "млн": "миллионов", "тыс": "тысяч", "стр": "страница", "см": "смотри",
    },
    ordinals=re.compile(r"(?<![\d.,])(?P<n>\d{1,4})-(?P<e>й|ый|ой|я|ая|е|ое|го|ого)\b"),
    say_ordinal=_ordinal,
    date=_date,
    clock=lambda h, m: f"{SPEECH.number(h)} {'ноль ' if 0 < m < 10 else ''}{SPEECH.number(m) if m else 'ровно'}",
    before=((re.compile(r"\bт\.\s+(?=[едп]\.)"), "т."),),
)  # fmt: skip
