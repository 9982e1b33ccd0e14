"""How a language says what is not written in words: numbers, ordinals, dates, times, money, signs. num2words says the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from common.errors import Code, HocketError

MAX_DIGITS = 15


@dataclass(frozen=True)
class Speech:
    """A language's ways.

    Args:
        code: for num2words and Babel, two letters.
        point: how the sign before decimals is read; digits: whether decimals are read one by one.
        grouping: characters between groups of three digits.
        currencies: sign to (one, several, hundredths).
        and_cents: between units and hundredths. signs: what a sign is called. percent: what % is called.
        units: of measure, behind a number, to their names after one, (in Russian after two to four,) and after more, between "/".
        abbreviations: in lower case, without the last point, to what is said.
        ordinals: pattern of an ordinal with the group `n`, and how it is said.
        date: how (day, month name, year or None, the text before it, whether the day has a mark of an ordinal) is said.
        clock: how (hours, minutes) are said.
        million_of: what stands between a round million and what it counts. fractions: to what they are called.
        agree: the words of a number before the next word, which may ask for another gender.
        years: numbers that are said as years, in hundreds. roman: how a Roman number is said, with what follows it.
    """

    code: str
    point: str
    digits: bool
    grouping: str
    currencies: Mapping[str, tuple[str, str, str]]
    and_cents: str
    signs: Mapping[str, str]
    percent: Callable[[str], str]
    units: Mapping[str, str]
    abbreviations: Mapping[str, str]
    ordinals: re.Pattern[str]
    say_ordinal: Callable[[re.Match[str]], str]
    date: Callable[[int, str, int | None, str, bool], str]
    clock: Callable[[int, int], str]
    fractions: Mapping[str, str] = field(default_factory=dict)
    million_of: str = " "
    years: range = range(0)
    agree: Callable[[str, int, str], str] = lambda said, value, following: said
    before: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = field(default=())

    def number(self, value: int, to: str = "cardinal") -> str:
        """A whole number in words; NO_PHONEMES where there is no name for it."""
        from num2words import num2words

        try:
            said: str = num2words(value, lang=self.code, to=to)
        except (NotImplementedError, OverflowError, ValueError, IndexError, KeyError) as error:
            raise HocketError(Code.NO_PHONEMES, f"the number {value} has no name in {self.code}") from error
        said = said.replace("-", " ") if self.code == "fr" else said
        return said.removeprefix("одна ") if said.startswith("одна тысяча") else said

    def year(self, value: int) -> str:
        """A year as it is said alone."""
        return self.number(value, "year" if value in self.years else "cardinal")

    @cached_property
    def months(self) -> dict[str, int]:
        """Month names in lower case, as they stand in dates and alone."""
        from babel.dates import get_month_names

        names: dict[str, int] = {}
        for context in ("format", "stand-alone"):
            for width in ("wide", "abbreviated"):
                for number, name in get_month_names(width, context, self.code).items():
                    names.setdefault(name.lower().rstrip("."), number)
        return names

    @cached_property
    def month_names(self) -> dict[int, str]:
        from babel.dates import get_month_names

        return dict(get_month_names("wide", "format", self.code))


def _plain(speech: Speech, digits: str) -> int:
    bare = re.sub(f"[{re.escape(speech.grouping)}]", "", digits)
    if len(bare) > MAX_DIGITS:
        raise HocketError(Code.NO_PHONEMES, f"a number of {len(bare)} digits")
    return int(bare)


def _amount(speech: Speech, whole: str, decimals: str | None, following: str = "") -> str:
    """A number in words; `following` is the next word, which may ask for a form of its own."""
    if not decimals and whole.isdigit() and len(whole) > 1 and (whole[0] == "0" or len(whole) > MAX_DIGITS):
        return " ".join(speech.number(int(digit)) for digit in whole)  # a telephone number or a code
    value = _plain(speech, whole)
    said = speech.year(value) if whole.isdigit() and not decimals else speech.number(value)
    if not decimals:
        return speech.agree(said, value, following)
    if speech.digits or decimals.startswith("0") or len(decimals) > 3:
        rest = " ".join(speech.number(int(digit)) for digit in decimals)
    else:
        rest = speech.number(int(decimals))
    return f"{said} {speech.point} {rest}"


def roman_value(digits: str) -> int | None:
    """The number that Roman digits I, V and X stand for; None where they are not written as one."""
    worth = {"I": 1, "V": 5, "X": 10}
    value = sum(
        -worth[digit] if worth[digit] < worth.get(digits[place + 1 : place + 2], 0) else worth[digit]
        for place, digit in enumerate(digits)
    )
    tens, ones = divmod(value, 10)
    written = "X" * tens + ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")[ones]
    return value if written == digits and 0 < value < 40 else None


def expand(text: str, speech: Speech) -> str:
    """`text` in words and the punctuation that it had; signs that have no name stay as they are."""
    code = speech.code
    group = f"[{re.escape(speech.grouping)}]"
    number = rf"(?P<w>\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+)(?:,(?P<d>\d+))?"
    for spaced, joined in speech.before:
        text = spaced.sub(joined, text)

    def numeric_date(match: re.Match[str]) -> str:
        day, month, year = (int(part) for part in match.groups())
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match.group(0)
        before = match.string[: match.start()]
        return speech.date(day, speech.month_names[month], year if year > 99 else 2000 + year, before, False)

    def named_date(match: re.Match[str]) -> str:
        day, name, year = int(match["day"]), match["month"], match["year"]
        if name.lower().rstrip(".") not in speech.months or not 1 <= day <= 31:
            return match.group(0)
        full = speech.month_names[speech.months[name.lower().rstrip(".")]]
        return speech.date(day, full, int(year) if year else None, match.string[: match.start()], bool(match["mark"]))

    def clock(match: re.Match[str]) -> str:
        hours, minutes = int(match["h"]), int(match["m"] or 0)
        return speech.clock(hours, minutes) if hours < 25 and minutes < 60 else match.group(0)

    def money(match: re.Match[str]) -> str:
        one, many, cents = speech.currencies[match["s"] if match["s"] else match["s2"]]
        whole, decimals = match["w"] or match["w2"], match["d"] or match["d2"]
        if decimals and len(decimals) == 2:
            value, rest = _plain(speech, whole), int(decimals)
            said = f"{speech.agree(speech.number(value), value, one)} {counted(code, value, one, many)}"
            return f"{said} {speech.and_cents} {speech.number(rest)} {cents}".replace("  ", " ").rstrip() if rest else said
        value = _plain(speech, whole)
        unit = many.split("/")[0] if decimals else counted(code, value, one, many)
        of = speech.million_of if value and value % 1_000_000 == 0 and not decimals else " "
        return f"{_amount(speech, whole, decimals, one)}{of}{unit}"

    signs = "".join(re.escape(sign) for sign in speech.currencies)
    money_pattern = rf"(?P<s>[{signs}])\s?{number}|{number.replace('<w>', '<w2>').replace('<d>', '<d2>')}\s?(?P<s2>[{signs}])"
    months = "|".join(sorted((re.escape(name) for name in speech.months), key=len, reverse=True))
    text = re.sub(r"(?<![\d.,/])(\d{1,2})[./](\d{1,2})[./](\d{4}|\d{2})(?![\d/])", numeric_date, text)
    day_month = rf"(?<!\d)(?P<day>\d{{1,2}})(?P<mark>\.|er|º|°)?\s+(?:de\s+)?(?P<month>(?:{months})\b\.?)"
    pattern = rf"{day_month}(?:(?:\s+de)?\s+(?P<year>\d{{4}})\b)?"
    text = re.sub(pattern, named_date, text, flags=re.IGNORECASE)
    hours = r"(?<![\d:,.])(?P<h>\d{1,2})(?::|(?<=\d)\s?[hH]\s?(?=\d\d))(?P<m>\d\d)(?![\d:])(?:\s*(?:Uhr|h)\b)?"
    text = re.sub(hours, clock, text)
    text = re.sub(r"(?<![\w)])[-−–](?=\s?\d)(?!\s)", f" {speech.signs.get('-', 'minus')} ", text)
    text = re.sub(money_pattern, money, text)
    text = speech.ordinals.sub(speech.say_ordinal, text)
    text = re.sub(rf"{number}\s?%", lambda m: f"{_amount(speech, m['w'], m['d'])} {speech.percent(m['w'])}", text)
    for written, said in speech.fractions.items():
        text = re.sub(rf"(?<![\d/]){re.escape(written)}(?![\d/])", f" {said} ", text)
    for unit, name in speech.units.items():
        one, _, many = name.partition("/")

        def measure(match: re.Match[str], one: str = one, many: str = many) -> str:
            unit = (many or one).split("/")[0] if match["d"] else counted(code, _plain(speech, match["w"]), one, many or one)
            return f" {_amount(speech, match['w'], match['d'], unit)} {unit}"

        text = re.sub(rf"{number}\s?{re.escape(unit)}(?![\w²³])", measure, text)
    text = re.sub(r"(?<=\d)/(?=\d)", f" {speech.signs['/']} ", text)
    following = r"(?=(?:\s+(?P<next>[^\W\d_]+))?)"
    text = re.sub(number + following, lambda m: f" {_amount(speech, m['w'], m['d'], m['next'] or '')} ", text)
    for sign, name in speech.signs.items():
        if sign not in "-/":
            text = text.replace(sign, f" {name} ")
    return " ".join(text.split())


def counted(code: str, value: int, one: str, many: str) -> str:
    """The form of a noun after a number; in Russian `many` holds two forms: after 2 to 4, and after all others."""
    if code == "ru" and "/" in many:
        few, lots = many.split("/")
        last, tens = value % 10, value % 100
        if last == 1 and tens != 11:
            return one
        return few if 2 <= last <= 4 and not 12 <= tens <= 14 else lots
    return one if value == 1 or (code == "fr" and value == 0) else many
