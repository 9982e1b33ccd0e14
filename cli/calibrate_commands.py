"""`hocket calibrate`: how far honest results lie apart here, and what follows for audits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.options import JsonFlag, print_json
from common.errors import Code, HocketError

if TYPE_CHECKING:
    from tts.calibrate import Pair, Result


def calibrate(
    preset_name: Annotated[str, typer.Option("--preset", help="Size of the model to measure with.")] = "test",
    stages: Annotated[int, typer.Option(min=1, help="Stages that it is cut into.")] = 3,
    microbatches: Annotated[int, typer.Option(min=8, help="To measure with; half of them count false positives.")] = 12,
    told: Annotated[int, typer.Option("--lies", min=0, help="Microbatches about which lies are told, at most.")] = 16,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Measured beside the processor of a referee.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table here, for [audit] calibration.")] = None,
    against: Annotated[Path | None, typer.Option(help="Count against this table's limits instead of those measured.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure how far honest machines' results lie apart, set the limits of audits by it, and try lies against them.

    Passes are computed in float32 by one thread, and again with other threads, kernels, layouts, batches and processors, and in
    the other dtypes of the device.
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
    result = measure(config, stages, microbatches, device=device, told=told, progress=progress, table=table)
    if out is not None:
        atomic_write(out, (result.table.model_dump_json(indent=1) + "\n").encode())
    if json_output:
        print_json(facts(result))
        return
    tell(result)


def facts(result: Result) -> dict[str, Any]:
    """All of a result, as JSON."""
    from tts.calibration_lies import A19
    from tts.calibration_rates import roc_area, roc_pairs

    measured = result.measured
    honest = _by_pair(result)
    rocs = []
    for (pair, wire), scores in honest.items():
        told = [one for (lie, _, *case), found in measured.told.items() if lie in A19 and case == [pair, wire] for one in found]
        if told:
            rocs.append(_case(pair, wire) | {"area": roc_area(scores, told), "pairs": roc_pairs(scores, told)})
    return {
        "measured": result.table.measured,
        "honest": [
            _case(pair, wire) | {"way": way} | _rates(scores) for (pair, wire, way), scores in measured.honest.items()
        ],
        "honest_by_classes": [_case(pair, wire) | _rates(scores) for (pair, wire), scores in honest.items()],
        "drift": [
            _case(pair, wire) | {"tensor": tensor, **values} for (pair, wire, tensor), values in measured.drift.items()
        ],
        "step": [{"classes": _names(pair), **values} for pair, values in measured.step.items()],
        "lies": [
            _case(pair, wire)
            | {
                "lie": lie, "direction": direction, "told": len(found), "caught": sum(one > 1 for one in found),
                "least_score": _finite(min(found)), "area": roc_area(honest[pair, wire], found),
            }
            for (lie, direction, pair, wire), found in measured.told.items()
            if honest.get((pair, wire))
        ],
        "roc": rocs,
        "table": result.table.model_dump(mode="json"),
    }  # fmt: skip


def _by_pair(result: Result) -> dict[tuple[Pair, str], list[float]]:
    """Honest scores by classes and wire, over all ways."""
    found: dict[tuple[Pair, str], list[float]] = {}
    for (pair, wire, _), scores in result.measured.honest.items():
        found.setdefault((pair, wire), []).extend(scores)
    return found


def _names(pair: Pair) -> list[str]:
    return ["-".join(kind) for kind in pair]


def _case(pair: Pair, wire: str) -> dict[str, Any]:
    return {"classes": _names(pair), "wire": wire}


def _finite(value: float) -> float | None:
    """JSON knows no infinity: what is refused before it is compared has no score."""
    return value if math.isfinite(value) else None


def _rates(scores: list[float]) -> dict[str, Any]:
    from tts.calibration_rates import upper_bound

    failed = sum(score > 1 for score in scores)
    return {
        "passes": len(scores), "false_positives": failed, "rate_at_most": upper_bound(failed, len(scores)),
        "largest_score": _finite(max(scores)),
    }  # fmt: skip


def tell(result: Result) -> None:
    """Print three tables: how far results lie apart, honest passes against the limits, and which lies were found out."""
    measured = result.measured
    typer.echo(f"{result.table.measured}\n")
    typer.echo(f"{'classes':<32} {'wire':<5} {'tensor':<7} {'median':>9} {'largest':>9} {'norm':>9} {'project.':>9}")
    for (pair, wire, tensor), seen in measured.drift.items():
        if tensor != "ce":
            numbers = " ".join(f"{seen[name]:>9.1e}" for name in ("median", "maximum", "norm", "projection"))
            typer.echo(f"{' / '.join(_names(pair)):<32} {wire:<5} {tensor:<7} {numbers}")
    typer.echo(f"\n{'honest passes':<32} {'wire':<5} {'compared':>9} {'refused':>9} {'rate <':>9} {'share of the limit':>19}")
    honest = _by_pair(result)
    for (pair, wire), scores in honest.items():
        found = _rates(scores)
        bound = f"{found['passes']:>9} {found['false_positives']:>9} {found['rate_at_most']:>9.1e}"
        typer.echo(f"{' / '.join(_names(pair)):<32} {wire:<5} {bound} {max(scores):>19.2f}")
    cases = list(dict.fromkeys((pair, wire) for _, _, pair, wire in measured.told))
    if not cases:
        return
    typer.echo("\nlies found out; columns: " + "; ".join(f"{' / '.join(_names(pair))}, {wire}" for pair, wire in cases))
    for lie, direction in dict.fromkeys((lie, direction) for lie, direction, *_ in measured.told):
        shares = [measured.told[lie, direction, pair, wire] for pair, wire in cases]
        typer.echo(f"{lie:<32} {direction:<9}" + "".join(f"{f'{sum(s > 1 for s in found)}/{len(found)}':>8}" for found in shares))
