"""Options that several commands share, and the reading of values that a person types."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import Code, HocketError
from common.faults import Fault, Faults

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for a script instead of lines for a person.")]
FaultLines = Annotated[list[str] | None, typer.Option("--fault", hidden=True, help="point[:key=value,...]:kill|stop|term|fail")]

TokenisedData = Annotated[
    Path | None, typer.Option("--data", help="A folder made by `hocket tokenize`; otherwise a corpus is tokenised.")
]
TicketFrom = Annotated[
    str | None,
    typer.Option("--ticket-from", help="A file whose first line is the ticket; -: wait for it on standard input."),
]


def _log_level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise HocketError(Code.OPTION_INVALID, f"{text!r} is not DEBUG, INFO, WARNING or ERROR")
    return text.upper()


LogLevel = Annotated[str, typer.Option("--log-level", callback=_log_level, help="DEBUG, INFO, WARNING or ERROR.")]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def byte_count(text: str) -> int:
    """Bytes from `700M`, `1.5 GiB` or `1048576`; units are powers of 1024; OPTION_INVALID for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise HocketError(Code.OPTION_INVALID, f"{text!r} is not a number of bytes such as 700M or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """Seconds from `90m`, `12h` or `7d`; OPTION_INVALID for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", text, re.IGNORECASE)
    if match is None:
        raise HocketError(Code.OPTION_INVALID, f"{text!r} is not a time such as 90m, 12h or 7d")
    return float(match[1]) * _SECONDS[match[2].lower()]


def new_folder(path: Path) -> Path:
    """`path`, made when absent; OUTPUT_EXISTS when it holds anything, since nothing of a person's is overwritten."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise HocketError(Code.OUTPUT_EXISTS, str(path))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HocketError(Code.STATE_UNREADABLE, f"{path} ({error.strerror})") from error
    return path


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


def plain(text: str) -> str:
    """`text` without characters that a terminal would obey: strangers wrote it."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def parse_faults(lines: list[str] | None) -> Faults:
    """The fault plan of this process, from its hidden `--fault` options."""
    return Faults([Fault.parse(line) for line in lines or []])


OWN_OUTPUT = ".hocket-output"


def replace_own_output(path: Path) -> Path:
    """An empty folder at `path` for a command that may be run again: what an earlier run of ours left there is removed.

    A marker file tells our own output from anything else, which is never touched (OUTPUT_EXISTS).
    """
    if (path / OWN_OUTPUT).is_file():
        shutil.rmtree(path)
    new_folder(path)
    (path / OWN_OUTPUT).write_text("made by hocket; a new run replaces this folder\n", encoding="utf-8")
    return path


def ticket_line(ticket: str | None, source: str | None) -> str:
    """The ticket as it was given: on the command line, or as the first line of a file or of standard input (`-`)."""
    if (ticket is None) == (source is None):
        what = "no ticket is given" if ticket is None else "two tickets are given"
        remedy = "give the line that begins with hocket1:, or --ticket-from and the file that holds it"
        raise HocketError(Code.OPTION_INVALID, what, remedy=remedy)
    if ticket is not None:
        return ticket
    assert source is not None
    try:
        line = sys.stdin.readline() if source == "-" else Path(source).read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise HocketError(Code.TICKET_INVALID, f"{source} cannot be read ({error})") from error
    if not line.strip():
        raise HocketError(Code.TICKET_INVALID, f"{'standard input' if source == '-' else source} holds none")
    return line.strip()
