"""Long clips cut at the pauses of their texts, so that a piece is short enough to train on and still begins and ends with one.

A pause token (`|`) has frames of its own. A cut lies in the middle of them: those before it become the END (`_`) of the piece
before, those after it the END of the next. So the pieces' frames follow one another without gap or overlap, their durations
sum to the clip's, and no phoneme but the pause at the seam is in two pieces. There is no token between words (word starts are
a feature of the phonemes), so a cut elsewhere would lie within speech: where there is no pause there is no cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.phonemes import END, PAUSE

MIN_PAUSE_S = 0.1  # the search gives every pause token a frame, spoken or not; from here on it is one that can be heard
MIN_PAUSE_FRAMES = 2  # each side of a cut needs a frame


@dataclass(frozen=True)
class Cut:
    """One piece of a clip.

    Args:
        phonemes: the clip's phonemes in the piece. Where a piece begins or ends at a pause, that token is its first or last; so
            it is in the slices of both pieces, and each has its share of the frames.
        frames: the clip's frames in the piece; the pieces' slices follow one another.
        words: the clip's words in the piece, counted by word starts; the pieces' slices follow one another.
    """

    phonemes: slice
    frames: slice
    words: slice

    @property
    def n_frames(self) -> int:
        return int(self.frames.stop - self.frames.start)


_Cost = tuple[int, int, int, int]


def cut_at_pauses(
    phonemes: NDArray[np.integer],
    durations: NDArray[np.integer],
    word_starts: NDArray[np.integer] | Sequence[bool],
    *,
    symbols: Sequence[str],
    frame_rate: float,
    max_s: float,
    min_s: float,
    min_pause_s: float = MIN_PAUSE_S,
) -> list[Cut]:
    """The pieces of an aligned clip: the whole clip if it lasts at most `max_s`.

    Of all sets of pauses, that one is taken which leaves the least sound beyond `max_s` in its pieces, then the fewest pieces
    under `min_s`, then the fewest pieces, then the longest pauses at the cuts. Every piece has a word.

    Args:
        phonemes: ids [P]. durations: frames [P], each at least 1. word_starts: [P].
        symbols: the inventory of the ids.
        frame_rate: frames a second.
        max_s: length that a piece should not exceed; one without a pause inside does.
        min_s: length that a piece should have.
        min_pause_s: shorter pauses are not cut at.

    Raises:
        HocketError: INPUT_INVALID if the arrays do not belong together; OPTION_INVALID for lengths that leave no room.
    """
    starts = np.asarray(word_starts, dtype=bool)
    lengths = np.asarray(durations, dtype=np.int64)
    if not len(phonemes) == len(lengths) == len(starts) or len(lengths) == 0 or int(lengths.min()) < 1:
        raise HocketError(Code.INPUT_INVALID, "phonemes, durations and word starts do not belong together")
    if not 0 <= min_s < max_s:
        raise HocketError(Code.OPTION_INVALID, f"pieces of {min_s} to {max_s} s cannot be made")
    ends = np.cumsum(lengths)
    words = np.concatenate([[0], np.cumsum(starts)])  # words before a place
    whole = Cut(slice(0, len(lengths)), slice(0, int(ends[-1])), slice(0, int(words[-1])))
    longest = int(max_s * frame_rate)
    if ends[-1] <= longest or PAUSE not in symbols:
        return [whole]
    heard = max(MIN_PAUSE_FRAMES, min_pause_s * frame_rate)
    inside = np.arange(1, len(lengths) - 1)
    places = inside[(np.asarray(phonemes)[inside] == symbols.index(PAUSE)) & (lengths[inside] >= heard)]
    # The frame of each seam: the piece before it gets the larger half of the pause.
    seams = np.array([0, *(ends[places] - lengths[places] // 2), ends[-1]], dtype=np.int64)
    counts = np.array([0, *words[places], words[-1]], dtype=np.int64)
    pauses = np.array([0, *lengths[places], 0], dtype=np.int64)
    chosen = _best_seams(seams, counts, pauses, longest, int(np.ceil(min_s * frame_rate)))
    bounds = [0, *places.tolist(), len(lengths) - 1]
    return [
        Cut(
            slice(bounds[one], bounds[two] + 1),
            slice(int(seams[one]), int(seams[two])),
            slice(int(counts[one]), int(counts[two])),
        )
        for one, two in itertools.pairwise(chosen)
    ]


def _best_seams(
    seams: NDArray[np.int64], words: NDArray[np.int64], pauses: NDArray[np.int64], longest: int, shortest: int
) -> list[int]:
    """The seams to cut at, the first and the last of all among them: the cheapest way from one end to the other."""
    best: list[tuple[_Cost, int]] = [((0, 0, 0, 0), -1)]
    for stop in range(1, len(seams)):
        options: list[tuple[_Cost, int]] = []
        for start in range(stop - 1, -1, -1):
            # A seam that has no word before it cannot be reached; the whole clip always can, with words or without.
            reachable = best[start][1] >= 0 or start == 0
            whole = start == 0 and stop == len(seams) - 1
            if not reachable or (words[stop] == words[start] and not whole):
                continue
            frames = int(seams[stop] - seams[start])
            before = best[start][0]
            step = (max(0, frames - longest), int(frames < shortest), 1, -int(pauses[stop]))
            options.append(((before[0] + step[0], before[1] + step[1], before[2] + step[2], before[3] + step[3]), start))
        best.append(min(options) if options else ((0, 0, 0, 0), -1))
    chosen = [len(seams) - 1]
    while chosen[-1] > 0:
        chosen.append(best[chosen[-1]][1])
    return chosen[::-1]


def piece_arrays(
    cut: Cut,
    phonemes: NDArray[np.integer],
    durations: NDArray[np.integer],
    word_starts: NDArray[np.integer] | Sequence[bool],
    *,
    symbols: Sequence[str],
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint8]]:
    """(phoneme ids uint16 [P], durations uint16 [P], word starts uint8 [P]) of a piece that `cut_at_pauses` gave.

    The pause at a seam becomes END, with the frames that lie in the piece; the durations sum to `cut.n_frames`.
    """
    stops = np.cumsum(np.asarray(durations, dtype=np.int64))[cut.phonemes]
    first = int(stops[0]) - int(durations[cut.phonemes.start])
    edges = np.clip(np.concatenate([[first], stops]), cut.frames.start, cut.frames.stop)
    ids = np.array(phonemes[cut.phonemes], dtype=np.uint16)
    end = symbols.index(END)
    if cut.phonemes.start > 0:
        ids[0] = end
    if cut.phonemes.stop < len(phonemes):
        ids[-1] = end
    starts = np.asarray(word_starts, dtype=np.uint8)[cut.phonemes].copy()
    return ids, np.diff(edges).astype(np.uint16), starts
