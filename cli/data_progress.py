"""Long work on data, with its progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from tokenizer.audio_progress import AudioProgress

PLAIN_LINE_EVERY_S = 5.0


class Bar:
    """Progress of named parts of one job. Call `step(part, done, total, detail)`; use as a context manager."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._progress: Progress | None = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, TextColumn("{task.fields[detail]}"), console=self._console)
        self._tasks: dict[str, TaskID] = {}
        self._next_line: dict[str, float] = {}

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, part: str, done: int, total: int, detail: str = "") -> None:
        """`done` of `total` of a part are finished."""
        if self._progress is not None:
            if part not in self._tasks:
                self._tasks[part] = self._progress.add_task(part, total=total, detail=detail)
            self._progress.update(self._tasks[part], completed=done, total=total, detail=detail)
            return
        now = time.monotonic()
        if done >= total or now >= self._next_line.get(part, 0.0):
            self._next_line[part] = now + PLAIN_LINE_EVERY_S
            tail = f", {detail}" if detail else ""
            self._console.print(f"{part}: {done} of {total}{tail}", markup=False, highlight=False, soft_wrap=True)


def train_codec_with_progress(
    corpora: list[Path], out: Path, *, steps: int, threads: int, seed: int, start: Path | None, learning_rate: float
) -> dict[str, Any]:
    """Train a codec; returns minutes of each voice, and the loss at the start and at the end."""
    import torch

    from tokenizer.small_codec_training import TrainingSettings, train_codec

    torch.set_num_threads(threads)
    with Bar() as bar:
        report = train_codec(
            corpora,
            out,
            steps,
            seed,
            lambda done, total, loss: bar.step("training", done, total, f"loss {loss:.3f}"),
            settings=TrainingSettings(learning_rate=learning_rate),
            start=start,
        )
    return {"minutes": report.minutes, "first_loss": report.first_loss, "last_loss": report.last_loss}


@dataclass(frozen=True)
class TokenizeSettings:
    """What a person has said about tokenising; see the command's help."""

    language: str | None
    codec: str
    codebooks: int | None
    heldout: int | None
    processes: int | None
    device: str
    allow_refused: float
    aligner: Path | None
    speakers: bool | None
    max_clip_s: float
    batch_size: int | None
    threads: int
    faults: tuple[str, ...] = ()
    first: int | None = None


class Hours:
    """How much sound is done, how fast, and how long the rest will take, as a detail of the bar.

    Args:
        show: is given (part, done, total, detail). clock: seconds that only rise.
    """

    def __init__(self, show: Callable[[str, int, int, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._phase, self._since, self._latest = "", clock(), clock()

    def __call__(self, progress: AudioProgress) -> None:
        if progress.phase != self._phase:  # it began when the one before it ended
            self._phase, self._since = progress.phase, self._latest
        self._latest = self._clock()
        detail = f"{progress.hours:.2f} h done"
        speed = progress.speed(self._latest - self._since)
        if speed > 0:
            detail += f", {speed:.1f} x real time"
        fresh = progress.seconds - progress.before
        if progress.done and speed > 0 and fresh > 0:
            # What is left is taken to be as long as what is done.
            left = progress.seconds / progress.done * (progress.total - progress.done) / speed
            detail += f", {duration(left)} left"
        self._show(progress.phase, progress.done, progress.total, detail)


def duration(seconds: float) -> str:
    """`seconds` for a person: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def tokenize_with_progress(corpus: Path, out: Path, key_path: Path, settings: TokenizeSettings) -> dict[str, Any]:
    """Tokenise a corpus; returns what there is to say about the result."""
    import torch

    from common.log import set_up_logging
    from protocol.identity import MemberKey
    from tokenizer.codec import load_codec
    from tokenizer.pipeline import tokenize
    from tokenizer.worker_pool import named_devices

    torch.set_num_threads(settings.threads)
    devices = named_devices(settings.device)
    loaded = load_codec(settings.codec, n_codebooks=settings.codebooks)
    with Bar() as bar:
        set_up_logging("WARNING")
        logging.getLogger("tokenizer").setLevel(logging.INFO)
        key = MemberKey.load_or_create(key_path)
        manifest = tokenize(
            corpus,
            settings.language,
            loaded,
            out,
            key=key,
            heldout=settings.heldout,
            progress=lambda part, done, total: bar.step(part, done, total) if part not in ("audio", "recordings") else None,
            processes=settings.processes or len(devices),
            devices=devices,
            allow_refused=settings.allow_refused,
            aligner=settings.aligner,
            speakers=settings.speakers,
            max_clip_s=settings.max_clip_s,
            batch_size=settings.batch_size,
            heard=Hours(bar.step),
            fault_plan=settings.faults,
            first=settings.first,
        )
    rows, kept = sum(shard.rows for shard in manifest.shards), sum(shard.rows for shard in manifest.heldout)
    frames = sum(shard.frames for shard in [*manifest.shards, *manifest.heldout])
    return {
        "clips": rows + kept,
        "heldout_clips": kept,
        "refused_clips": manifest.refused_clips,
        "untranscribed_clips": manifest.untranscribed_rows,
        "shards": len(manifest.shards) + len(manifest.heldout),
        "frames": frames,
        "minutes": frames / float(manifest.codec["frame_rate"]) / 60,
        "phonemes": len(manifest.phonemes) - 1,
        "languages": manifest.languages,
        "speakers": manifest.speakers,
        "voices": sorted(manifest.voices),
        "licences": manifest.licences,
        "dropped_characters": manifest.dropped_characters,
        "signer": key.member_id,
    }
