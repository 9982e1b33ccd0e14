"""The optional packages of this room, imported when they are used."""

from __future__ import annotations

import importlib.util
from functools import partial

from common import extras
from common.errors import Code, HocketError

REMEDY = "make setup-recordings, or pip install 'hocket[recordings]' and then pip install --no-deps resemblyzer==0.1.4"


import_extra = partial(extras.import_extra, remedy=REMEDY)


def check_speaker_extra(n_speakers: int) -> None:
    """Find out before any work is done that speakers cannot be embedded.

    Raises:
        HocketError: EXTRA_MISSING, with what to type.
    """
    missing = [name for name in ("resemblyzer", "librosa", "webrtcvad") if importlib.util.find_spec(name) is None]
    if missing:
        who = f"{n_speakers} speakers" if n_speakers != 1 else "a speaker"
        detail = f"the corpus has {who}, and {missing[0]}, which embeds their voices, is not installed"
        remedy = f"{REMEDY}; or tokenise with --no-speakers, for a model without named voices"
        raise HocketError(Code.EXTRA_MISSING, detail, remedy=remedy)
