"""Pieces of a recording, cut at pauses, from what is said where and by whom. Pure; all times are in samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

SENTENCE_END = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
TRAILING = "\"'”’»)]）」』"  # marks that may follow the end of a sentence


@dataclass(frozen=True)
class Unit:
    """Speech that is not cut any further: a span without a pause, or a cue. `text` is None where there is no transcript."""

    start: int
    stop: int
    speaker: str
    text: str | None = None


@dataclass(frozen=True)
class PieceSettings:
    """
    Args:
        min_s, max_s: pieces are as long as that where the pauses allow it. A turn that is shorter is a piece of its own, and so
            is a cue that is longer: its text cannot be divided here.
        max_pause_s: a longer pause always ends a piece.
        pad_s: silence that a piece keeps at each end; at most half of what there is.
        sentence_s: a pause after the end of a sentence counts as that much longer.
    """

    min_s: float = 1.0
    max_s: float = 15.0
    max_pause_s: float = 1.0
    pad_s: float = 0.1
    sentence_s: float = 1.0


@dataclass(frozen=True)
class PieceCut:
    """A piece [start, stop) in samples, with its padding, and the units in it."""

    start: int
    stop: int
    units: tuple[Unit, ...]

    @property
    def speaker(self) -> str:
        return self.units[0].speaker

    @property
    def text(self) -> str | None:
        texts = [unit.text for unit in self.units if unit.text is not None]
        return " ".join(texts) if texts else None


def cut_pieces(units: Sequence[Unit], samples: int, rate: int, settings: PieceSettings) -> list[PieceCut]:
    """Every unit in exactly one piece, in order of their starts.

    Consecutive units of one speaker, with or without text alike, and without a long pause between them, are a turn. A turn
    that is too long is cut at its longest pause that leaves both sides long enough, and so on.

    Args:
        units: of one recording of `samples` samples at `rate` Hz. Units of one speaker do not overlap.
    """
    ordered = sorted(units, key=lambda unit: (unit.start, unit.stop))
    cuts = [cut for turn in _turns(ordered, rate * settings.max_pause_s) for cut in _cut_turn(turn, rate, settings)]
    return _padded(cuts, ordered, samples, round(rate * settings.pad_s))


def _turns(ordered: Sequence[Unit], max_pause: float) -> Iterator[list[Unit]]:
    turn: list[Unit] = []
    for unit in ordered:
        if turn and (
            unit.speaker != turn[-1].speaker
            or (unit.text is None) != (turn[-1].text is None)
            or unit.start - turn[-1].stop > max_pause
        ):
            yield turn
            turn = []
        turn.append(unit)
    if turn:
        yield turn


def _cut_turn(turn: list[Unit], rate: int, settings: PieceSettings) -> Iterator[list[Unit]]:
    """The pieces of one turn, in order."""
    starts = np.array([unit.start for unit in turn])
    stops = np.array([unit.stop for unit in turn])
    ends_sentence = np.array([unit.text is not None and unit.text.rstrip(TRAILING).endswith(SENTENCE_END) for unit in turn])
    pauses = starts[1:] - stops[:-1] + np.where(ends_sentence[:-1], settings.sentence_s * rate, 0)
    longest = (settings.max_s - 2 * settings.pad_s) * rate
    shortest = settings.min_s * rate
    waiting = [(0, len(turn))]
    while waiting:
        first, last = waiting.pop()
        if stops[last - 1] - starts[first] <= longest or last - first == 1:
            yield turn[first:last]
            continue
        inner = pauses[first : last - 1]
        left = stops[first : last - 1] - starts[first]
        right = stops[last - 1] - starts[first + 1 : last]
        fits = (left >= shortest) & (right >= shortest)
        rank = np.where(fits | ~fits.any(), inner, -np.inf)
        best = np.flatnonzero(rank == rank.max())
        place = first + 1 + int(best[np.abs(left - right)[best].argmin()])  # of equal pauses, the one nearest the middle
        waiting += [(place, last), (first, place)]


def _padded(cuts: list[list[Unit]], ordered: Sequence[Unit], samples: int, pad: int) -> list[PieceCut]:
    """Give each piece some of the silence around it, at most half of that up to the next speech of anyone."""
    edges_start = np.array([unit.start for unit in ordered], np.int64)
    ends_before = np.maximum.accumulate(np.array([0, *(unit.stop for unit in ordered)], np.int64))
    pieces = []
    for units in cuts:
        start, stop = units[0].start, max(unit.stop for unit in units)
        earlier = int(np.searchsorted(edges_start, start))  # units that begin before this piece
        before = int(ends_before[earlier])
        later = int(np.searchsorted(edges_start, stop))
        after = int(edges_start[later]) if later < len(ordered) else samples
        covered = int(ends_before[later]) > stop  # someone else still speaks at the end
        room_before = max(0, start - before) // 2 if earlier else start
        room_after = 0 if covered else max(0, after - stop) // (2 if later < len(ordered) else 1)
        pieces.append(PieceCut(start - min(pad, room_before), stop + min(pad, room_after), tuple(units)))
    return pieces
