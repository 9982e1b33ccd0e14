"""Commands about the keys in a state directory: show, back up, restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import JsonFlag, print_json
from common.errors import Code, HocketError

key_app = typer.Typer(no_args_is_help=True, help="The keys of a worker or a coordinator.")

# What makes a worker or a coordinator itself; a coordinator has a TLS certificate besides, which its tickets pin.
KEY_FILES = ("member.key", "peer.key", "tls.key", "tls.pem")
LEAST_PASSPHRASE = 8

StateDir = Annotated[Path, typer.Option("--state-dir", help="Of the worker or the coordinator.")]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="A file whose first line is the passphrase; otherwise it is asked for.")
]


@key_app.command("show")
def key_show(state_dir: StateDir = Path("worker-state"), json_output: JsonFlag = False) -> None:
    """Show the member id, which an organiser needs for a list of members, and the peer id. Nothing secret is shown."""
    from protocol.identity import MemberKey, PeerKey

    facts = {"member_id": MemberKey.load_or_create(_there(state_dir, "member.key")).member_id}
    if (state_dir / "peer.key").exists():
        facts["peer_id"] = PeerKey.load_or_create(state_dir / "peer.key").peer_id
    if json_output:
        print_json(facts)
    else:
        for name, value in facts.items():
            typer.echo(f"{name:>10}  {value}")


@key_app.command("backup")
def key_backup(
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; it must not be there yet.")],
    state_dir: StateDir = Path("worker-state"),
    passphrase_file: PassphraseFile = None,
) -> None:
    """Write all keys of a state directory into one file, sealed under a passphrase."""
    from common.files import atomic_write, disk_errors
    from protocol.identity import MemberKey
    from protocol.key_backup import seal_keys

    member = MemberKey.load_or_create(_there(state_dir, "member.key")).member_id
    if out.exists():
        raise HocketError(Code.OUTPUT_EXISTS, str(out), remedy="give another file")
    with disk_errors(state_dir):
        files = {name: (state_dir / name).read_bytes() for name in KEY_FILES if (state_dir / name).exists()}
    passphrase = _passphrase(passphrase_file, new=True)
    atomic_write(out, seal_keys(files, passphrase, {"member_id": member}), mode=0o600)
    typer.echo(f"{out} holds {', '.join(files)} of member {member}")


@key_app.command("restore")
def key_restore(
    backup: Annotated[Path, typer.Argument(help="A file that `hocket key backup` wrote.")],
    state_dir: StateDir = Path("worker-state"),
    passphrase_file: PassphraseFile = None,
) -> None:
    """Put the keys of a backup into a state directory that has none; an existing key is never overwritten."""
    from common.files import atomic_write, disk_errors
    from common.lock import locked
    from protocol.identity import MemberKey
    from protocol.key_backup import MAX_BYTES, open_backup

    with disk_errors(backup), backup.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    files, about = open_backup(data, _passphrase(passphrase_file, new=False))
    if "member.key" not in files or not set(files) <= set(KEY_FILES):
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{backup} does not hold the keys of a state directory")
    found = MemberKey.from_pem(files["member.key"], f"member.key in {backup}").member_id
    if found != about.get("member_id"):
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{backup} says to be of another member than it is")
    with locked(state_dir):
        for name in KEY_FILES:
            if (state_dir / name).exists():
                raise HocketError(
                    Code.OUTPUT_EXISTS, f"{state_dir / name}", remedy="give another --state-dir, or move that file away yourself"
                )
        # The member key comes last: where it is, the others are.
        for name in sorted(files, key=lambda name: name == "member.key"):
            atomic_write(state_dir / name, files[name], mode=0o644 if name == "tls.pem" else 0o600)
    typer.echo(f"{state_dir} holds {', '.join(files)} of member {found}")


def _there(state_dir: Path, name: str) -> Path:
    path = state_dir / name
    if not path.is_file():
        remedy = "give the --state-dir of a worker or a coordinator that was started"
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{path} is not there", remedy=remedy)
    return path


def _passphrase(source: Path | None, *, new: bool) -> str:
    """The passphrase from a file, or typed, twice where it is a new one."""
    if source is None:
        text = str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new))
    else:
        try:
            text = source.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise HocketError(Code.OPTION_INVALID, f"{source} cannot be read ({error})") from error
    if len(text) < LEAST_PASSPHRASE and new:
        raise HocketError(Code.OPTION_INVALID, f"a passphrase has at least {LEAST_PASSPHRASE} characters")
    return text
