"""Language tags, strictly: BCP 47 in, its canonical form out, and for anything else the advice what to write instead."""

from __future__ import annotations

import re

import langcodes

from common.errors import Code, HocketError

# The tag that people mean when they write a language's name.
NAMES = {
    "arabic": "ar", "chinese": "zh", "czech": "cs", "danish": "da", "dutch": "nl", "english": "en", "finnish": "fi",
    "french": "fr", "german": "de", "greek": "el", "hebrew": "he", "hindi": "hi", "italian": "it", "japanese": "ja",
    "korean": "ko", "mandarin": "zh", "norwegian": "nb", "persian": "fa", "polish": "pl", "portuguese": "pt",
    "russian": "ru", "spanish": "es", "swahili": "sw", "swedish": "sv", "turkish": "tr", "ukrainian": "uk",
    "vietnamese": "vi", "deutsch": "de", "english (us)": "en-US", "american": "en-US", "british": "en-GB",
}  # fmt: skip
# Languages with a front end (`tokenizer.fronts.choice` says which), whatever their region.
SUPPORTED = ("de", "en", "es", "fr", "it", "ja", "ru")
NO_LANGUAGE = ("und", "mul", "zxx", "mis")
_COUNTRY = re.compile(r"[A-Z]{2}")
_PRIVATE_COUNTRY = re.compile(r"AA|Q[M-Z]|X[A-JL-Z]|ZZ")  # codes that ISO 3166 leaves to its users


def _refuse(tag: str, why: str, advice: str) -> HocketError:
    return HocketError(Code.LANGUAGE_REFUSED, f"{tag!r} {why}", remedy=advice)


def supported_languages() -> list[str]:
    """The languages whose texts can be read, in alphabetical order; each is taken with any region."""
    return list(SUPPORTED)


def language_of_country(country: str) -> str | None:
    """The language that most people of a country (ISO 3166) speak: "JP" gives "ja"; None if there is no such country."""
    if _PRIVATE_COUNTRY.fullmatch(country) or not langcodes.tag_is_valid(f"und-{country}"):
        return None
    language = langcodes.Language.make(territory=country).maximize().language
    return None if language in (None, *NO_LANGUAGE) else language


def check_language(tag: str) -> str:
    """The canonical form of a language tag: "EN_us" gives "en-US", "eng" gives "en".

    A country is not a language: "JP" is refused with the advice "ja". Two capitals that are a country and also the tag of
    another language ("KR" is Korea, "kr" is Kanuri) are refused as well, for nobody can tell which is meant.

    Raises:
        HocketError: LANGUAGE_REFUSED, with the tag to use as the remedy where one can be guessed.
    """
    text = tag.strip()
    if text.lower() in NAMES:
        raise _refuse(tag, "is a name, not a language tag", f"use {NAMES[text.lower()]}")
    first = re.split(r"[-_]", text)[0]
    country_language = language_of_country(first.upper()) if re.fullmatch(r"[A-Za-z]{2}", first) else None
    try:
        canonical = langcodes.standardize_tag(text)
        valid = langcodes.tag_is_valid(text)
    except ValueError as error:  # langcodes' own error is a ValueError
        raise _refuse(tag, "is not a language tag", "use a BCP 47 tag, such as en-US, ja or pt-BR") from error
    language = langcodes.Language.get(canonical)
    extended = canonical.startswith("x-") or language.private or language.extensions
    if not valid or extended or language.language in (None, *NO_LANGUAGE):
        if country_language and country_language != language.language:
            raise _refuse(tag, "is a country, not a language", f"use {country_language}")
        raise _refuse(tag, "names no language", "use a BCP 47 tag, such as en-US, ja or pt-BR")
    if _COUNTRY.fullmatch(text) and country_language and country_language != language.language:
        advice = f"use {country_language} for the country's language, or {text.lower()} if you mean the language of that tag"
        raise _refuse(tag, "is a country and also a language", advice)
    return canonical
