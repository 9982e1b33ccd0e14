"""A front end from a lexicon and a language's way of saying what is not written in words: de, es, fr, it and ru have one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from common.errors import Code, HocketError
from tokenizer.fronts.front import PhonemeText, spell
from tokenizer.fronts.lexicon import Lexicon
from tokenizer.fronts.speech import Speech, expand

_TYPOGRAPHY: list[tuple[re.Pattern[str], str]] = [
    (re.compile("[‘’`´ʼ]"), "'"),
    (re.compile("[“”«»„‟\"]"), " "),
    (re.compile(r"\s*(?:…|\.\.\.+)\s*"), ", "),
    (re.compile(r"\s*—\s*|\s+[–-]+\s+|\s*--+\s*"), ", "),
    (re.compile("[–‐‑]"), "-"),
]
_WORD = re.compile(r"[^\W\d_]+(?:['][^\W\d_]+)*'?")
_BREAK = re.compile(r"[.,;:!?()\[\]¡¿]")
_EITHER = re.compile(r"(?<=[^\W\d_])/(?=[^\W\d_])")  # "und/oder"
_ABBREVIATION = re.compile(r"(?<![\w.])((?:[^\W\d_]+\.)*[^\W\d_]+|n°)\.?(?!\w)")


_NEVER_WORDS = frozenset(["mme", "mmes", "mlle", "bzw", "usw", "sra", "srta"])


Word = tuple[str, list[str]]


class WrittenFront:
    """Reads one language.

    Args:
        speech: the language's ways of saying numbers and signs.
        variant: of the language's package, as `Lexicon` takes it. mend: of that lexicon.
        symbols: that it can give.
        elided: French and Italian words before an apostrophe, to their phonemes.
        join: what the words, with None at breaks, do to each other.
    """

    def __init__(
        self,
        speech: Speech,
        variant: str,
        mend: Callable[[str, Sequence[str]], list[str]],
        symbols: tuple[str, ...],
        elided: Mapping[str, Sequence[str]] | None = None,
        join: Callable[[Sequence[Word | None]], list[Word | None]] = list,
    ) -> None:
        self.symbols = symbols
        self._join = join
        self._speech, self._elided = speech, elided or {}
        self.lexicon = Lexicon(speech.code, variant, mend)
        self._allowed = frozenset(symbols)

    def _abbreviation(self, match: re.Match[str]) -> str:
        written = match.group(0)
        name = self._speech.abbreviations.get(match.group(1).lower())
        # Without its point "m" or "es" is a word or a letter of its own; words without a vowel are none.
        marked = written.endswith(".") or "." in match.group(1) or match.group(1).lower() in _NEVER_WORDS
        return name if name is not None and marked else written

    def say(self, text: str) -> str:
        """`text` in words and clause breaks."""
        for pattern, plain in _TYPOGRAPHY:
            text = pattern.sub(plain, text)
        for spaced, joined in self._speech.before:
            text = spaced.sub(joined, text)
        said = expand(_ABBREVIATION.sub(self._abbreviation, text), self._speech)
        return _EITHER.sub(" ", said)

    def read(self, text: str) -> PhonemeText:
        said = self.say(text)
        words: list[Word | None] = []
        dropped: list[str] = []
        for match in re.finditer(rf"{_WORD.pattern}|\S", said):
            token = match.group(0)
            if _WORD.fullmatch(token):
                words.append((token, self._phonemes(token)))
            elif _BREAK.fullmatch(token):
                words.append(None)
            elif token.isdigit():
                raise HocketError(Code.NO_PHONEMES, f"the number {token} has no reading in {text[:60]!r}")
            elif token not in "-'":
                dropped.append(token)
        if not any(words):
            raise HocketError(Code.NO_PHONEMES, f"nothing to say in {text[:60]!r}")
        return spell(self._join(words), "".join(dropped))

    def _phonemes(self, word: str) -> list[str]:
        lower = word.lower().strip("'")
        if not self.lexicon.has(lower) and "'" in lower:
            *heads, tail = lower.split("'")
            made: list[str] = []
            for head in heads:
                made += self._elided[head] if head in self._elided else self._known(head)
            return made + self._known(tail)
        return self._known(lower)

    def _known(self, word: str) -> list[str]:
        found = self.lexicon.phonemes(word)
        strange = [symbol for symbol in found if symbol not in self._allowed]
        if not found or strange:
            raise HocketError(Code.NO_PHONEMES, f"no reading for {word!r}" + (f" ({' '.join(strange)})" if strange else ""))
        return list(found)
