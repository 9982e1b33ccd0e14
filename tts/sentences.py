"""Long texts cut at sentences, so that each is spoken in one breath of the model. Pure; nothing of a text is lost."""

from __future__ import annotations

import re

MAX_CHARACTERS = 240  # about 16 s of speech
# Endings after which a capital letter begins no new sentence.
_ABBREVIATED = """
mr mrs ms dr prof st vs etc e.g i.e fig approx dept inc ltd co jr sr m mme mlle
bzw z.b d.h u.a usw nr sig sra srta ud dott т.е т.д
"""
ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[」』）]*\s*|\n\s*\n\s*")
_CLAUSE = re.compile(r"(?<=[,;:])\s+|(?<=[、，；：])\s*|\s+[–—-]\s+")
_SPACE = re.compile(r"\s+")


def _ends_here(left: str, right: str) -> bool:
    """Whether a sentence ends between two neighbouring pieces of text."""
    words = left.split()
    if not left.rstrip().endswith(".") or not words:
        return True
    last = words[-1].rstrip(".").lstrip("(\"'«“").lower()
    initial = len(last) == 1 and last.isalpha() and words[-1][:1].isupper()
    return not (last in ABBREVIATIONS or initial or right[:1].islower())


def _pieces(text: str, where: re.Pattern[str]) -> list[str]:
    """`text` cut at the matches; what a match holds stays with the piece on its left."""
    cuts = [match.end() for match in where.finditer(text)]
    ends = [*cuts, len(text)]
    return [piece for start, end in zip([0, *cuts], ends, strict=True) if (piece := text[start:end]).strip()]


def _packed(pieces: list[str], limit: int) -> list[str]:
    """Neighbours joined as long as they stay within `limit` characters."""
    packed: list[str] = []
    for piece in pieces:
        if packed and len((packed[-1] + piece).strip()) <= limit:
            packed[-1] += piece
        else:
            packed.append(piece)
    return packed


def split_sentences(text: str, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """Sentences of a text, in order, without the space around them.

    A sentence longer than `max_characters` is cut at clauses, one without clauses between words, a word that is longer still
    anywhere. Joined again and without their space, the sentences are the text.

    Args:
        max_characters: of a sentence; at least 1.
    """
    if max_characters < 1:
        raise ValueError("max_characters must be at least 1")
    sentences: list[str] = []
    for piece in _pieces(text, _END):
        if sentences and not sentences[-1].endswith("\n") and not _ends_here(sentences[-1], piece):
            sentences[-1] += piece
        else:
            sentences.append(piece)
    short: list[str] = []
    for sentence in sentences:
        if len(sentence.strip()) <= max_characters:
            short.append(sentence)
            continue
        for clause in _packed(_pieces(sentence, _CLAUSE), max_characters):
            if len(clause.strip()) <= max_characters:
                short.append(clause)
                continue
            words = _pieces(clause, _SPACE)
            cut = [word[start : start + max_characters] for word in words for start in range(0, len(word), max_characters)]
            short.extend(_packed(cut, max_characters))
    return [sentence.strip() for sentence in short if sentence.strip()]
