"""The command `hocket`.

Commands import what they need when they run, so that `hocket --help` is quick and a process holds only its own parts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from cli.audit_commands import audit_app
from cli.bench_commands import bench_app
from cli.calibrate_commands import calibrate
from cli.checkpoint_commands import checkpoint_app
from cli.data_commands import codec_app, phonemes, tokenize
from cli.dataset_commands import dataset_app
from cli.evaluate_commands import evaluate
from cli.fuzz_commands import fuzz
from cli.key_commands import key_app
from cli.members_commands import members_app
from cli.model_commands import model_app
from cli.run_commands import coordinator, demo, health, simulate, soak, status, ticket_app, worker
from cli.voice_commands import say
from common.errors import HocketError

app = typer.Typer(
    name="hocket",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train open text-to-speech models together with other people's machines.",
)
app.command(rich_help_panel="Start here")(demo)
app.command(rich_help_panel="Start here")(say)
app.command(rich_help_panel="Run")(coordinator)
app.command(rich_help_panel="Run")(worker)
app.command(rich_help_panel="Run")(status)
app.command(rich_help_panel="Run")(health)
app.add_typer(ticket_app, name="ticket", rich_help_panel="Run")
app.add_typer(members_app, name="members", rich_help_panel="Run")
app.add_typer(key_app, name="key", rich_help_panel="Run")
app.add_typer(audit_app, name="audit", rich_help_panel="Run")
app.command(rich_help_panel="Run")(simulate)
app.command(rich_help_panel="Run")(soak)
app.add_typer(checkpoint_app, name="checkpoint", rich_help_panel="Run")
app.command(rich_help_panel="Data")(tokenize)
app.command(rich_help_panel="Data")(phonemes)
app.add_typer(dataset_app, name="dataset", rich_help_panel="Data")
app.add_typer(codec_app, name="codec", rich_help_panel="Data")
app.command(rich_help_panel="Measure")(evaluate)
app.add_typer(model_app, name="model", rich_help_panel="Measure")
app.command(rich_help_panel="Measure")(calibrate)
app.add_typer(bench_app, name="bench", rich_help_panel="Measure")
app.command(rich_help_panel="Measure")(fuzz)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"hocket {version('hocket')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the whole traceback of a fault of ours.")] = False,
) -> None:
    """Options that stand before the command."""
    if debug:
        os.environ["HOCKET_DEBUG"] = "1"


def understood(error: BaseException) -> HocketError | None:
    """The numbered error that `error` is, or the first one inside an exception group; None: a fault of ours."""
    if isinstance(error, HocketError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = understood(inner)
            if found is not None:
                return found
    return None


def report_own_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in one line that the fault is ours, and keep the traceback in a file; with --debug print it."""
    text = "".join(traceback.format_exception(kind, error, trace))
    if os.environ.get("HOCKET_DEBUG"):
        sys.stderr.write(text)
        return
    with tempfile.NamedTemporaryFile("w", prefix="hocket-fault-", suffix=".log", delete=False, encoding="utf-8") as log:
        log.write(text)
    what = " ".join(f"{kind.__name__}: {error}".split())[:200]
    sys.stderr.write(f"hocket: a fault of ours, please report it with the file {Path(log.name)}: {what}\n")


def main() -> None:
    """Run the command line; a numbered error becomes one line on stderr and its exit code, a fault of ours exit code 1."""
    sys.excepthook = report_own_fault
    command = typer.main.get_command(app)
    try:
        command()
    except (HocketError, BaseExceptionGroup) as error:
        known = understood(error)
        if known is None:
            raise
        sys.stdout.flush()
        sys.stderr.write(known.line() + "\n")
        sys.exit(known.exit_code)


if __name__ == "__main__":
    main()
