"""Whose speech each frame is while a recording is heard: the columns of a block's activity. Pure; times are in samples."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenizer.recordings.cue_zones import Zone
from tokenizer.recordings.features import HOP
from tokenizer.recordings.turns import Span, without
from tokenizer.recordings.windows import activity


class Tracks:
    """Tracks of speech that are each one speaker's: a speaker whom cues name, a cue without a name, or a stretch between pauses.

    The keys of tracks: `names` come first, then the zones, then the stretches as they are heard.

    Args:
        zones: of the cues, sorted by start.
        pause: silence in samples that ends a stretch.
    """

    def __init__(self, zones: Sequence[Zone], pause: int) -> None:
        self.names = sorted({zone.speaker for zone in zones if zone.speaker is not None})
        place = {name: key for key, name in enumerate(self.names)}
        self._zones = zones
        self._keys = [place[zone.speaker] if zone.speaker is not None else len(self.names) + n for n, zone in enumerate(zones)]
        self._starts = np.array([zone.start for zone in zones], np.int64)
        self._stops = np.array([zone.stop for zone in zones], np.int64)
        self._pause = pause
        self.spans: list[Span] = []  # all speech that is complete
        self._stretch: list[int] = []  # the stretch that each span belongs to

    @property
    def first_stretch(self) -> int:
        """The key of the first stretch; smaller ones are of names and of cues."""
        return len(self.names) + len(self._zones)

    def hear(self, spans: Sequence[Span]) -> None:
        """Take the spans that are now complete."""
        for span in spans:
            self._stretch.append(self._stretch_of(span[0]))
            self.spans.append(span)

    def _stretch_of(self, start: int) -> int:
        """The stretch of a span that begins at `start`, after all that were heard."""
        if not self.spans:
            return 0
        return self._stretch[-1] + (start - self.spans[-1][1] >= self._pause)

    def columns(
        self, first: int, frames: int, open_from: int | None, decided: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Activity [frames, S] from frame `first` on, and the keys [S] of its columns: those that are heard in these frames.

        Args:
            open_from: where the span begins that is not complete yet; it is speech up to `decided`.
        """
        low, high = first * HOP, (first + frames) * HOP
        at = bisect.bisect_right(self.spans, low, key=lambda span: span[1])
        heard = [(span, stretch) for span, stretch in zip(self.spans[at:], self._stretch[at:], strict=True) if span[0] < high]
        if open_from is not None and open_from < high:
            heard.append(((open_from, decided), self._stretch_of(open_from)))
        near = np.flatnonzero((self._starts < high) & (self._stops > low))
        holes = [(int(self._starts[n]), int(self._stops[n])) for n in near]
        parts: list[tuple[int, int, int]] = []
        for span, stretch in heard:
            parts += [(start, stop, self.first_stretch + stretch) for start, stop in without([span], holes)]
            parts += [
                (max(span[0], start), min(span[1], stop), self._keys[n])
                for n, (start, stop) in zip(near, holes, strict=True)
                if start < span[1] and stop > span[0]
            ]
        found = np.unique(np.array([key for _, _, key in parts], np.int64))
        column = {int(key): n for n, key in enumerate(found)}
        spans = [(-(-start // HOP), -(-stop // HOP), column[key]) for start, stop, key in parts]
        return activity(first, frames, spans, len(found)), found
