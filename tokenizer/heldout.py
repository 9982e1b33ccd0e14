"""Which clips are never trained on. Pure."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Sequence

from common.errors import Code, HocketError

HELD_OUT_SHARE = 0.05
MAX_HELD_OUT = 100
TEST_WORDS = range(4, 15)


def check_named(wanted: int | Sequence[str] | None, known: Collection[str], corpus: str) -> None:
    """Held-out ids that the corpus does not have are a slip that would silently train on what they meant."""
    if wanted is None or isinstance(wanted, int):
        return
    strange = [name for name in wanted if name not in known]
    if strange:
        detail = f"{len(strange)} held-out ids are not in {corpus}: {', '.join(strange[:5])}"
        raise HocketError(Code.CORPUS_UNREADABLE, detail, remedy="correct heldout.txt")


def choose_held_out(clips: Sequence[tuple[str, str]], wanted: int | Sequence[str] | None) -> set[str]:
    """Ids to hold out, of (id, spoken text) of the usable clips. No clip's place or neighbour changes the choice.

    Args:
        wanted: ids, or how many; None: one in twenty, at most 100. Sentences of 4 to 14 words that occur once come first.

    Raises:
        HocketError: CORPUS_TOO_SMALL if nothing is left to train on or to hold out.
    """
    ids = [name for name, _ in clips]
    if wanted is None:
        wanted = min(MAX_HELD_OUT, math.ceil(HELD_OUT_SHARE * len(ids)))
    if isinstance(wanted, int):
        times = Counter(spoken for _, spoken in clips)

        def rank(clip: tuple[str, str]) -> tuple[bool, bool, bytes]:
            name, spoken = clip
            return (times[spoken] > 1, len(spoken.split()) not in TEST_WORDS, hashlib.sha256(name.encode()).digest())

        held = {name for name, _ in sorted(clips, key=rank)[:wanted]}
    else:
        held = set(wanted) & set(ids)
    if not held or len(held) == len(ids):
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{len(ids)} usable clips, {len(held)} of them held out; both sides need one")
    return held
