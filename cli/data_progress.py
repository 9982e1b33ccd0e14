"""Long work on data, with its progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

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


def train_codec_with_progress(corpora: list[Path], out: Path, *, steps: int, threads: int, seed: int) -> dict[str, Any]:
    """Train a codec; returns minutes of each voice, and the loss at the start and at the end."""
    import torch

    from tokenizer.small_codec_training import train_codec

    torch.set_num_threads(threads)
    with Bar() as bar:
        report = train_codec(
            corpora, out, steps, seed, lambda done, total, loss: bar.step("training", done, total, f"loss {loss:.3f}")
        )
    return {"minutes": report.minutes, "first_loss": report.first_loss, "last_loss": report.last_loss}


def tokenize_with_progress(
    corpus: Path,
    language: str,
    codec: str,
    out: Path,
    key_path: Path,
    *,
    codebooks: int | None,
    heldout: int | None,
    threads: int,
) -> dict[str, Any]:
    """Tokenise a corpus; returns what there is to say about the result."""
    import torch

    from protocol.identity import MemberKey
    from tokenizer.codec import load_codec
    from tokenizer.pipeline import tokenize

    torch.set_num_threads(threads)
    loaded = load_codec(codec, n_codebooks=codebooks)
    with Bar() as bar:
        key = MemberKey.load_or_create(key_path)
        manifest = tokenize(corpus, language, loaded, out, key=key, heldout=heldout, progress=bar.step)
    refused = (out / "refused.txt").read_text(encoding="utf-8").splitlines()
    rows, kept = sum(shard.rows for shard in manifest.shards), sum(shard.rows for shard in manifest.heldout)
    frames = sum(shard.frames for shard in [*manifest.shards, *manifest.heldout])
    return {
        "clips": rows + kept,
        "heldout_clips": kept,
        "refused_clips": len(refused),
        "shards": len(manifest.shards) + len(manifest.heldout),
        "frames": frames,
        "minutes": frames / float(manifest.codec["frame_rate"]) / 60,
        "phonemes": len(manifest.phonemes) - 1,
        "signer": key.member_id,
    }
