"""`hocket dataset show|verify|stats`: look at a tokenised dataset, and check it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from cli.options import JsonFlag, plain, print_json
from common.errors import Code, HocketError

dataset_app = typer.Typer(no_args_is_help=True, help="Look at a dataset, and check it.")
DatasetPath = Annotated[Path, typer.Argument(metavar="DATASET", help="The folder that tokenize wrote, or its manifest.json.")]
LISTED_FAULTS = 20
LISTED_NAMES = 8


def _listed(names: Sequence[str]) -> str:
    return plain(", ".join(names[:LISTED_NAMES])) + (" ..." if len(names) > LISTED_NAMES else "")


@dataset_app.command("show")
def show(
    path: DatasetPath,
    rows: Annotated[int, typer.Option("--rows", min=0, help="How many rows to show.")] = 10,
    json_output: JsonFlag = False,
) -> None:
    """Show what DATASET is, and its first rows."""
    from tokenizer.dataset_folder import open_dataset

    dataset = open_dataset(path)
    manifest = dataset.manifest
    first = [row for row, _ in islice(dataset.rows(), rows)] if rows else []
    entries = [*manifest.shards, *manifest.heldout]
    seconds = sum(entry.frames for entry in entries) / dataset.frame_rate
    if json_output:
        body = manifest.model_dump(mode="json", exclude={"shards", "heldout", "voices"})
        body["voices"] = sorted(manifest.voices)
        body |= {"signer": dataset.signer, "shards": len(manifest.shards), "heldout_shards": len(manifest.heldout)}
        body |= {"clips": sum(entry.rows for entry in entries), "hours": seconds / 3600}
        body["rows"] = [
            {"id": row.id, "speaker": row.speaker, "language": row.language, "seconds": row.n_frames / dataset.frame_rate,
             "align_score": row.align_score, "spoken": row.spoken}
            for row in first
        ]  # fmt: skip
        print_json(body)
        return
    codec = manifest.codec
    clips, held = sum(entry.rows for entry in entries), sum(entry.rows for entry in manifest.heldout)
    name = codec.get("name", codec.get("kind"))
    typer.echo(f"{plain(manifest.name)}: {clips} clips, {seconds / 3600:.2f} hours, {len(entries)} shards")
    typer.echo(f"  held out   {held}; refused {manifest.refused_clips}")
    typer.echo(f"  codec      {plain(str(name))}, {codec['n_codebooks']} codebooks of {codec['codebook_size']}")
    typer.echo(f"  languages  {plain(', '.join(manifest.languages))}; {len(manifest.phonemes) - 1} phonemes")
    typer.echo(f"  speakers   {_listed(manifest.speakers)}")
    typer.echo(f"  voices     {_listed(sorted(manifest.voices)) or 'none'}")
    typer.echo(f"  licences   {plain(', '.join(manifest.licences))}")
    typer.echo(f"  signed by  {dataset.signer}")
    if first:
        typer.echo(f"{'id':<24} {'speaker':<12} {'lang':<6} {'s':>6} {'score':>6}  spoken")
    for row in first:
        seconds = row.n_frames / dataset.frame_rate
        who = plain(f"{row.id[:24]:<24} {row.speaker[:12]:<12} {row.language[:6]:<6}")
        typer.echo(f"{who} {seconds:>6.2f} {row.align_score:>6.2f}  {plain(row.spoken[:70])}")


@dataset_app.command("verify")
def verify(path: DatasetPath, json_output: JsonFlag = False) -> None:
    """Check every file and row of DATASET against its signed manifest; the exit code tells whether all is well."""
    from cli.data_progress import Bar
    from tokenizer.dataset_folder import open_dataset
    from tokenizer.report.verify import verify_dataset

    dataset = open_dataset(path)
    with Bar() as bar:
        found = verify_dataset(dataset, lambda done, total: bar.step("shards", done, total))
    if json_output:
        print_json({**asdict(found), "signer": dataset.signer})
    if found.faults:
        if not json_output:
            for fault in found.faults[:LISTED_FAULTS]:
                typer.echo(plain(fault))
            if found.count > LISTED_FAULTS:
                typer.echo(f"and {found.count - LISTED_FAULTS} more")
        raise HocketError(Code.SHARD_DAMAGED, f"{path} has {found.count} faults, the first: {plain(found.faults[0])}")
    if not json_output:
        typer.echo(f"{path}: {found.rows} rows in {found.shards} shards are what the manifest says, signed by {dataset.signer}")


@dataset_app.command("stats")
def stats(
    path: DatasetPath,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with charts and clips to listen to.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Durations, speakers, languages, phonemes, alignment scores, loudness and refused clips of DATASET."""
    from tokenizer.dataset_folder import open_dataset
    from tokenizer.report.stats import collect_stats, title_of

    dataset = open_dataset(path)
    found = collect_stats(dataset)
    facts = found.as_json(dataset.manifest.phonemes)
    if html is not None:
        from common.files import atomic_write
        from tokenizer.codec import load_codec
        from tokenizer.report.page import pick, render_page

        folder = dataset.path / "codec"
        codec = load_codec(folder, n_codebooks=int(dataset.manifest.codec["n_codebooks"])) if folder.is_dir() else None
        atomic_write(html, render_page(dataset, found, pick(dataset.rows(), found), codec).encode())
    if json_output:
        print_json(facts)
        return
    typer.echo(
        f"{facts['clips']} clips, {facts['hours']:.2f} hours, {facts['heldout_clips']} held out,"
        f" {sum(found.refused.values())} refused, {facts['untranscribed_clips']} without a text"
    )
    for name, unit in (("seconds", "s"), ("phonemes_per_second", "/s"), ("align_score", ""), ("rms_db", "dB"), ("peak_db", "dB")):
        if (spread := facts[name]) is not None:
            points = ", ".join(f"{point} {value:.2f}" for point, value in spread.items())
            typer.echo(f"{name.replace('_', ' '):<20} {points} {unit}")
    for name, voice in facts["voices"].items():
        mean = voice["likeness_of_clips"]
        own = "no row has an embedding" if mean is None else f"its clips are {mean:.2f} like it"
        other = "" if voice["nearest"] is None else f", {plain(voice['nearest'][:30])} {voice['likeness_of_nearest']:.2f}"
        typer.echo(f"{'voice':<20} {plain(name[:30]):<30} {own}{other}")
    for kind in ("speakers", "languages"):
        for name, share in facts[kind].items():
            typer.echo(f"{kind[:-1]:<20} {plain(name[:30]):<30} {share['clips']:>6} clips {share['hours']:>8.2f} hours")
    for code, count in found.refused.most_common():
        typer.echo(f"{'refused':<20} {title_of(code):<50} {count:>6}")
    typer.echo(f"{'rare phonemes':<20} {plain(' '.join(facts['rare_phonemes'])) or 'none'}")
    for entry in facts["worst_aligned"]:
        typer.echo(f"{'aligned worst':<20} {entry['score']:>6.2f} {plain(entry['id'][:24]):<24} {plain(entry['spoken'][:60])}")
    if html is not None:
        typer.echo(f"{html}: a page with charts and clips to listen to")
