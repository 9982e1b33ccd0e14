"""Whether the texts of a corpus are in the language that it is said to be, by the letters that py3langid knows languages by.

A corpus is judged in pieces of a few sentences: single words and short prompts say little, two hundred characters nearly all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizer.fronts.script import SCRIPTS

PIECE = 200  # characters
LEAST = 60  # characters: less is no evidence
MOST_PIECES = 400
WRONG_SHARE = 0.6  # of the pieces that are in another language, all in the same one
RIGHT_SHARE = 0.25  # of the pieces that are in the language said: so many speak for it


@dataclass(frozen=True)
class Verdict:
    """Whether the texts fit, the likely language where they do not, and why."""

    fits: bool
    likely: str | None
    reason: str


def pieces_of(texts: Iterable[str]) -> list[str]:
    """The texts joined into pieces of at least `PIECE` characters, at most `MOST_PIECES` of them."""
    pieces: list[str] = []
    piece = ""
    for text in texts:
        piece = f"{piece} {text}".strip()
        if len(piece) >= PIECE:
            pieces.append(piece)
            piece = ""
            if len(pieces) == MOST_PIECES:
                return pieces
    return [*pieces, piece] if len(piece) >= LEAST else pieces


def judge_languages(counts: Counter[str], said: str) -> Verdict:
    """The verdict from how many pieces are in which language. Pure.

    Args:
        said: the language without its region.
    """
    total = sum(counts.values())
    if not total:
        return Verdict(True, None, "too little text to tell its language")
    likely, most = counts.most_common(1)[0]
    own = counts[said]
    if likely != said and most >= WRONG_SHARE * total and own <= RIGHT_SHARE * total:
        return Verdict(False, likely, f"{most} of {total} pieces of its texts look like {likely}, {own} like {said}")
    return Verdict(True, likely, f"{own} of {total} pieces of its texts look like {said}")


def likely_language(texts: Sequence[str], said: str, *, known: Sequence[str] = tuple(SCRIPTS)) -> Verdict:
    """Judge the texts of a corpus, or of its clips of one language.

    Args:
        said: the tag that they have. known: languages that they may be in, without regions.
    """
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=False)
    identifier.set_languages(sorted({*known, said.split("-")[0]}))
    return judge_languages(Counter(identifier.classify(piece)[0] for piece in pieces_of(texts)), said.split("-")[0])
