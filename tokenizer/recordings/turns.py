"""Who speaks in which span: labels at points in time become labels of spans. Pure; all times are in samples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
Times = NDArray[np.int64]


def change_points(spans: Sequence[Span], at: Times, labels: Times) -> tuple[Times, Times]:
    """Where the speaker changes, and the label that holds from there on.

    Between two points with different labels the change is in the middle of the longest pause that lies between them, or
    halfway where there is none.

    Args:
        spans: of speech, sorted, not overlapping. at, labels: [N], sorted by time.

    Returns:
        times [M] and labels [M + 1]: label m holds before time m.
    """
    if not len(at):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    places = np.flatnonzero(labels[1:] != labels[:-1])
    gap_start = np.array([stop for _, stop in spans[:-1]], np.int64)
    gap_stop = np.array([start for start, _ in spans[1:]], np.int64)
    times = np.empty(len(places), np.int64)
    for n, place in enumerate(places):
        low, high = int(at[place]), int(at[place + 1])
        first, last = int(np.searchsorted(gap_stop, low, "right")), int(np.searchsorted(gap_start, high, "left"))
        starts, stops = np.maximum(gap_start[first:last], low), np.minimum(gap_stop[first:last], high)
        lengths = stops - starts
        if len(lengths) and lengths.max() > 0:
            best = int(lengths.argmax())
            times[n] = (starts[best] + stops[best]) // 2
        else:
            times[n] = (low + high) // 2
    return times, np.concatenate([labels[:1], labels[places + 1]])


def label_spans(spans: Sequence[Span], times: Times, labels: Times) -> list[tuple[int, int, int]]:
    """(start, stop, label) of spans, divided where the speaker changes within one."""
    out: list[tuple[int, int, int]] = []
    for start, stop in spans:
        first = int(np.searchsorted(times, start, "right"))
        last = int(np.searchsorted(times, stop, "left"))
        edges = [start, *(int(time) for time in times[first:last]), stop]
        for n, (low, high) in enumerate(itertools.pairwise(edges)):
            if high > low:
                out.append((low, high, int(labels[first + n])))
    return out


def label_at(time: int, times: Times, labels: Times) -> int:
    """The label that holds at a time."""
    return int(labels[int(np.searchsorted(times, time, "right"))])


def without(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """What is left of sorted spans when sorted holes, which may overlap, are taken out of them."""
    out: list[Span] = []
    place = 0
    for start, stop in spans:
        while place < len(holes) and holes[place][1] <= start:
            place += 1
        here, at = start, place
        while at < len(holes) and holes[at][0] < stop:
            if holes[at][0] > here:
                out.append((here, holes[at][0]))
            here = max(here, holes[at][1])
            at += 1
        if here < stop:
            out.append((here, stop))
    return out
