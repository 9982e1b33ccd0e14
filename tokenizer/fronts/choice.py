"""Which front end reads a language. Each is loaded when it is first asked for, with the packages that it needs."""

from __future__ import annotations

import importlib

import langcodes

from common.errors import Code, HocketError
from tokenizer.fronts.front import TextFront
from tokenizer.languages import supported_languages

_MODULES = {
    "de": "german", "en": "english", "es": "spanish", "fr": "french", "it": "italian", "ja": "japanese", "ru": "russian",
}  # fmt: skip


def front_language(tag: str) -> str:
    """The language whose front end reads texts of a canonical tag: "fr" for "fr-CA".

    Raises:
        HocketError: LANGUAGE_REFUSED, with the languages that there are, for any other, and for a script that is not the usual
            one of its language ("ru-Latn").
    """
    language = langcodes.Language.get(tag)
    name = str(language.language)
    if name not in _MODULES:
        advice = f"the languages are {', '.join(supported_languages())}"
        raise HocketError(Code.LANGUAGE_REFUSED, f"{tag} has no text-to-phoneme reader here", remedy=advice)
    if language.script and language.script != langcodes.Language.make(language=name).maximize().script:
        raise HocketError(Code.LANGUAGE_REFUSED, f"{tag}: {name} is not read in that script", remedy=f"use {name}")
    return name


def symbols_of(name: str) -> tuple[str, ...]:
    """Every symbol that the front end of a language can give; needs none of its packages."""
    symbols: tuple[str, ...] = importlib.import_module(f"tokenizer.fronts.{_MODULES[name]}").SYMBOLS
    return symbols


def load_front(name: str) -> TextFront:
    """The front end of a language, by its name of two letters; EXTRA_MISSING where its package is not installed."""
    front: TextFront = importlib.import_module(f"tokenizer.fronts.{_MODULES[name]}").load()
    return front
