"""Japanese, by pyopenjtalk (the extra `ja`), whose dictionary reads numbers, dates and currency too."""

from __future__ import annotations

import re
from typing import Any

from common.errors import Code, HocketError
from tokenizer.fronts.front import PhonemeText, spell
from tokenizer.fronts.symbols import SILENT

# Open JTalk's phones to symbols; a capital vowel is devoiced, cl is a held closure.
_PHONES: dict[str, tuple[str, ...]] = {
    "a": ("a",),
    "i": ("i",),
    "u": ("ɯ",),
    "e": ("e",),
    "o": ("o",),
    "I": ("i̥",),
    "U": ("ɯ̥",),
    "A": ("a",),
    "E": ("e",),
    "O": ("o",),
    "N": ("ɴ",),
    "cl": ("ʔ",),
    "k": ("k",),
    "g": ("ɡ",),
    "s": ("s",),
    "z": ("z",),
    "sh": ("ɕ",),
    "j": ("d͡ʑ",),
    "t": ("t",),
    "d": ("d",),
    "ts": ("t͡s",),
    "ch": ("t͡ɕ",),
    "n": ("n",),
    "h": ("h",),
    "f": ("ɸ",),
    "b": ("b",),
    "p": ("p",),
    "m": ("m",),
    "y": ("j",),
    "r": ("ɾ",),
    "w": ("w",),
    "v": ("v",),
    "ky": ("kʲ",),
    "gy": ("ɡʲ",),
    "ny": ("nʲ",),
    "hy": ("ç",),
    "by": ("bʲ",),
    "py": ("pʲ",),
    "my": ("mʲ",),
    "ry": ("ɾʲ",),
    "ty": ("tʲ",),
    "dy": ("dʲ",),
    "kw": ("k", "w"),
    "gw": ("ɡ", "w"),
}
SYMBOLS = (*SILENT, *dict.fromkeys(symbol for made in _PHONES.values() for symbol in made))
_SIGN = re.compile(r"[、。！？，．,.!?・「」『』（）()…―〜～]")


class JapaneseFront:
    """Reads Japanese; a word is what the dictionary takes for one."""

    symbols = SYMBOLS

    def __init__(self) -> None:
        try:
            import pyopenjtalk
        except ImportError as error:
            detail = "reading ja needs pyopenjtalk"
            raise HocketError(Code.EXTRA_MISSING, detail, remedy="pip install 'hocket[ja]'") from error
        self._jtalk: Any = pyopenjtalk

    def read(self, text: str) -> PhonemeText:
        words: list[tuple[str, list[str]] | None] = []
        dropped: list[str] = []
        for piece in re.split(f"({_SIGN.pattern})", text):
            if not piece.strip():
                continue
            if _SIGN.fullmatch(piece):
                words.append(None)
                continue
            for node in self._jtalk.run_frontend(piece):
                word, said = str(node["string"]), str(node["pron"]).replace("’", "")
                if node["pos"] == "記号" or said in ("", "、", "。", "？", "！"):
                    dropped += [part for part in word if not part.isspace() and not _SIGN.fullmatch(part)]
                    continue
                phones = self._jtalk.g2p(said, kana=False).split()
                strange = [phone for phone in phones if phone not in _PHONES and phone != "pau"]
                if strange:
                    raise HocketError(Code.NO_PHONEMES, f"no reading for {' '.join(strange)} in {text[:60]!r}")
                made = [symbol for phone in phones if phone != "pau" for symbol in _PHONES[phone]]
                if made:
                    words.append((said, made))
        if not any(words):
            raise HocketError(Code.NO_PHONEMES, f"nothing to say in {text[:60]!r}")
        return spell(words, "".join(dropped))


def load() -> JapaneseFront:
    """The front end; EXTRA_MISSING without the extra `ja`."""
    return JapaneseFront()
