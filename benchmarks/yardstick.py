"""What the swarm costs a voice: a finished run beside one process that trains on the same frames in larger steps.

The process takes as many inner steps, each on the leases of all replicas together: the big batch that Local-SGD gives up.
Both voices then speak the same held-out sentences to the same recogniser.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.result import BenchResult, machine_facts
from benchmarks.run_again import Trained, read_run, run_facts, train_again
from common.errors import Code, HocketError
from simulations.simulate import run_module


def export_beside(checkpoint: Path, trained: Trained, out: Path) -> None:
    """Write what was trained as an export with the card and the codec of the run's own."""
    from tts.export import read_card, write_export
    from tts.stages import merged_state

    weights = {name: value.numpy() for name, value in merged_state(trained.trainer.stages).items()}
    write_export(out, weights, read_card(checkpoint), checkpoint / "codec")


def word_errors(export: Path, data: Path, corpus: Path | None, found: Path) -> dict[str, Any]:
    """What `hocket evaluate` says of an export's synthesis.

    Raises:
        HocketError: as `run_module`: EXTRA_MISSING without the packages that listen.
    """
    arguments = ["evaluate", str(export), "--data", str(data), "--json", str(found), "--no-quality", "--no-bounds"]
    arguments += [] if corpus is None else ["--corpus", str(corpus)]
    asyncio.run(run_module("cli.main", arguments, found.with_suffix(".log")))
    figures: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))["synthesis"]
    return figures


def measure(folder: Path, *, corpus: Path | None, threads: int, say: Callable[[str], None]) -> BenchResult:
    """Compare the run in `folder` with one process.

    Args:
        folder: of a demo, with `checkpoint/`; gets `yardstick/`, the process's export.
        corpus: where the recordings are that the dataset was made of; None: the corpus that comes along.

    Raises:
        HocketError: OPTION_INVALID when the folder holds no finished run with an export, EXTRA_MISSING.
    """
    report, config, data = read_run(folder)
    if not (folder / "checkpoint").is_dir():
        raise HocketError(Code.OPTION_INVALID, f"{folder} has no checkpoint", remedy="give the folder of a demo")
    replicas = config.rounds.replicas_wanted
    trained = train_again(config, data, leases_a_step=replicas, threads=threads, say=say, what="one process")
    export_beside(folder / "checkpoint", trained, folder / "yardstick")
    rows = [
        {"row": "run", **run_facts(report, config), **spoken(folder / "checkpoint", folder, data, corpus)},
        {"row": "one process", **trained.facts, **spoken(folder / "yardstick", folder, data, corpus)},
    ]
    result = BenchResult("yardstick", machine_facts(list(range(threads))))
    result.rows = rows
    result.ratios = {
        "wer_run_minus_one_process": rows[0]["wer"] - rows[1]["wer"],
        "heldout_loss_run_vs_one_process": rows[0]["heldout_loss"] / rows[1]["heldout_loss"],
    }
    return result


def spoken(export: Path, folder: Path, data: Path, corpus: Path | None) -> dict[str, Any]:
    """Word errors of an export with their interval."""
    figures = word_errors(export, data, corpus, folder / f"{export.name}-heard.json")
    return {"wer": figures["wer"], "interval": figures["interval"], "n": figures["n"]}
