"""Who speaks where in a recording that has been heard: from the embeddings of its windows to labelled speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer.recordings.cluster import Clusterer, ClusterSettings, decode
from tokenizer.recordings.cue_zones import Zone, speech_in
from tokenizer.recordings.embed import DIM
from tokenizer.recordings.pieces import PieceCut, Unit
from tokenizer.recordings.spool import Spool
from tokenizer.recordings.tracks import Tracks
from tokenizer.recordings.turns import Span, change_points, label_at, label_spans, without
from tokenizer.recordings.windows import WINDOW

VOICE_SHIFT = 44  # bits of a time in samples, below the voice, in the key that finds a window's piece: 34 years


@dataclass(frozen=True)
class Voices:
    """The speakers of a recording, and which of them each window is.

    Args:
        names: [K]; None for those that no cue names.
        centroids: float32 [K, 256] of unit length, or 0 where a speaker has no window.
        of_window: [N], the speaker of each record, in the order in which the spool gives them.
        at, labels: centre in samples and speaker of the windows that belong to no cue, sorted by time.
        of_cue: the speaker of each cue without a name that has a window, by the place of its zone.
    """

    names: list[str | None]
    centroids: NDArray[np.float32]
    of_window: NDArray[np.int32]
    at: NDArray[np.int64]
    labels: NDArray[np.int64]
    of_cue: dict[int, int]

    def units(self, zones: Sequence[Zone], spans: Sequence[Span], samples: int) -> tuple[list[Unit], dict[str, int]]:
        """What is said where by whom: cues without the silence at their ends, and the speech that no cue covers.

        Args:
            zones: of the cues, in the order that the tracks were given. samples: of the whole recording.

        Returns:
            The units, and which speaker each name in them is.
        """
        if len(self.at):
            times, labels = change_points(spans, self.at, self.labels)
        else:  # nothing that belongs to no cue was long enough for a window
            times, labels = np.zeros(0, np.int64), np.array([len(self.names) - 1])
        place = {name: n for n, name in enumerate(self.names) if name is not None}
        found: list[tuple[int, int, int, str | None]] = []
        holes: list[Span] = []
        for n, zone in enumerate(zones):
            start, stop = speech_in(zone, spans)
            start, stop = min(start, samples), min(stop, samples)
            if start >= stop:
                continue
            if zone.speaker is not None:
                voice = place[zone.speaker]
            else:
                voice = self.of_cue.get(n, -1)
                voice = label_at((start + stop) // 2, times, labels) if voice < 0 else voice
            found.append((start, stop, voice, zone.text))
            holes.append((zone.start, zone.stop))
        outside = without(spans, sorted(holes))
        found += [(start, stop, voice, None) for start, stop, voice in label_spans(outside, times, labels)]
        found.sort(key=lambda unit: unit[:2])
        names = self._final_names([voice for _, _, voice, _ in found])
        units = [Unit(start, stop, names[voice], text) for start, stop, voice, text in found]
        return units, {name: voice for voice, name in names.items()}

    def _final_names(self, heard: Sequence[int]) -> dict[int, str]:
        """Names of the speakers that are heard; those without one are numbered in the order in which they are heard."""
        names: dict[int, str] = {}
        taken = {name for name in self.names if name is not None}
        number = 1
        for voice in heard:
            if voice in names:
                continue
            name = self.names[voice]
            if name is None:
                while f"speaker-{number}" in taken:
                    number += 1
                name = f"speaker-{number}"
                taken.add(name)
            names[voice] = name
        return names

    def embeddings(self, cuts: Sequence[PieceCut], voice_of: dict[str, int], spool: Spool) -> NDArray[np.float32]:
        """[N, 256], one of unit length for each piece: of its own windows, else the speaker's of the whole recording, else 0."""
        voices = np.array([voice_of[cut.speaker] for cut in cuts], np.int64)
        starts = np.array([cut.start for cut in cuts], np.int64)
        stops = np.array([cut.stop for cut in cuts], np.int64)
        order = np.argsort((voices << VOICE_SHIFT) + starts, kind="stable")
        keys = ((voices << VOICE_SHIFT) + starts)[order]
        sums = np.zeros((len(cuts), DIM), np.float32)
        if not len(cuts):
            return sums
        done = 0
        for records in spool.blocks():
            voice = self.of_window[done : done + len(records)].astype(np.int64)
            done += len(records)
            place = order[np.maximum(np.searchsorted(keys, (voice << VOICE_SHIFT) + records["centre"], "right") - 1, 0)]
            inside = (voices[place] == voice) & (starts[place] <= records["centre"]) & (records["centre"] < stops[place])
            weights = (records["frames"][inside, None] / WINDOW).astype(np.float32)
            np.add.at(sums, place[inside], records["vector"][inside] * weights)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        return np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), self.centroids[voices])


def find_voices(tracks: Tracks, spool: Spool, settings: ClusterSettings) -> Voices:
    """Find the speakers: those whom cues name, and clusters of the windows that have no name. Two passes over the spool."""
    named = np.zeros((len(tracks.names), DIM), np.float32)
    whole, any_length = Clusterer(settings), Clusterer(settings)
    for records in spool.blocks():
        weights = records["frames"] / WINDOW
        by_name = records["track"] < len(tracks.names)
        np.add.at(named, records["track"][by_name], records["vector"][by_name] * weights[by_name, None].astype(np.float32))
        long = ~by_name & (records["frames"] >= settings.min_frames)
        whole.push(records["vector"][long], weights[long])
        if not len(whole):
            any_length.push(records["vector"][~by_name], weights[~by_name])
    named /= np.maximum(np.linalg.norm(named, axis=1, keepdims=True), 1e-12)
    clusters = (whole if len(whole) else any_length).finish()
    known = clusters.centroids() if len(clusters) else np.zeros((0, DIM), np.float32)
    if len(named) and len(known):  # a cluster that cannot be told from a named speaker is that speaker
        known = known[(known @ named.T).max(axis=1) < settings.threshold]
    return _label(tracks, spool, settings, np.concatenate([named, known]))


def _label(tracks: Tracks, spool: Spool, settings: ClusterSettings, centroids: NDArray[np.float32]) -> Voices:
    """Say which speaker each window is, and by its windows each cue without a name."""
    of_window: list[NDArray] = [np.zeros(0, np.int32)]
    at: list[NDArray] = [np.zeros(0, np.int64)]
    labels: list[NDArray] = [np.zeros(0, np.int64)]
    votes: dict[int, dict[int, float]] = {}
    for records in spool.blocks():
        voice = records["track"].copy()
        unnamed = voice >= len(tracks.names)
        own = records[unnamed]
        if len(own):
            stays = np.concatenate([[False], own["track"][1:] == own["track"][:-1]])
            costs = np.where(stays, settings.change_cost_within, settings.change_cost).astype(np.float32)
            weights = own["frames"] / WINDOW
            found = decode(np.asarray((own["vector"] @ centroids.T) * weights[:, None], np.float32), costs)
            voice[unnamed] = found
            free = own["track"] >= tracks.first_stretch
            at.append(own["centre"][free])
            labels.append(found[free])
            for track, weight, label in zip(own["track"][~free], weights[~free], found[~free], strict=True):
                vote = votes.setdefault(int(track) - len(tracks.names), {})
                vote[int(label)] = vote.get(int(label), 0.0) + float(weight)
        of_window.append(voice.astype(np.int32))
    times, order = np.concatenate(at), np.argsort(np.concatenate(at), kind="stable")
    of_cue = {place: max(vote, key=lambda label: (vote[label], -label)) for place, vote in votes.items()}
    names: list[str | None] = [*tracks.names, *([None] * (len(centroids) - len(tracks.names))), None]
    unheard = np.zeros((1, DIM), np.float32)  # for speech that is too short for any window
    return Voices(
        names,
        np.concatenate([centroids, unheard]),
        np.concatenate(of_window),
        times[order],
        np.concatenate(labels)[order],
        of_cue,
    )
