"""`hocket say`: speak with a trained checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.checkpoints import folder_of
from common.errors import Code, HocketError

MAX_TEXT_BYTES = 4 * 2**20


def _text_of(text: str, file: Path | None) -> str:
    """What to speak: the argument, a file, or standard input for `-`."""
    if file is not None:
        if text:
            raise HocketError(Code.OPTION_INVALID, "a text and --file were both given", remedy="give one of them")
        try:
            if file.stat().st_size > MAX_TEXT_BYTES:
                raise HocketError(Code.OPTION_INVALID, f"{file} has more than {MAX_TEXT_BYTES} bytes")
            return file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise HocketError(Code.OPTION_INVALID, f"{file} is no text in UTF-8 that can be read ({error})") from error
    if text != "-":
        return text
    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise HocketError(Code.OPTION_INVALID, f"standard input has more than {MAX_TEXT_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HocketError(Code.OPTION_INVALID, "standard input is no text in UTF-8") from error


def say(
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", "-c", help="An export folder, a demo or run folder that holds one, or a version's CID.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The WAV file to write; - streams WAV to standard output.")],
    text: Annotated[str, typer.Argument(help="What to speak; - reads standard input.")] = "",
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A text file to speak.")] = None,
    rate: Annotated[float, typer.Option(min=0.25, max=4.0, help="Factor on the durations: 1.4 is slower, 0.8 faster.")] = 1.0,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest code at every step.")] = 0.6,
    top_k: Annotated[
        int | None,
        typer.Option(min=0, show_default="10", help="Codes to choose among at every step, at most those of a codebook; 0: all."),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=10.0, show_default="2.0", help="Weight of the text; a model without condition dropout takes only 1.0."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same recording.")] = 0,
    speaker: Annotated[str | None, typer.Option(help="One of the checkpoint's speakers; otherwise the first.")] = None,
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="One of the checkpoint's languages; otherwise the first.")
    ] = None,
    phonemes: Annotated[
        bool, typer.Option("--phonemes", help="The text is phonemes, as `hocket phonemes` writes them; a line is a sentence.")
    ] = False,
    ticket: Annotated[str, typer.Option(help="With a CID: the ticket of the run that made the version.")] = "",
) -> None:
    """Speak TEXT with a checkpoint and write a WAV file; long texts are cut at sentences."""
    from tts.voice import find_export, load_voice, write_wav

    written = _text_of(text, file)
    voice = load_voice(find_export(folder_of(checkpoint, ticket)), language, speaker)
    lines = voice.lines_of_phonemes(written) if phonemes else voice.lines(written)
    how = voice.sampling(rate=rate, temperature=temperature, top_k=top_k, guidance=guidance, seed=seed)
    if out == "-":
        from cli.wav_stream import stream_wav

        stream_wav(sys.stdout.buffer, voice.stream(lines, how), voice.codec.sample_rate)
        return
    spoken = voice.speak_lines(lines, how)
    write_wav(Path(out), spoken.samples, spoken.sample_rate)
    typer.echo(f"{out}: {spoken.seconds:.2f} s of speech, made in {spoken.took_s:.2f} s")
