"""Which stretch of a recording belongs to each cue: subtitles are timed for reading. Pure; times are in samples."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizer.recordings.subtitles import Cue
from tokenizer.recordings.turns import Span

SLACK_S = 0.5  # speech as near to a cue as that, and no nearer to another, belongs to it
SNAP_S = 0.25  # a pause as near to the border of two cues as that is the border


@dataclass(frozen=True)
class Zone:
    """A cue's own stretch [start, stop), with what is said in it, and by whom where the cue names them."""

    start: int
    stop: int
    text: str
    speaker: str | None


def settle_cues(cues: Sequence[Cue], rate: int) -> list[Zone]:
    """Cues as stretches that no two of one speaker share, sorted by start.

    Of two that overlap by most of the shorter one, one is made with both texts; of two that overlap less, the border is the
    middle of what they share. Cues without a speaker count as one speaker's.
    """
    by_speaker: dict[str | None, list[Zone]] = {}
    for cue in sorted(cues, key=lambda cue: (cue.start_s, cue.stop_s)):
        start, stop = round(cue.start_s * rate), round(cue.stop_s * rate)
        own = by_speaker.setdefault(cue.speaker, [])
        shared = own[-1].stop - start if own else 0
        if shared <= 0:
            own.append(Zone(start, stop, cue.text, cue.speaker))
        elif 2 * shared > min(own[-1].stop - own[-1].start, stop - start):
            text = f"{own[-1].text} {cue.text}"
            own[-1] = Zone(own[-1].start, max(own[-1].stop, stop), text, cue.speaker)
        else:
            border = start + shared // 2
            own[-1] = Zone(own[-1].start, border, own[-1].text, cue.speaker)
            own.append(Zone(border, stop, cue.text, cue.speaker))
    zones = [zone for own in by_speaker.values() for zone in own]
    return sorted(zones, key=lambda zone: (zone.start, zone.stop, zone.speaker or ""))


def widen(zones: Sequence[Zone], rate: int) -> list[Zone]:
    """Let every edge out into the time that no cue covers: by SLACK_S, at most halfway to the next one."""
    slack = round(SLACK_S * rate)
    starts = [zone.start for zone in zones]
    ended: list[int] = []  # the latest end of the zones up to each one
    for zone in zones:
        ended.append(max(zone.stop, ended[-1]) if ended else zone.stop)
    out = []
    for place, zone in enumerate(zones):
        before = ended[place - 1] if place else None
        low, high = zone.start, zone.stop
        if before is None or before <= zone.start:
            low = max(0, zone.start - slack) if before is None else max(zone.start - slack, (before + zone.start) // 2)
        later = bisect.bisect_left(starts, zone.stop)
        if ended[later - 1] <= zone.stop:  # nobody else speaks where this one ends
            high = zone.stop + slack if later == len(zones) else min(zone.stop + slack, (zone.stop + starts[later]) // 2)
        out.append(Zone(low, high, zone.text, zone.speaker))
    return out


def snap(zones: Sequence[Zone], spans: Sequence[Span], rate: int) -> list[Zone]:
    """Move the border of two zones that touch into the longest pause near it, where no third one is near."""
    reach = round(SNAP_S * rate)
    gaps = [(stop, start) for (_, stop), (start, _) in itertools.pairwise(spans) if start > stop]
    gap_stops = [stop for _, stop in gaps]
    out = list(zones)
    earlier = 0  # the latest end of the zones before `one`
    for place in range(len(out) - 1):
        one, two = out[place], out[place + 1]
        earlier = max(earlier, out[place - 1].stop) if place else 0
        if one.stop != two.start:
            continue
        third = min((zone.start for zone in out[place + 2 : place + 3]), default=two.stop)
        low = max(one.stop - reach, (one.start + one.stop) // 2, earlier)
        high = min(one.stop + reach, (two.start + two.stop) // 2, third)
        best: tuple[int, int] | None = None
        at = bisect.bisect_right(gap_stops, low)
        while at < len(gaps) and gaps[at][0] < high:
            pause = max(low, gaps[at][0]), min(high, gaps[at][1])
            if pause[1] > pause[0] and (best is None or pause[1] - pause[0] > best[1] - best[0]):
                best = pause
            at += 1
        if best is not None:
            border = (best[0] + best[1]) // 2
            out[place] = Zone(one.start, border, one.text, one.speaker)
            out[place + 1] = Zone(border, two.stop, two.text, two.speaker)
    return out


def speech_in(zone: Zone, spans: Sequence[Span]) -> Span:
    """The zone without the silence at its ends; as it is where no speech was found in it.

    Args:
        spans: of the whole recording, sorted.
    """
    first = bisect.bisect_right(spans, zone.start, key=lambda span: span[1])
    last = bisect.bisect_left(spans, zone.stop, key=lambda span: span[0])
    if first >= last:
        return zone.start, zone.stop
    return max(zone.start, spans[first][0]), min(zone.stop, spans[last - 1][1])
