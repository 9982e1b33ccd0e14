"""`hocket fuzz`: malformed messages by the thousand, against the real services."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import JsonFlag, TokenisedData, new_folder, print_json


def fuzz(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for fuzz.json, states and logs.")],
    messages: Annotated[int, typer.Option("--messages", "-n", min=10, help="Malformed messages, over all targets.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the messages: the same ones again.")] = 0,
    targets: Annotated[str, typer.Option(help="Which targets, separated by commas.")] = "readers,stage,blocks,door,processes",
    data: TokenisedData = None,
    json_output: JsonFlag = False,
) -> None:
    """Throw malformed messages at the readers and services, and tell whether they stand it. Exit code 1: they do not."""
    new_folder(out)
    from simulations.hostile.fuzz import run_fuzz
    from simulations.simulate import run_to_the_end

    names = [name.strip() for name in targets.split(",") if name.strip()]
    say = (lambda line: None) if json_output else typer.echo
    report = run_to_the_end(run_fuzz(messages, seed, out, targets=names, data=data, say=say))
    if json_output:
        print_json(report)
    else:
        for problem in report["problems"]:
            typer.echo(problem)
        typer.echo(f"{report['messages']} malformed messages: " + ("NOT withstood" if report["problems"] else "withstood"))
    if report["problems"]:
        raise typer.Exit(1)
