"""Pronunciations as the lexicons write them, turned into symbols of our table: stress on the vowel, affricates and diphthongs as
one symbol, one way of writing for one sound. Pure, and fixed by tables, one a language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_MARKS = ("ˈ", "ˌ")


def split_stress(symbol: str) -> tuple[str, str]:
    """The stress mark of a symbol ("" for none) and the rest of it."""
    return (symbol[0], symbol[1:]) if symbol[:1] in _MARKS else ("", symbol)


@dataclass(frozen=True)
class Mend:
    """How the symbols of one lexicon are rewritten.

    Args:
        vowels: symbols, after rewriting, that can bear stress; a mark on anything else waits for the next of them.
        rewrite: a symbol to the symbols, between spaces, that stand for it; "" leaves it out.
        merge: two neighbours, after rewriting, to the one symbol that they make; never when the second bears stress.
        secondary: whether secondary stress is kept. Where it is not, it becomes primary in a word of several vowels that has no
            primary stress.
    """

    vowels: frozenset[str]
    rewrite: Mapping[str, str] = field(default_factory=dict)
    merge: Mapping[tuple[str, str], str] = field(default_factory=dict)
    secondary: bool = True

    def __call__(self, word: str, phonemes: Sequence[str]) -> list[str]:
        """Symbols of a word from those of its lexicon; `word` is there for languages whose spelling decides."""
        made: list[tuple[str, str]] = []
        waiting = ""
        for symbol in phonemes:
            stress, bare = split_stress(symbol)
            waiting = stress or waiting
            for part in self.rewrite.get(bare, bare).split():
                stress = ""
                if waiting and part in self.vowels:
                    stress, waiting = waiting, ""
                merged = self.merge.get((made[-1][1], part)) if made and not stress else None
                if merged is not None:
                    made[-1] = (made[-1][0], merged)
                else:
                    made.append((stress, part))
        if not self.secondary:
            made = self._one_stress(made)
        return [stress + bare for stress, bare in made]

    def reachable(self, raw: Iterable[str]) -> set[str]:
        """Every symbol that can come of words written in the symbols `raw`, whatever their order."""
        made = {part for symbol in raw for part in self.rewrite.get(split_stress(symbol)[1], split_stress(symbol)[1]).split()}
        while True:
            more = {merged for (first, second), merged in self.merge.items() if first in made and second in made} - made
            if not more:
                break
            made |= more
        stresses = _MARKS if self.secondary else _MARKS[:1]
        return made | {stress + vowel for vowel in made & self.vowels for stress in stresses}

    def _one_stress(self, made: list[tuple[str, str]]) -> list[tuple[str, str]]:
        has_primary = any(stress == "ˈ" for stress, _ in made)
        several = sum(bare in self.vowels for _, bare in made) > 1
        kept: list[tuple[str, str]] = []
        for stress, bare in made:
            if stress == "ˌ":
                stress, has_primary = ("", has_primary) if has_primary or not several else ("ˈ", True)
            kept.append((stress, bare))
        return kept
