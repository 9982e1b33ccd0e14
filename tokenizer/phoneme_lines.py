"""Phonemes written out by a person: symbols between spaces, `/` where a word begins, pauses as they are in the inventory."""

from __future__ import annotations

from common.errors import Code, HocketError
from tokenizer.phonemes import END, PAUSE, PhonemeText

WORD = "/"


def parse_phonemes(text: str) -> PhonemeText:
    """Phonemes from a line such as "/ h ə l oʊ / w ɝ l d"; the pauses at both ends may be left out.

    The symbols are checked by the inventory that they are spoken with.

    Raises:
        HocketError: NO_PHONEMES if there is no symbol.
    """
    phonemes: list[str] = []
    starts: list[bool] = []
    begins = True
    for symbol in text.split():
        if symbol == WORD:
            begins = True
            continue
        silent = symbol in (END, PAUSE)
        phonemes.append(symbol)
        starts.append(begins and not silent)
        begins = silent
    if all(symbol in (END, PAUSE) for symbol in phonemes):
        remedy = "write symbols between spaces, as `hocket phonemes` does"
        raise HocketError(Code.NO_PHONEMES, f"no phonemes in {text[:60]!r}", remedy=remedy)
    if phonemes[0] != END:
        phonemes, starts = [END, *phonemes], [False, *starts]
    if phonemes[-1] != END:
        phonemes, starts = [*phonemes, END], [*starts, False]
    return PhonemeText("", phonemes, starts)


def write_phonemes(read: PhonemeText) -> str:
    """The line that `parse_phonemes` reads back."""
    marked = zip(read.phonemes, read.word_starts, strict=True)
    return " ".join(f"{WORD} {symbol}" if start else symbol for symbol, start in marked)
