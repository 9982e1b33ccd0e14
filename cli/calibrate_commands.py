"""`hocket calibrate`: how far honest results lie apart here, and what follows for audits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import JsonFlag, print_json
from common.errors import Code, HocketError

if TYPE_CHECKING:
    from tts.calibrate import Result


def calibrate(
    preset_name: Annotated[str, typer.Option("--preset", help="Size of the model to measure with.")] = "test",
    stages: Annotated[int, typer.Option(min=1, help="Stages that it is cut into.")] = 3,
    microbatches: Annotated[int, typer.Option(min=8, help="To measure with; half of them count false positives.")] = 12,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table here, for [audit] calibration.")] = None,
    against: Annotated[Path | None, typer.Option(help="Count against this table's limits instead of those measured.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure how far honest machines' results lie apart, set the limits of audits by it, and try lies against them.

    Passes are computed in float32 by one thread, and again with other threads, kernels, layouts and batches, and in bfloat16.
    """
    import sys

    from common.files import atomic_write
    from protocol.calibration import read_calibration
    from tts.calibrate import calibrate as measure
    from tts.config import preset

    config = preset(preset_name, n_codebooks=4, codebook_size=64, n_phonemes=40)
    if out is not None and out.exists():
        raise HocketError(Code.OUTPUT_EXISTS, str(out))

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {total} passes" + ("\n" if done == total else ""))

    table = read_calibration(against) if against is not None else None
    result = measure(config, stages, microbatches, progress=progress, table=table)
    if out is not None:
        atomic_write(out, (result.table.model_dump_json(indent=1) + "\n").encode())
    if json_output:
        print_json(facts(result))
        return
    tell(result)


def facts(result: Result) -> dict[str, Any]:
    """All of a result, as JSON."""
    measured = result.measured
    return {
        "measured": result.table.measured,
        "honest_comparisons": result.honest,
        "false_positives": result.false_positives,
        "drift": [
            {"dtypes": list(pair), "wire": wire, "tensor": tensor, **values}
            for (pair, wire, tensor), values in measured.drift.items()
        ],
        "step": [{"dtypes": list(pair), **values} for pair, values in measured.step.items()],
        "lies": [
            {"lie": lie, "dtypes": list(pair), "wire": wire, "told": told, "caught": caught}
            for (lie, pair, wire), (told, caught) in measured.caught.items()
        ],
        "table": result.table.model_dump(mode="json"),
    }


def tell(result: Result) -> None:
    """Print two tables: what was measured, and which lies were found out."""
    typer.echo(f"{result.table.measured}\n")
    typer.echo(f"{'dtypes':<20} {'wire':<5} {'tensor':<7} {'median':>9} {'largest':>9} {'norm':>9} {'project.':>9}")
    for (pair, wire, tensor), seen in result.measured.drift.items():
        if tensor != "ce":
            numbers = " ".join(f"{seen[name]:>9.1e}" for name in ("median", "maximum", "norm", "projection"))
            typer.echo(f"{'/'.join(pair):<20} {wire:<5} {tensor:<7} {numbers}")
    typer.echo(f"\n{result.false_positives} of {result.honest} honest results were taken for wrong ones\n")
    pairs = list(dict.fromkeys((pair, wire) for _, pair, wire in result.measured.caught))
    typer.echo(f"{'lies found out':<32} " + " ".join(f"{pair[1][:5] + '/' + wire:>11}" for pair, wire in pairs))
    for lie in dict.fromkeys(lie for lie, _, _ in result.measured.caught):
        shares = [result.measured.caught[lie, pair, wire] for pair, wire in pairs]
        typer.echo(f"{lie:<32} " + " ".join(f"{f'{caught}/{told}':>11}" for told, caught in shares))
