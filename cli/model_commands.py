"""`hocket model show`: what the stages of a model take, before anything is started."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cli.options import JsonFlag, byte_count, print_json

COLUMNS = [
    ("stage", 5), ("blocks", 13), ("parameters", 11), ("FLOP/frame", 11), ("state", 10), ("in flight", 10), ("memory", 10),
    ("a hop", 10),
]  # fmt: skip

model_app = typer.Typer(no_args_is_help=True, help="Look at a model before a run.")


@model_app.callback()
def model() -> None:
    """One command so far, more to come beside it."""


@model_app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="test, demo, base, large or xl.")],
    stages: Annotated[int, typer.Option("--stages", min=1, help="Into how many stages it is cut.")] = 1,
    memory: Annotated[
        list[str] | None, typer.Option("--memory", help="Memory of each stage's card, such as 6GiB; once a stage. Cuts to fit.")
    ] = None,
    codebooks: Annotated[int, typer.Option(min=1, help="Codebooks of the codec.")] = 8,
    codebook_size: Annotated[int, typer.Option(min=2, help="Codes of a codebook.")] = 1024,
    phonemes: Annotated[int, typer.Option(min=2, help="Size of the phoneme inventory.")] = 100,
    utterances: Annotated[int, typer.Option(min=1, help="Utterances of a microbatch.")] = 4,
    frames: Annotated[int, typer.Option(min=1, help="Frames of its longest utterance.")] = 256,
    in_flight: Annotated[int, typer.Option(min=1, help="Microbatches that a replica has in flight.")] = 4,
    json_output: JsonFlag = False,
) -> None:
    """Show parameters, arithmetic, memory and bytes a hop of every stage of PRESET."""
    from tts.config import preset
    from tts.footprint import Load, stage_footprint
    from tts.partition import cuts_of, partition, partition_to_fit

    config = preset(name, n_codebooks=codebooks, codebook_size=codebook_size, n_phonemes=phonemes)
    load = Load(utterances=utterances, frames=frames, in_flight=in_flight)
    specs = partition_to_fit(config, [byte_count(size) for size in memory], load) if memory else partition(config, stages)
    footprints = [stage_footprint(config, spec, load) for spec in specs]
    total = sum(footprint.parameters for footprint in footprints)
    if json_output:
        rows = [
            {
                "stage": spec.index,
                "layers": [spec.first_layer, spec.last_layer],
                **asdict(footprint),
                "memory_bytes": footprint.memory_bytes,
            }
            for spec, footprint in zip(specs, footprints, strict=True)
        ]
        print_json({"preset": name, "parameters": total, "cuts": list(cuts_of(specs)), "load": asdict(load), "stages": rows})
        return
    typer.echo(f"{name}: {_count(total)} parameters, {config.n_layers} decoder blocks of width {config.d_model}")
    typer.echo(" ".join(f"{title:>{width}}" for title, width in COLUMNS))
    for spec, footprint in zip(specs, footprints, strict=True):
        parts = "+".join(["text"] * spec.is_first + [str(len(spec.layers))] * bool(len(spec.layers)) + ["heads"] * spec.is_last)
        flight = footprint.in_flight * footprint.activation_bytes
        sizes = (footprint.state_bytes, flight, footprint.memory_bytes, footprint.hop_bytes)
        counts = (_count(footprint.parameters), _count(footprint.flops_per_frame))
        cells = [str(spec.index), parts, *counts, *map(_bytes, sizes)]
        typer.echo(" ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)))
    typer.echo(f"state: weights, base, gradients and AdamW's moments in float32; in flight: {in_flight} microbatches of")
    typer.echo(f"{utterances} utterances of {frames} frames; a hop: hidden states of one, float32; as much gradient comes back")


def _count(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
