"""What a dataset is like, in numbers: sums over its rows. Pure but for the reading."""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ERRORS, Code
from tokenizer.dataset_folder import DatasetFolder
from tokenizer.shards import Utterance

WORST = 10
RARE = 5
LISTED_REFUSALS = 200
MAX_LINE = 1 << 20
_REFUSAL = re.compile(r"^(?P<id>.*?): H(?P<code>\d{3,4}) (?P<reason>.*)$")


@dataclass
class Share:
    """Clips and seconds of one speaker or language."""

    clips: int = 0
    seconds: float = 0.0


@dataclass
class Stats:
    """Sums over the rows of a dataset.

    Args:
        seconds, scores: of every row, in order. worst: (score, id, spoken) of the rows that align worst.
        phonemes: occurrences by id. held: rows that are held out. rate: phonemes a second of each row.
        voices: float32 [E] by speaker, of the manifest. likeness: rows and the sum of their cosines with it, by speaker.
        peak_db, rms_db: of the recordings. clipped: recordings with a sample at full scale.
        loudest: (dB, id) of the recording with the most energy.
        refused: number by error code; refusals: the first of them, (id, code, reason).
    """

    frame_rate: float
    n_symbols: int
    seconds: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    speakers: dict[str, Share] = field(default_factory=dict)
    languages: dict[str, Share] = field(default_factory=dict)
    voices: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    likeness: dict[str, tuple[int, float]] = field(default_factory=dict)
    held: int = 0
    untranscribed: int = 0
    worst: list[tuple[float, str, str]] = field(default_factory=list)
    phonemes: NDArray[np.int64] = field(init=False)
    peak_db: list[float] = field(default_factory=list)
    rms_db: list[float] = field(default_factory=list)
    clipped: int = 0
    loudest: tuple[float, str] | None = None
    refused: Counter[int] = field(default_factory=Counter)
    refusals: list[tuple[str, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.phonemes = np.zeros(self.n_symbols, np.int64)

    def add(self, row: Utterance, held: bool) -> None:
        """Count one row."""
        seconds = row.n_frames / self.frame_rate
        self.seconds.append(seconds)
        self.held += held
        for shares, name in ((self.speakers, row.speaker), (self.languages, row.language)):
            share = shares.setdefault(name, Share())
            share.clips, share.seconds = share.clips + 1, share.seconds + seconds
        voice = self.voices.get(row.speaker)
        if voice is not None and row.speaker_embedding is not None and len(row.speaker_embedding) == len(voice):
            clips, total = self.likeness.get(row.speaker, (0, 0.0))
            self.likeness[row.speaker] = clips + 1, total + float(row.speaker_embedding @ voice)
        if not row.text:
            self.untranscribed += 1
            return
        self.scores.append(row.align_score)
        self.rates.append(len(row.phonemes) / seconds)
        self.phonemes += np.bincount(row.phonemes, minlength=self.n_symbols)
        entry = (-row.align_score, row.id, row.spoken)
        (heapq.heappush if len(self.worst) < WORST else heapq.heappushpop)(self.worst, entry)

    def worst_first(self) -> list[tuple[float, str, str]]:
        """(score, id, spoken) of the rows that align worst, the worst first."""
        return [(-score, name, spoken) for score, name, spoken in sorted(self.worst, reverse=True)]

    def as_json(self, symbols: list[str]) -> dict[str, Any]:
        """Everything that a script would read."""

        def spread(values: list[float]) -> dict[str, float] | None:
            if not values:
                return None
            points = np.percentile(values, [0, 5, 50, 95, 100])
            return dict(zip(("least", "p5", "median", "p95", "most"), map(float, points), strict=True))

        def shares(found: dict[str, Share]) -> dict[str, dict[str, float]]:
            return {name: {"clips": share.clips, "hours": share.seconds / 3600} for name, share in sorted(found.items())}

        return {
            "clips": len(self.seconds),
            "heldout_clips": self.held,
            "untranscribed_clips": self.untranscribed,
            "hours": sum(self.seconds) / 3600,
            "seconds": spread(self.seconds),
            "align_score": spread(self.scores),
            "phonemes_per_second": spread(self.rates),
            "speakers": shares(self.speakers),
            "voices": {name: self._voice(name) for name in self.voices},
            "languages": shares(self.languages),
            "phonemes": {symbols[index]: int(count) for index, count in enumerate(self.phonemes) if count},
            "rare_phonemes": [symbols[index] for index, count in enumerate(self.phonemes) if 0 < count < RARE],
            "worst_aligned": [{"id": name, "score": score, "spoken": spoken} for score, name, spoken in self.worst_first()],
            "refused": {f"H{code}": count for code, count in sorted(self.refused.items())},
            "peak_db": spread(self.peak_db),
            "rms_db": spread(self.rms_db),
            "recordings_with_clipping": self.clipped,
        }


    def _voice(self, name: str) -> dict[str, Any]:
        """Of one voice: how like it (cosine) its speaker's rows are on average, and which other voice is the most like it.

        Rows that are no more like their own voice than another one is may be of somebody else.
        """
        others = {other: float(voice @ self.voices[name]) for other, voice in self.voices.items() if other != name}
        nearest = max(others, key=lambda other: others[other], default=None)
        clips, total = self.likeness.get(name, (0, 0.0))
        return {
            "likeness_of_clips": total / clips if clips else None,
            "nearest": nearest,
            "likeness_of_nearest": None if nearest is None else others[nearest],
        }


def collect_stats(dataset: DatasetFolder) -> Stats:
    """Read every row, what was refused, and what the recordings are like.

    Raises:
        HocketError: SHARD_DAMAGED.
    """
    voices = {name: np.array(voice, np.float32) for name, voice in sorted(dataset.manifest.voices.items())}
    stats = Stats(dataset.frame_rate, len(dataset.manifest.phonemes), voices=voices)
    for row, held in dataset.rows():
        stats.add(row, held)
    for line in _lines(dataset.path / "refused.txt"):
        if match := _REFUSAL.match(line):
            code = int(match["code"])
            stats.refused[code] += 1
            if len(stats.refusals) < LISTED_REFUSALS:
                stats.refusals.append((match["id"], code, match["reason"]))
    for line in _lines(dataset.path / "audio.jsonl"):
        facts = _facts(line)
        if facts is not None:
            name, peak, rms, clipped = facts
            stats.peak_db.append(peak)
            stats.rms_db.append(rms)
            stats.clipped += clipped > 0
            if stats.loudest is None or rms > stats.loudest[0]:
                stats.loudest = rms, name
    return stats


def title_of(code: int) -> str:
    """What an error number means."""
    return ERRORS[Code(code)].title if code in set(Code) else f"H{code}"


def _lines(path: Path) -> Iterator[str]:
    """Lines of a file, none where there is no file; one that is longer than MAX_LINE comes in parts."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            yield line.decode("utf-8", errors="replace").rstrip("\n")


def _facts(line: str) -> tuple[str, float, float, float] | None:
    """(id, peak, loudness, share of samples at full scale) of one recording; None for a line that does not say them."""
    try:
        about = json.loads(line)
        numbers = float(about["peak_db"]), float(about["rms_db"]), float(about["clipped"])
        return (str(about["id"]), *numbers) if all(map(math.isfinite, numbers)) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
