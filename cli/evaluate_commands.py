"""`hocket evaluate`: how well a checkpoint speaks, beside what its codec and the recordings allow."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.checkpoints import folder_of
from cli.options import plain, replace_own_output
from common.errors import Code, HocketError

if TYPE_CHECKING:
    from tts.evaluation.evaluate import Evaluation
    from tts.evaluation.heldout import Heldout
    from tts.export import Export

THREADED_PARAMETERS = 50_000_000
"""Models smaller than this speak on one thread: their steps are over before another has woken up."""


def evaluate(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="CHECKPOINT", help="An export folder, a demo or run folder that holds one, or a version's CID."),
    ],
    json_path: Annotated[Path | None, typer.Option("--json", help="The JSON file to write.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="A folder for a page to listen to all clips.")] = None,
    data: Annotated[Path | None, typer.Option(help="The dataset with the held-out sentences; otherwise that beside it.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Where the recordings are; otherwise the corpus that comes along.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Measure on at most so many sentences.")] = 100,
    min_words: Annotated[int, typer.Option(min=1, help="Leave shorter sentences out.")] = 4,
    bounds: Annotated[bool, typer.Option("--bounds/--no-bounds", help="Measure the codec and the recordings too.")] = True,
    quality: Annotated[
        bool, typer.Option("--quality/--no-quality", help="Measure DNSMOS and the likeness of the voices too.")
    ] = True,
    rate: Annotated[float, typer.Option(min=0.25, max=4.0, help="Factor on the durations: 1.4 is slower, 0.8 faster.")] = 1.0,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest code at every step.")] = 0.6,
    top_k: Annotated[
        int | None, typer.Option(min=0, show_default="10", help="Codes to choose among at every step; 0: all.")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(min=0.0, max=10.0, show_default="2.0", help="Weight of the text: 1.0 is no guidance.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same speech and the same intervals.")] = 0,
    speaker: Annotated[str | None, typer.Option(help="Only the sentences of this speaker.")] = None,
    language: Annotated[str | None, typer.Option("--language", "-l", help="Only the sentences in this language.")] = None,
    ticket: Annotated[str, typer.Option(help="With a CID: the ticket of the run that made the version.")] = "",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to compute on; otherwise one for each core.")] = None,
) -> None:
    """Let CHECKPOINT speak held-out sentences, and measure how well they are understood.

    The recordings of the same sentences, and what the codec makes of these, bound what can be reached.
    """
    import torch

    from cli.data_progress import Bar
    from tts.evaluation.evaluate import Listeners
    from tts.evaluation.evaluate import evaluate as measure
    from tts.evaluation.figures import KINDS, SYNTHESIS
    from tts.evaluation.page import PageWriter
    from tts.evaluation.quality import Quality
    from tts.evaluation.recogniser import Recogniser
    from tts.evaluation.similarity import SpeakerEmbedder
    from tts.export import load_export
    from tts.voice import Voice, find_export

    threads = threads or os.cpu_count() or 1
    folder = find_export(folder_of(checkpoint, ticket))
    export = load_export(folder)
    how = Voice(export).sampling(seed=seed, temperature=temperature, top_k=top_k, guidance=guidance, rate=rate)
    size = sum(parameter.numel() for parameter in export.stage.parameters())
    torch.set_num_threads(threads if size >= THREADED_PARAMETERS else 1)
    with Bar() as bar:
        listeners = Listeners(
            Recogniser(threads), Quality() if quality else None, SpeakerEmbedder() if quality and bounds else None
        )
        heldout = _heldout(export, folder, data, corpus, language, speaker, limit, min_words)
        page = None if html is None else PageWriter(replace_own_output(html), heldout.items)
        found = measure(
            export,
            heldout.items,
            how,
            listeners,
            kinds=KINDS if bounds else (SYNTHESIS,),
            progress=bar.step,
            keep=None if page is None else page.keep,
            notes=heldout.notes,
        )
    if json_path is not None:
        from common.files import atomic_write

        atomic_write(json_path, json.dumps(found.to_json(), indent=1, ensure_ascii=False).encode() + b"\n")
    for line in table(found):
        typer.echo(line)
    if page is not None:
        typer.echo(f"{page.finish(found, f'Evaluation of {folder}')}: a page to listen to")


def _heldout(
    export: Export,
    folder: Path,
    data: Path | None,
    corpus: Path | None,
    language: str | None,
    speaker: str | None,
    limit: int,
    min_words: int,
) -> Heldout:
    """The sentences to measure on, with their recordings where these are at hand."""
    from tokenizer.corpus import default_corpus, scan_corpus
    from tokenizer.dataset_folder import open_dataset
    from tokenizer.languages import check_language
    from tts.evaluation.heldout import check_fits, choose, dataset_beside, items_of_corpus, items_of_dataset, with_recordings

    data = data or dataset_beside(folder)
    if data is not None:
        dataset = open_dataset(data)
        check_fits(dataset, export.card, export.codec_folder)
        items = with_recordings(items_of_dataset(dataset), corpus or default_corpus())
        if corpus is not None and items and not any(item.recording is not None for item in items):
            detail = f"{corpus} has none of the recordings that {data} was made of"
            raise HocketError(Code.CORPUS_UNREADABLE, detail, remedy="give the corpus that was tokenised")
    else:
        items = items_of_corpus(scan_corpus(corpus or default_corpus()), export.card.languages[0])
    return choose(
        items,
        languages=export.card.languages,
        speakers=tuple(export.card.voices) or export.card.speakers,
        limit=limit,
        min_words=min_words,
        language=None if language is None else check_language(language),
        speaker=speaker,
    )


def table(found: Evaluation) -> list[str]:
    """The figures in lines for a person."""
    from tts.evaluation.evaluate import NOT_READ

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    heads = ("wer", "95 % interval", "cer", "dnsmos", "similarity", "rate error", "rtf", "n")
    lines = [f"{'':<12}" + "".join(f"{head:>15}" for head in heads)]
    for kind, figures in found.figures.items():
        if figures is None:
            continue
        interval = "-" if figures.interval is None else f"{figures.interval[0]:.3f}-{figures.interval[1]:.3f}"
        cells = (
            number(figures.wer, ".3f"), interval, number(figures.cer, ".3f"), number(figures.dnsmos, ".2f"),
            number(figures.similarity, ".3f"), number(figures.rate_error, ".4f"), number(figures.rtf, ".3f"), str(figures.n),
        )  # fmt: skip
        lines.append(f"{kind:<12}" + "".join(f"{cell:>15}" for cell in cells))
    if found.watch is not None:
        whole = found.watch.whole
        lines.append(f"Loss: {whole.loss:.3f} a code with the right text, {whole.loss_shuffled:.3f} with that of other sentences")
    if found.reads_its_text is False:
        lines.append(NOT_READ.capitalize())
    lines += [f"Alarm: {alarm.reason}" for alarm in found.alarms if alarm.kind != "text_not_read"]
    return [plain(line) for line in lines + [f"Note: {note}" for note in found.notes]]
