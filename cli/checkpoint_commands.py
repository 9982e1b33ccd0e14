"""`hocket checkpoint list|show|verify|export`: versions that a run has made, and export folders."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.checkpoints import check_ticket, folder_of
from cli.options import JsonFlag, plain, print_json
from common.errors import Code, HocketError

checkpoint_app = typer.Typer(no_args_is_help=True, help="Look at, check and export what a run has made.")

StateArgument = Annotated[Path, typer.Argument(metavar="STATE", help="State folder of a coordinator.")]
CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="State folder of a coordinator, an export folder, or a version's CID.")
]
VersionOption = Annotated[int | None, typer.Option("--version", min=0, help="Of a state folder: this version, not the newest.")]
TicketOption = Annotated[str, typer.Option(help="With a CID: the ticket of the run that made the version.")]


@checkpoint_app.callback()
def checkpoint() -> None:
    """Commands that only read, and `export`, which writes a new folder."""


@checkpoint_app.command("list")
def list_versions(state: StateArgument, json_output: JsonFlag = False) -> None:
    """List the versions in a coordinator's state folder, the newest last."""
    from simulations.version_export import kept_versions

    rows: list[dict[str, Any]] = [
        {
            "version": one.manifest.version,
            "round": one.manifest.round,
            "heldout_loss": one.manifest.heldout_loss,
            "bytes": sum(part.size_bytes for part in one.manifest.stages),
            "cid": one.cid,
        }
        for one in kept_versions(state)
    ]
    if json_output:
        print_json(rows)
        return
    typer.echo(f"{'version':>7}  {'round':>5}  {'held-out loss':>13}  {'MiB':>8}  CID")
    for row in rows:
        loss = f"{row['heldout_loss']:.4f}" if row["heldout_loss"] is not None else "-"
        typer.echo(f"{row['version']:>7}  {row['round']:>5}  {loss:>13}  {row['bytes'] / 2**20:>8.1f}  {row['cid']}")


@checkpoint_app.command("show")
def show(
    checkpoint: CheckpointArgument, version: VersionOption = None, ticket: TicketOption = "", json_output: JsonFlag = False
) -> None:
    """Show what a version or an export folder is: run, round, model, size and origin."""
    from simulations.version_export import choose_version, is_coordinator_state, kept_versions

    if is_coordinator_state(Path(checkpoint)):
        _no_ticket(ticket)
        chosen = choose_version(kept_versions(Path(checkpoint)), version)
        manifest = chosen.manifest
        facts: dict[str, Any] = {
            "kind": "version",
            "cid": chosen.cid,
            "run": manifest.run_id,
            "version": manifest.version,
            "round": manifest.round,
            "heldout_loss": manifest.heldout_loss,
            "stages": len(manifest.stages),
            "bytes": sum(part.size_bytes for part in manifest.stages),
            "updates": len(manifest.accepted),
            "refused": len(manifest.refused),
            "dataset": manifest.dataset_cid,
            "model": manifest.model,
        }
    else:
        facts = _facts_of_export(checkpoint, version, ticket)
    if json_output:
        print_json(facts)
        return
    for name, value in facts.items():
        typer.echo(f"{name:>12}  {plain(str(value))}")


def _facts_of_export(checkpoint: str, version: int | None, ticket: str) -> dict[str, Any]:
    from tts.export import read_card

    folder = _export_folder(checkpoint, version, ticket)
    card = read_card(folder)
    return {
        "kind": "export",
        "folder": str(folder),
        "bytes": (folder / "model.safetensors").stat().st_size,
        "languages": list(card.languages),
        "speakers": list(card.speakers),
        "phonemes": len(card.phonemes),
        "origin": card.origin,
        "model": card.config.model_dump(mode="json"),
    }


@checkpoint_app.command("verify")
def verify(checkpoint: CheckpointArgument, version: VersionOption = None, ticket: TicketOption = "") -> None:
    """Check every block, digest, name, shape and value of a version, or of an export folder and its codec."""
    from simulations.version_export import (
        choose_version,
        is_coordinator_state,
        kept_versions,
        read_dataset,
        read_weights,
    )

    if is_coordinator_state(Path(checkpoint)):
        from protocol.manifest import signer_of
        from swarm.blocks import BlockStore

        _no_ticket(ticket)
        chosen = choose_version(kept_versions(Path(checkpoint)), version)
        store = BlockStore(Path(checkpoint) / "blocks")
        published = store.read_file(chosen.cid)
        with tempfile.TemporaryDirectory() as scratch:
            weights = read_weights(chosen.manifest, store, Path(scratch))
        read_dataset(chosen.manifest, store)
        values = sum(array.size for array in weights.values())
        typer.echo(
            f"version {chosen.manifest.version} of {plain(chosen.manifest.run_id)} is whole: {len(weights)} tensors, "
            f"{values} values, signed by {signer_of(published)[:12]}"
        )
        return
    from tokenizer.codec import load_codec
    from tts.export import load_export

    folder = _export_folder(checkpoint, version, ticket)
    export = load_export(folder)
    codec = load_codec(str(export.codec_folder))
    if codec.n_codebooks < export.card.config.n_codebooks:
        raise HocketError(
            Code.CHECKPOINT_INVALID, f"{folder}: a codec of {codec.n_codebooks} codebooks for {export.card.config.n_codebooks}"
        )
    typer.echo(f"{folder} is whole: {sum(one.numel() for one in export.stage.parameters())} values and their codec")


@checkpoint_app.command("export")
def export(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The export folder to make; an older export there is replaced.")],
    version: VersionOption = None,
    ticket: TicketOption = "",
    codec: Annotated[str, typer.Option(help="Name or folder of the codec that the dataset was made with.")] = "hocket-16k",
) -> None:
    """Make one model of a version, with its configuration, codec and text front: `hocket say` needs nothing else."""
    from protocol.content import parse_cid
    from simulations.version_export import choose_version, export_version, is_coordinator_state, kept_versions, read_dataset
    from swarm.blocks import BlockStore

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if is_coordinator_state(Path(checkpoint)):
            _no_ticket(ticket)
            chosen = choose_version(kept_versions(Path(checkpoint)), version)
            store = BlockStore(Path(checkpoint) / "blocks")
            dataset = read_dataset(chosen.manifest, store)
            export_version(chosen.cid, chosen.manifest, dataset, store, scratch, out, codec=codec)
        else:
            _no_version(version)
            if Path(checkpoint).exists():
                raise HocketError(
                    Code.CHECKPOINT_INVALID, f"{checkpoint} is no state folder of a coordinator",
                    remedy="give the coordinator's state folder, or a version's CID and --ticket",
                )  # fmt: skip
            parse_cid(checkpoint)
            check_ticket(ticket)
            import asyncio

            from simulations.finish import Order, fetch_version

            store = BlockStore(scratch / "blocks")
            order = Order(ticket=ticket, cid=checkpoint, out=str(scratch), codec=codec)
            fetched = asyncio.run(fetch_version(order, store, scratch, heldout=False))
            export_version(checkpoint, fetched.manifest, fetched.dataset, store, scratch, out, codec=codec)
    typer.echo(f"{out}: `hocket say` speaks with it")


def _export_folder(checkpoint: str, version: int | None, ticket: str) -> Path:
    from tts.voice import find_export

    _no_version(version)
    return find_export(folder_of(checkpoint, ticket))


def _no_version(version: int | None) -> None:
    if version is not None:
        raise HocketError(Code.OPTION_INVALID, "--version goes with a coordinator's state folder")


def _no_ticket(ticket: str) -> None:
    if ticket:
        raise HocketError(Code.OPTION_INVALID, "--ticket, but a folder is given", remedy="a ticket goes with a CID")
