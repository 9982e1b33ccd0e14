"""Whose speech each frame is, and embeddings that wait in a file."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.recordings.cue_zones import Zone
from tokenizer.recordings.spool import BLOCK, Spool
from tokenizer.recordings.tracks import Tracks

HOP, PAUSE = 160, 4000
FRAMES = 400

steps = st.lists(st.tuples(st.sampled_from([1, 500, 3999, 4000, 9000]), st.integers(1, 9000)), max_size=10)
zones = st.lists(
    st.tuples(st.integers(0, 50000), st.integers(1, 15000), st.sampled_from([None, "a", "b"])).map(
        lambda zone: Zone(zone[0], zone[0] + zone[1], "x", zone[2])
    ),
    max_size=6,
).map(lambda found: sorted(found, key=lambda zone: (zone.start, zone.stop, zone.speaker or "")))


def spans_of(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    spans, at = [], 0
    for gap, length in found:
        spans.append((at + gap, at + gap + length))
        at += gap + length
    return spans


def naive(spans: list[tuple[int, int]], cues: list[Zone]) -> dict[int, set[int]]:
    """Frames of each key, frame by frame."""
    names = sorted({zone.speaker for zone in cues if zone.speaker is not None})
    frames: dict[int, set[int]] = {}
    stretch = 0
    for n, (start, stop) in enumerate(spans):
        stretch += bool(n) and start - spans[n - 1][1] >= PAUSE
        for frame in range(FRAMES):
            if not start <= frame * HOP < stop:
                continue
            within = [m for m, zone in enumerate(cues) if zone.start <= frame * HOP < zone.stop]
            keys = [names.index(cues[m].speaker) if cues[m].speaker is not None else len(names) + m for m in within]
            for key in keys or [len(names) + len(cues) + stretch]:
                frames.setdefault(key, set()).add(frame)
    return frames


@given(steps, zones, st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_columns_are_the_tracks_of_a_plain_loop(found: list, cues: list[Zone], is_open: int) -> None:
    spans = spans_of(found)
    expected = naive(spans, cues)
    tracks = Tracks(cues, PAUSE)
    open_span = spans[-1] if spans and is_open == 0 else None  # the last span may still go on
    tracks.hear(spans[:-1] if open_span else spans)
    got: dict[int, set[int]] = {}
    for first, last in ((0, 130), (130, 131), (131, FRAMES)):
        decided = open_span[1] if open_span else 0
        active, keys = tracks.columns(first, last - first, open_span[0] if open_span else None, decided)
        assert active.shape == (last - first, len(keys)) and len(set(keys.tolist())) == len(keys)
        for column, key in enumerate(keys.tolist()):
            frames = np.flatnonzero(active[:, column]) + first
            got.setdefault(key, set()).update(frames.tolist())
    assert {key: frames for key, frames in got.items() if frames} == expected


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(1, 64)), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_what_is_spooled_comes_back_in_bounded_blocks(pushes: list[tuple[int, int]]) -> None:
    with Spool() as spool:
        number = embedded = 0
        for count, batch in pushes:
            places = np.arange(number, number + count)
            spool.expect(places, places * 10, np.full(count, 50))
            number += count
            while embedded + batch <= number:
                spool.embedded(np.repeat(np.arange(embedded, embedded + batch, dtype=np.float32)[:, None], 256, axis=1))
                embedded += batch
        assert len(spool) == embedded
        for _ in range(2):  # as often as one likes
            blocks = list(spool.blocks())
            records = np.concatenate(blocks) if blocks else np.zeros(0, [("track", int), ("vector", float, 256)])
            assert all(len(block) <= BLOCK for block in blocks)
            assert records["track"].tolist() == list(range(embedded)) and (records["vector"][:, 0] == records["track"]).all()
