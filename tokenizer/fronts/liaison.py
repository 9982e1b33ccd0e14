"""French liaison: the mute consonant of a word that is said before a vowel of the next ("les enfants", "vingt-cinq"). Pure.

Only the liaisons that all speakers make: after determiners, pronouns, numbers, short prepositions, and "est".
"""

from __future__ import annotations

from collections.abc import Sequence

Word = tuple[str, list[str]]

_MUTE = {
    "z": (
        "les des ces mes tes ses nos vos aux leurs nous vous ils elles deux trois six dix dans sans chez sous très "
        "moins quels quelles plusieurs quelques certains certaines petits petites grands grandes beaux"
    ),
    "n": "un mon ton son on en aucun bien rien",
    "t": "est c'est sont petit grand quand tout cent dont vingt",
}
_CONSONANT = {word: sound for sound, words in _MUTE.items() for word in words.split()}
_VOWELS = frozenset("a e ɛ i o ɔ u y ø œ ə ɑ̃ ɔ̃ ɛ̃ œ̃ ɥ w j".split())  # noqa: SIM905
# Words that begin with a vowel's sound and take no liaison.
_ALOOF_WORDS = (
    "et ou oui onze onzième ouistiti yaourt yoga yacht week huit huitième hache haie haine haïr hall halle halte "
    "hamac hamburger hamster hanche handicap handicapé handicapés hangar harceler harcèlement hardi haricot "
    "haricots harpe hasard hasards hâte hausse haut haute hauts hautes hauteur hauteurs hérisson hernie héros hêtre "
    "heurt heurter hibou hiboux hiérarchie hobby hockey hollandais hollandaise hollande homard hongrie hongrois "
    "honte honteux hors housse huer hurlement hurler hutte"
)
_ALOOF = frozenset(_ALOOF_WORDS.split())
_AFTER_TWENTY = frozenset(("deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"))
_VOICED = {"six": ("s", "z"), "dix": ("s", "z"), "neuf": ("f", "v")}


def link(words: Sequence[Word | None]) -> list[Word | None]:
    """Words (what is said, phonemes; None at breaks) with the consonants that are heard between them, at the end of the first."""
    linked = list(words)
    for place in range(len(words) - 1):
        first, second = words[place], words[place + 1]
        if first is None or second is None:
            continue
        before = words[place - 1] if place else None
        sounds = _linked(first, second, before)
        if sounds is not None:
            linked[place] = (first[0], sounds)
    return linked


def _linked(first: Word, second: Word, before: Word | None) -> list[str] | None:
    word, sounds = first[0].lower(), first[1]
    following = second[0].lower()
    if word == "vingt" and before is not None and before[0].lower() == "quatre":
        return None  # "quatre-vingt-un"
    if word == "vingt" and (following in _AFTER_TWENTY or following == "et"):
        return [*sounds, "t"] if sounds[-1] != "t" else None
    if following in _ALOOF or second[1][0] not in _VOWELS:
        return None
    if word == "neuf":  # "neuf heures", "neuf ans", and no others
        return [*sounds[:-1], "v"] if following in ("heures", "ans") and sounds[-1] == "f" else None
    if word in _VOICED and sounds[-1] == _VOICED[word][0]:
        return [*sounds[:-1], _VOICED[word][1]]
    consonant = _CONSONANT.get(word)
    return [*sounds, consonant] if consonant is not None and sounds[-1] != consonant else None
