"""`hocket checkpoint list|pin|show|verify|fetch|export`: versions that a run has made, and export folders."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.checkpoints import check_ticket, folder_of
from cli.options import JsonFlag, new_folder, plain, print_json
from common.errors import Code, HocketError

if TYPE_CHECKING:
    from simulations.version_fetch import Origin
    from swarm.blocks import BlockStore

checkpoint_app = typer.Typer(no_args_is_help=True, help="Look at, check and export what a run has made.")

StateArgument = Annotated[Path, typer.Argument(metavar="STATE", help="State folder of a coordinator.")]
CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="State folder of a coordinator, an export folder, or a version's CID.")
]
VersionOption = Annotated[int | None, typer.Option("--version", min=0, help="Of a state folder: this version, not the newest.")]
TicketOption = Annotated[str, typer.Option(help="With a CID: the ticket of the run that made the version.")]
GatewayOption = Annotated[
    list[str] | None,
    typer.Option("--gateway", help="With a CID: an IPFS gateway, or a node's RPC with its /api/v0, asked after the run's peers."),
]
KeyOption = Annotated[
    str, typer.Option("--key", help="Member id of the coordinator that must have signed; `ticket show` names it.")
]


@checkpoint_app.callback()
def checkpoint() -> None:
    """Commands that only read, `pin`, which says what is to stay, and `fetch` and `export`, which write a new folder."""


@checkpoint_app.command("list")
def list_versions(state: StateArgument, json_output: JsonFlag = False) -> None:
    """List the versions in a coordinator's state folder, the newest last."""
    from coordinator.retention import read_pins
    from simulations.version_export import kept_versions, told_of_versions

    told, pins = told_of_versions(state), read_pins(state)
    rows: list[dict[str, Any]] = []
    for one in kept_versions(state):
        about = told.get(one.cid, {})
        kept = [reason for reason in about.get("kept", ()) if reason != "pinned"] + ["pinned"] * (one.cid in pins)
        rows.append({
            "version": one.manifest.version,
            "round": one.manifest.round,
            "heldout_loss": about.get("heldout_loss", one.manifest.heldout_loss),
            "bytes": sum(part.size_bytes for part in one.manifest.stages),
            "kept": kept,
            "cid": one.cid,
        })  # fmt: skip
    if json_output:
        print_json(rows)
        return
    typer.echo(f"{'version':>7}  {'round':>5}  {'held-out loss':>13}  {'MiB':>8}  {'kept as':<16}  CID")
    for row in rows:
        loss = f"{row['heldout_loss']:.4f}" if row["heldout_loss"] is not None else "-"
        size, why = f"{row['bytes'] / 2**20:>8.1f}", plain(" ".join(row["kept"]))
        typer.echo(f"{row['version']:>7}  {row['round']:>5}  {loss:>13}  {size}  {why:<16}  {row['cid']}")


@checkpoint_app.command("pin")
def pin(
    state: StateArgument,
    version: Annotated[int, typer.Argument(min=0, help="Number of a version that is listed.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the pin away: the run file alone says what stays.")] = False,
) -> None:
    """Let a version stay in the block store for good; a running coordinator minds it from its next round on."""
    from coordinator.retention import read_pins, write_pins
    from simulations.version_export import choose_version, kept_versions

    chosen = choose_version(kept_versions(state), version)
    pins = read_pins(state) - {chosen.cid} if remove else read_pins(state) | {chosen.cid}
    write_pins(state, pins)
    choose_version(kept_versions(state), version)  # it may have been dropped in this moment
    typer.echo(f"version {version} is {'no longer pinned' if remove else 'pinned'}: {chosen.cid}")


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
def verify(checkpoint: CheckpointArgument, version: VersionOption = None, ticket: TicketOption = "", key: KeyOption = "") -> None:
    """Check every block, digest, name, shape and value of a version, or of an export folder and its codec.

    With --key or --ticket, a version must have been signed by that coordinator.
    """
    from simulations.version_export import choose_version, is_coordinator_state, kept_versions

    if is_coordinator_state(Path(checkpoint)):
        from simulations.version_fetch import Origin
        from swarm.blocks import BlockStore

        store = BlockStore(Path(checkpoint) / "blocks")
        chosen = choose_version(kept_versions(Path(checkpoint)), version)
        typer.echo(_whole_version(chosen.cid, store, Origin(ticket, signer=key).key()))
        return
    if key:
        raise HocketError(Code.OPTION_INVALID, "--key goes with a folder that has versions; an export folder has no signature")
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


def _whole_version(cid: str, store: BlockStore, key: bytes | None) -> str:
    """Check all of a version in a store, and that `key` has signed it; a line that says so."""
    from protocol.manifest import VersionManifest, read_manifest, signer_of
    from simulations.version_export import read_dataset, read_weights

    published = store.read_file(cid)
    manifest = read_manifest(VersionManifest, published, signer=key)
    with tempfile.TemporaryDirectory() as scratch:
        weights = read_weights(manifest, store, Path(scratch))
    read_dataset(manifest, store)
    values = sum(array.size for array in weights.values())
    known = "as it should be" if key is not None else "whoever that is: compare it with the run's ticket, or give --key"
    return (
        f"version {manifest.version} of {plain(manifest.run_id)} is whole: {len(weights)} tensors, {values} values, "
        f"signed by {signer_of(published)}, {known}"
    )


@checkpoint_app.command("fetch")
def fetch(
    cid: Annotated[str, typer.Argument(metavar="CID", help="Of a version.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make, or in which an earlier fetch stopped.")],
    ticket: TicketOption = "",
    gateway: GatewayOption = None,
    key: KeyOption = "",
) -> None:
    """Fetch a version by its CID from the peers of its run or from IPFS, and check all of it.

    `show`, `verify` and `export` take the folder that this makes.
    """
    import asyncio

    from protocol.content import parse_cid
    from simulations.version_fetch import fetch_version, write_version
    from swarm.blocks import BlockStore

    parse_cid(cid)
    origin = _origin(ticket, gateway, key)
    wanted = origin.key()
    if not (out / "blocks").is_dir():
        new_folder(out)
    store = BlockStore(out / "blocks")
    with tempfile.TemporaryDirectory() as scratch:
        fetched = asyncio.run(fetch_version(origin, cid, store, Path(scratch)))
    line = _whole_version(cid, store, wanted)
    write_version(out, cid, fetched.manifest, store)
    typer.echo(f"{out}: {line}")


def _origin(ticket: str, gateway: list[str] | None, key: str = "") -> Origin:
    from simulations.version_fetch import Origin

    if not gateway:
        check_ticket(ticket)
    return Origin(ticket, tuple(gateway or ()), key)


@checkpoint_app.command("export")
def export(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The export folder to make; an older export there is replaced.")],
    version: VersionOption = None,
    ticket: TicketOption = "",
    gateway: GatewayOption = None,
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
            import asyncio

            from simulations.version_fetch import fetch_version

            store = BlockStore(scratch / "blocks")
            fetched = asyncio.run(fetch_version(_origin(ticket, gateway), checkpoint, store, scratch))
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
