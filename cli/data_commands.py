"""Commands on text, recordings and codecs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.options import JsonFlag, new_folder, print_json
from common.errors import Code, HocketError

codec_app = typer.Typer(no_args_is_help=True, help="Train a codec of the small kind, or look at one.")


def default_key_path() -> Path:
    """Where a person's own signing key lies when no other is named."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "hocket" / "member.key"


def tokenize(
    corpus: Annotated[Path, typer.Argument(help="A folder in LJSpeech layout: metadata.csv and recordings.")],
    language: Annotated[str, typer.Option("--language", "-l", help="BCP 47 tag of the texts, such as en or en-US.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the shards and the signed manifest.")],
    codec: Annotated[str, typer.Option("--codec", help="The shipped codec, a codec folder or a hub id.")] = "hocket-16k",
    codebooks: Annotated[int | None, typer.Option(min=1, help="Use only the first so many codebooks of the codec.")] = None,
    heldout: Annotated[
        int | None,
        typer.Option(min=1, help="How many clips to hold out; otherwise those that the corpus names, or one in twenty."),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads of the codec; its operations are small, more than one rarely helps.")
    ] = 1,
    key: Annotated[Path | None, typer.Option("--key", help="Signing key of the manifest; made when absent.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Turn a corpus into shards of tokenised utterances with a signed manifest."""
    from cli.data_progress import tokenize_with_progress

    summary = tokenize_with_progress(
        corpus, language, codec, out, key or default_key_path(), codebooks=codebooks, heldout=heldout, threads=threads
    )
    if json_output:
        print_json(summary)
    else:
        refused = f", {summary['refused_clips']} refused (see refused.txt)" if summary["refused_clips"] else ""
        typer.echo(
            f"{out}: {summary['clips']} clips in {summary['shards']} shards, {summary['heldout_clips']} held out{refused}, "
            f"{summary['minutes']:.1f} minutes, {summary['phonemes']} phonemes; manifest signed by {summary['signer']}"
        )


def phonemes(
    text: Annotated[str, typer.Argument(help="A sentence.")],
    language: Annotated[str, typer.Option("--language", "-l", help="BCP 47 tag of the text.")] = "en",
    json_output: JsonFlag = False,
) -> None:
    """Show how TEXT is spoken: expanded numbers and the phonemes that the model reads."""
    from tokenizer.phonemes import Phonemizer

    spoken = Phonemizer(language).phonemize(text)
    if json_output:
        print_json(
            {"spoken": spoken.spoken, "phonemes": spoken.phonemes, "word_starts": [bool(start) for start in spoken.word_starts]}
        )
    else:
        typer.echo(spoken.spoken)
        typer.echo(" ".join(spoken.phonemes))


@codec_app.command("show")
def codec_show(
    codec: Annotated[str, typer.Argument(help="The shipped codec, a codec folder or a hub id.")] = "hocket-16k",
    json_output: JsonFlag = False,
) -> None:
    """Show what a codec is: sample rate, frame rate, codebooks and bit rate."""
    import math

    from tokenizer.codec import load_codec

    loaded = load_codec(codec)
    facts = dict(loaded.describe())
    facts["bits_per_second"] = round(loaded.frame_rate * loaded.n_codebooks * math.log2(loaded.codebook_size))
    if json_output:
        print_json(facts)
    else:
        for name, value in facts.items():
            typer.echo(f"{name:>16}  {value}")


@codec_app.command("train")
def codec_train(
    corpora: Annotated[list[Path], typer.Argument(help="Folders of recordings, one voice each.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the codec.")],
    steps: Annotated[int, typer.Option(min=1, help="Training steps; some 2200 for 80 minutes of speech.")] = 2200,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the initial weights and of the crops.")] = 0,
) -> None:
    """Train a small codec on the recordings of several voices."""
    for corpus in corpora:
        if not corpus.is_dir():
            raise HocketError(Code.CORPUS_UNREADABLE, f"{corpus} is no folder")
    new_folder(out)
    from cli.data_progress import train_codec_with_progress

    facts = train_codec_with_progress(corpora, out, steps=steps, threads=threads, seed=seed)
    minutes = sum(facts["minutes"].values())
    typer.echo(f"{out}: trained on {minutes:.1f} minutes, spectral loss {facts['first_loss']:.3f} -> {facts['last_loss']:.3f}")
