"""Commands on text, recordings and codecs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.options import FaultLines, JsonFlag, new_folder, print_json
from common.errors import Code, HocketError

codec_app = typer.Typer(no_args_is_help=True, help="Train a codec of the small kind, or look at one.")


def default_key_path() -> Path:
    """Where a person's own signing key lies when no other is named."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "hocket" / "member.key"


def tokenize(
    corpus: Annotated[
        Path, typer.Argument(help="A folder, a table (.csv, .tsv, .jsonl, .parquet), a WebDataset tar, or one long recording.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the shards and the signed manifest.")],
    language: Annotated[
        str | None,
        typer.Option("--language", "-l", help="BCP 47 tag, such as en or en-US, of the texts whose rows name no language."),
    ] = None,
    codec: Annotated[str, typer.Option("--codec", help="The shipped codec, a codec folder or a hub id.")] = "hocket-16k",
    codebooks: Annotated[int | None, typer.Option(min=1, help="Use only the first so many codebooks of the codec.")] = None,
    heldout: Annotated[
        int | None,
        typer.Option(min=1, help="How many clips to hold out; otherwise those that the corpus names, or one in twenty."),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many clips, to try a corpus or to make a small dataset of it.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that cut and encode; one for each device when not given.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Where the models run: cpu, mps, cuda (all of them), or a list such as cuda:0,cuda:1.")
    ] = "cpu",
    allow_refused: Annotated[
        float, typer.Option("--allow-refused", min=0.0, max=1.0, help="Share of the clips that may be refused.")
    ] = 0.02,
    aligner: Annotated[
        Path | None, typer.Option("--aligner", help="An aligner of an earlier dataset, for a corpus too small to learn one.")
    ] = None,
    speakers: Annotated[
        bool | None,
        typer.Option(
            "--speakers/--no-speakers",
            help="Embed the speaker of every clip (needs the extra `recordings`); done by itself where there is more than one.",
        ),
    ] = None,
    max_clip_s: Annotated[float, typer.Option("--max-clip-s", min=0.1, help="Seconds; longer clips are cut at pauses.")] = 20.0,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Windows of speech embedded together; else by free memory.")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads of each process; the codec's operations are small, more rarely help.")
    ] = 1,
    key: Annotated[Path | None, typer.Option("--key", help="Signing key of the manifest; made when absent.")] = None,
    json_output: JsonFlag = False,
    fault: FaultLines = None,
) -> None:
    """Turn a corpus into shards of tokenised utterances with a signed manifest.

    Broken off at any point, the same command goes on, with the same result.
    """
    from cli.data_progress import TokenizeSettings, tokenize_with_progress

    settings = TokenizeSettings(
        language=language,
        codec=codec,
        codebooks=codebooks,
        heldout=heldout,
        processes=processes,
        device=device,
        allow_refused=allow_refused,
        aligner=aligner,
        speakers=speakers,
        max_clip_s=max_clip_s,
        batch_size=batch_size,
        threads=threads,
        faults=tuple(fault or ()),
        first=first,
    )
    summary = tokenize_with_progress(corpus, out, key or default_key_path(), settings)
    if json_output:
        print_json(summary)
    else:
        refused = f", {summary['refused_clips']} refused (see refused.txt)" if summary["refused_clips"] else ""
        typer.echo(
            f"{out}: {summary['clips']} clips in {summary['shards']} shards, {summary['heldout_clips']} held out{refused}, "
            f"{summary['minutes']:.1f} minutes, {summary['phonemes']} phonemes; manifest signed by {summary['signer']}"
        )


def phonemes(
    text: Annotated[str, typer.Argument(help="A text, or - to read one from standard input, a line at a time.")],
    language: Annotated[str, typer.Option("--language", "-l", help="BCP 47 tag of the text, such as en-US or fr-CA.")] = "en",
    json_output: JsonFlag = False,
) -> None:
    """Show how TEXT is spoken: what is said in words, the phonemes that the model reads (/ begins a word), what is left out."""
    import dataclasses
    import sys

    from tokenizer.phoneme_lines import write_phonemes
    from tokenizer.phonemes import Phonemizer

    phonemizer = Phonemizer(language)
    lines = [text] if text != "-" else [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines:
        raise HocketError(Code.NO_PHONEMES, "nothing came on standard input")
    texts = [phonemizer.phonemize(line) for line in lines]
    if json_output:
        facts = [dataclasses.asdict(read) for read in texts]
        print_json(facts if text == "-" else facts[0])
        return
    for read in texts:
        typer.echo(read.spoken)
        typer.echo(write_phonemes(read))
        if read.dropped:
            typer.echo(f"left out: {' '.join(read.dropped)}")


@codec_app.command("show")
def codec_show(
    codec: Annotated[str, typer.Argument(help="The shipped codec, a codec folder or a hub id.")] = "hocket-16k",
    json_output: JsonFlag = False,
) -> None:
    """Show what a codec is: sample rate, frame rate, codebooks, bit rate, and whether it encodes recordings of any length."""
    import math

    from tokenizer.codec import load_codec

    loaded = load_codec(codec)
    facts = dict(loaded.describe())
    facts["bits_per_second"] = round(loaded.frame_rate * loaded.n_codebooks * math.log2(loaded.codebook_size))
    facts["streams"] = loaded.reach is not None
    facts["window_s"] = loaded.window_frames / loaded.frame_rate if loaded.reach is not None else None
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
    start: Annotated[
        str | None, typer.Option("--from", help="A codec to train further: a folder, or the shipped hocket-16k.")
    ] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", min=1e-6, max=1.0, help="Of AdamW, at its highest.")] = 2e-3,
) -> None:
    """Train a small codec on the recordings of several voices."""
    for corpus in corpora:
        if not corpus.is_dir():
            raise HocketError(Code.CORPUS_UNREADABLE, f"{corpus} is no folder")
    new_folder(out)
    from cli.data_progress import train_codec_with_progress
    from tokenizer.codec import SHIPPED, shipped_folder

    older = None if start is None else shipped_folder() if start == SHIPPED else Path(start)
    facts = train_codec_with_progress(
        corpora, out, steps=steps, threads=threads, seed=seed, start=older, learning_rate=learning_rate
    )
    minutes = sum(facts["minutes"].values())
    typer.echo(f"{out}: trained on {minutes:.1f} minutes, spectral loss {facts['first_loss']:.3f} -> {facts['last_loss']:.3f}")
