"""`hocket say`: speak with a trained checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from common.errors import Code, HocketError


def _folder_of(checkpoint: str, ticket: str) -> Path:
    """The folder of a checkpoint; a version given by CID is fetched once and kept in the user's cache."""
    from protocol.content import parse_cid

    if Path(checkpoint).exists():
        return Path(checkpoint)
    try:
        parse_cid(checkpoint)
    except HocketError:  # no CID, so it is meant as a path
        return Path(checkpoint)
    if not ticket:
        raise HocketError(Code.OPTION_INVALID, "a CID needs --ticket", remedy="give the ticket of the run that made the version")
    from simulations.finish import export_by_cid

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return export_by_cid(ticket, checkpoint, cache / "hocket" / "versions" / checkpoint)


def say(
    text: Annotated[str, typer.Argument(help="What to speak.")],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", "-c", help="An export folder, a demo or run folder that holds one, or a version's CID.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The WAV file to write.")],
    rate: Annotated[float, typer.Option(min=0.25, max=4.0, help="Factor on the durations: 1.4 is slower, 0.8 faster.")] = 1.0,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest code at every step.")] = 0.6,
    top_k: Annotated[int, typer.Option(min=0, help="Codes to choose among at every step; 0: all.")] = 10,
    guidance: Annotated[float, typer.Option(min=0.0, max=10.0, help="Weight of the text: 1.0 is no guidance.")] = 2.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same recording.")] = 0,
    ticket: Annotated[str, typer.Option(help="With a CID: the ticket of the run that made the version.")] = "",
) -> None:
    """Speak TEXT with a checkpoint and write a WAV file."""
    from tts.voice import Speaking, find_export, load_voice, write_speech

    voice = load_voice(find_export(_folder_of(checkpoint, ticket)))
    spoken = write_speech(
        voice, text, out, Speaking(rate=rate, temperature=temperature, top_k=top_k, guidance=guidance, seed=seed)
    )
    typer.echo(f"{out}: {spoken.seconds:.2f} s of speech, made in {spoken.took_s:.2f} s")
