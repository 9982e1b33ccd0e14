"""`hocket bench NAME`: one measured claim each."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli.options import byte_count
from common.stop import stop_signals

if TYPE_CHECKING:
    from benchmarks.result import BenchResult

JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the result here.")]

bench_app = typer.Typer(no_args_is_help=True, help="Measure a claim; every benchmark can write JSON.")


@bench_app.callback()
def bench() -> None:
    """One command per claim."""
    for number in stop_signals():
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind, so that what a benchmark has started is ended on the way out."""
    raise SystemExit(128 + number)


def _show(result: BenchResult, columns: tuple[str, ...], json_path: Path | None) -> None:
    """Print these columns of a result, and write all of it where that was asked for."""
    from benchmarks.result import print_table, write_result

    print_table(result, columns)
    if json_path is not None:
        write_result(json_path, result)


@bench_app.command()
def pipeline(
    json_path: JsonPath = None,
    inner_steps: Annotated[int, typer.Option(min=5, help="Inner steps that are measured, after the warm-up.")] = 30,
    warm_up: Annotated[int, typer.Option(min=1, help="Inner steps before the measurement.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often each row is measured; medians are reported.")] = 3,
    microbatches: Annotated[int, typer.Option(min=1, help="Microbatches of an inner step, all in flight.")] = 8,
    microbatch_size: Annotated[int, typer.Option(min=1, help="Utterances of a microbatch.")] = 4,
    preset: Annotated[str, typer.Option(help="Model preset.")] = "demo",
    rows: Annotated[str, typer.Option(help="Which rows, separated by commas.")] = (
        "single,single1,pipeline2,pipeline4,pipeline2_bf16,pipeline4_bf16,torch2,torch4"
    ),
) -> None:
    """Frames per second of a pipeline of processes, beside one process and torch.distributed.pipelining.

    Everything runs on the same two cores, with the same global batch, microbatches and number in flight.
    """
    from benchmarks.pipeline import PipelineBench, measure

    settings = PipelineBench(
        inner_steps=inner_steps,
        warm_up=warm_up,
        repeats=repeats,
        microbatches=microbatches,
        microbatch_size=microbatch_size,
        preset=preset,
    )
    result = measure(settings, rows=[name.strip() for name in rows.split(",") if name.strip()], say=typer.echo)
    _show(result, ("row", "what", "frames_per_second", "slowest", "fastest", "step_median_s"), json_path)


@bench_app.command()
def alone(
    run: Annotated[Path, typer.Argument(help="Folder of a finished demo or simulation.")],
    json_path: JsonPath = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the worker alone.")] = 2,
) -> None:
    """Held-out loss of a run beside one worker that takes as many inner steps by itself, on the same data."""
    from benchmarks.alone import measure

    result = measure(run, threads=threads, say=typer.echo)
    _show(result, ("row", "heldout_loss", "inner_steps", "frames", "seconds"), json_path)


@bench_app.command()
def yardstick(
    run: Annotated[Path, typer.Argument(help="Folder of a finished demo.")],
    json_path: JsonPath = None,
    corpus: Annotated[Path | None, typer.Option(help="The recordings, where the demo had another corpus than its own.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the one process.")] = 2,
) -> None:
    """Word errors of a run's voice beside one process that trains on the same frames in larger steps."""
    from benchmarks.yardstick import measure

    result = measure(run, corpus=corpus, threads=threads, say=typer.echo)
    _show(result, ("row", "wer", "n", "heldout_loss", "inner_steps", "frames", "seconds"), json_path)


@bench_app.command()
def tokenize(
    json_path: JsonPath = None,
    rows: Annotated[str, typer.Option(help="MINUTES:SPEAKERS of the recordings, separated by commas.")] = "5:3,15:8,45:21",
    repeats: Annotated[int, typer.Option(min=1, help="How often both ways of cutting are timed; medians are reported.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of every process.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Processes of `hocket tokenize`.")] = 1,
) -> None:
    """Peak memory of tokenising long recordings, and speed beside the straightforward way with the same models.

    The recordings are joined from ../shared/speech, or else from the shipped corpus, with subtitles that name pretended speakers.
    """
    from benchmarks.tokenize import TokenizeBench, measure, parse_rows

    settings = TokenizeBench(rows=parse_rows(rows), repeats=repeats, threads=threads, processes=processes)
    result = measure(settings, say=typer.echo)
    _show(result, ("row", "seconds", "x_real_time", "peak_rss_mib", "clips", "refused"), json_path)


@bench_app.command()
def reader(
    json_path: JsonPath = None,
    count: Annotated[int, typer.Option(min=100, help="Utterances.")] = 9000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs that are read one after the other.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Processes of each reader; medians are reported.")] = 3,
) -> None:
    """Samples per second, memory and time to resume, beside mosaicml-streaming and webdataset on the same utterances.

    Each reader runs in a process of its own on one core. The others are installed into .venv-bench on first use.
    """
    from benchmarks.reader import ReaderBench, measure

    result = measure(ReaderBench(count=count, epochs=epochs, repeats=repeats), say=typer.echo)
    _show(result, ("row", "samples_per_second", "first_epoch_s", "last_epoch_s", "grown_mib", "resume_ms"), json_path)


@bench_app.command()
def checkpoint(
    json_path: JsonPath = None,
    preset: Annotated[str, typer.Option(help="Model preset, as one stage.")] = "demo",
    saves: Annotated[int, typer.Option(min=2, help="Saves of each way and repeat, after the first.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps between two saves.")] = 60,
    repeats: Annotated[int, typer.Option(min=1, help="How often the three ways are measured in turn.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the training.")] = 1,
    folder: Annotated[Path | None, typer.Option(help="Of the disk to write to; otherwise that of temporary files.")] = None,
) -> None:
    """Longest pause of a training thread by the background writer, a plain save, and torch.distributed.checkpoint.async_save."""
    from benchmarks.checkpoint import CheckpointBench, measure

    settings = CheckpointBench(model=preset, saves=saves, steps=steps, repeats=repeats, threads=threads)
    result = measure(settings, folder=folder, say=typer.echo)
    _show(result, ("row", "longest_pause_ms", "median_pause_ms", "worst_pause_ms", "median_step_ms", "size_mib"), json_path)


@bench_app.command()
def swarm(
    json_path: JsonPath = None,
    peers: Annotated[int, typer.Option(min=1, max=16, help="Peers that fetch.")] = 8,
    data: Annotated[str, typer.Option(help="Size of the data, such as 64MiB.")] = "64MiB",
    repeats: Annotated[int, typer.Option(min=1, help="How often each row is measured; medians are reported.")] = 3,
    rows: Annotated[str, typer.Option(help="Which rows, separated by commas.")] = "file,shards,late,strangers",
) -> None:
    """How much an origin sends when many libp2p peers fetch its data at once, against the size of the data."""
    from benchmarks.swarm import SwarmBench, measure

    settings = SwarmBench(peers=peers, data_bytes=byte_count(data), repeats=repeats)
    result = measure(settings, rows=[name.strip() for name in rows.split(",") if name.strip()], say=typer.echo)
    _show(result, ("row", "what", "origin_over_data", "least", "most", "peer_most", "seconds"), json_path)


@bench_app.command()
def aggregation(
    json_path: JsonPath = None,
    values: Annotated[int, typer.Option(min=1000, help="Coordinates of an update.")] = 10_000_000,
    large: Annotated[int, typer.Option(min=0, help="Coordinates of further rows of our own; 0 for none.")] = 100_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Processes of each row; medians are reported.")] = 3,
) -> None:
    """Time and memory from the files of 8 and 16 updates to one aggregate, beside Flower on the same files."""
    from benchmarks.aggregation import AggregationBench, measure

    result = measure(AggregationBench(values=values, large_values=large, repeats=repeats), say=typer.echo)
    _show(result, ("row", "seconds", "fastest", "slowest", "grown_mib"), json_path)


@bench_app.command()
def estimation(
    json_path: JsonPath = None,
    size: Annotated[int, typer.Option(min=10, help="Coordinates of an update.")] = 10_000,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of each cell; means are reported.")] = 5,
) -> None:
    """How far forged updates carry the aggregate away, worst case over the attacks, beside Flower's rules on the same updates."""
    from benchmarks.estimation import cells_of, measure

    result = measure(cells_of((5, 10, 16), (0.2, 1.0), size, seeds), say=typer.echo)
    _show(result, ("row", "worst_error", "attack", "least_cosine", "error_unattacked"), json_path)


@bench_app.command()
def attacks(
    json_path: JsonPath = None,
    rules: Annotated[
        str | None,
        typer.Option(help="Which rules, separated by commas; PREPARE+RULE where updates are prepared first. All by default."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--attack", help="Label of an attack, as in the table; several times.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each small run.")] = 8,
    processes: Annotated[int, typer.Option(min=1, help="Small runs at a time.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights, data and forgeries.")] = 0,
) -> None:
    """Held-out loss of small runs under each attack and each rule, beside the same runs without attackers."""
    from benchmarks.attacks import AttacksBench, aggregations_named, measure

    settings = AttacksBench(
        aggregations=aggregations_named(rules),
        attacks=tuple(only or ()),
        rounds=rounds,
        processes=processes,
        seed=seed,
    )
    _show(measure(settings, say=typer.echo), ("row", "bar", "heldout_loss", "over_clean", "diverged"), json_path)


@bench_app.command()
def detection(
    json_path: JsonPath = None,
    members: Annotated[int, typer.Option(min=10, help="Cheats in each row.")] = 1000,
    steps: Annotated[int, typer.Option(min=3, help="Inner steps of a round.")] = 20,
) -> None:
    """How soon audits meet fabricated work, by the rate of audits: the coordinator's own draws beside the arithmetic."""
    from benchmarks.detection import DetectionBench, measure

    result = measure(DetectionBench(members=members, steps=steps), say=typer.echo)
    _show(result, ("row", "within_5_measured", "within_5_expected", "rounds_to_99_percent", "most_sigmas_apart"), json_path)
