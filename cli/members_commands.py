"""Commands of a run's organiser about its members; they work on a running coordinator, by its state directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import JsonFlag, TicketFrom, plain, print_json, seconds, ticket_line

if TYPE_CHECKING:
    from cli.organiser import Organiser
    from protocol.generated import hocket_pb2 as pb

members_app = typer.Typer(no_args_is_help=True, help="Who is in a run, and who may come: for its organiser.")

StateDir = Annotated[Path, typer.Option("--state-dir", help="Of the running coordinator, whose key signs the request.")]
MemberId = Annotated[str, typer.Argument(help="Member id, or a beginning of it that no other member has.")]
DEFAULT_STATE_DIR = Path("coordinator-state")


def _ask(state_dir: Path, request: pb.ManageRequest) -> tuple[Organiser, dict[str, Any]]:
    import asyncio

    from cli.organiser import Organiser

    organiser = Organiser(state_dir)
    return organiser, asyncio.run(organiser.ask(request))


@members_app.command("list")
def members_list(state_dir: StateDir = DEFAULT_STATE_DIR, json_output: JsonFlag = False) -> None:
    """Show everybody who ever joined or was banned, and the invitations."""
    from protocol.generated import hocket_pb2 as pb

    _, told = _ask(state_dir, pb.ManageRequest(list=pb.ListMembers()))
    if json_output:
        print_json(told)
        return
    typer.echo(f"run {told['run_id']}, open to: {told['mode']}")
    for one in told["members"]:
        place = "" if one.get("stage") is None else f"{one['role']} of stage {one['stage']}"
        words = (f"{one['state']:<11}", f"{place:<18}", one.get("address", ""), one.get("operator", ""), one["reason"])
        typer.echo("  ".join(plain(word) for word in (one["member"], *words)).rstrip())
    for one in told["invitations"]:
        state = one["over"] or f"for {one['uses'] - len(one['members'])} more"
        used = f"{len(one['members'])} of {one['uses']} used"
        typer.echo(f"invitation {one['name']}  {used}, {state}  {plain(one['operator'])}".rstrip())


@members_app.command("ban")
def members_ban(
    member: MemberId,
    reason: Annotated[str, typer.Option("--reason", help="Told to the member.")] = "",
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Put a member out, at once and until it is pardoned; also one that has not come yet."""
    from protocol.generated import hocket_pb2 as pb

    _, told = _ask(state_dir, pb.ManageRequest(ban=pb.BanMember(member_id=member, reason=reason)))
    typer.echo(f"banned: {told['member']}")


@members_app.command("pardon")
def members_pardon(member: MemberId, state_dir: StateDir = DEFAULT_STATE_DIR) -> None:
    """Lift a ban or a quarantine; the member has to start its worker again."""
    from protocol.generated import hocket_pb2 as pb

    _, told = _ask(state_dir, pb.ManageRequest(pardon=pb.PardonMember(member_id=member)))
    typer.echo(f"pardoned: {told['member']}")


@members_app.command("invite")
def members_invite(
    uses: Annotated[int, typer.Option("--uses", min=1, help="Members that may come in by it.")] = 1,
    expires: Annotated[str, typer.Option("--expires", help="For how long it may be used: 90m, 12h, 7d.")] = "7d",
    operator: Annotated[str, typer.Option("--operator", help="Whom it is for: the operator of all who come by it.")] = "",
    state_dir: StateDir = DEFAULT_STATE_DIR,
    json_output: JsonFlag = False,
) -> None:
    """Make an invitation and print the ticket that holds it."""
    from protocol.generated import hocket_pb2 as pb

    wanted = pb.Invite(uses=uses, expires_s=seconds(expires), operator=operator)
    organiser, told = _ask(state_dir, pb.ManageRequest(invite=wanted))
    ticket = replace(organiser.ticket, invitation=told.pop("invitation")).encode()
    if json_output:
        print_json({"ticket": ticket, **told})
        return
    typer.echo(ticket)
    if told["mode"] != "invited":
        typer.echo(f"note: the run's mode is {told['mode']}; who has no invitation may come as well", err=True)


@members_app.command("revoke")
def members_revoke(
    invitation: Annotated[str, typer.Argument(help="Its name, as `hocket members list` shows it.")],
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """End an invitation: nobody new comes in by it; who did come stays."""
    from protocol.generated import hocket_pb2 as pb

    _, told = _ask(state_dir, pb.ManageRequest(revoke=pb.RevokeInvitation(name=invitation)))
    typer.echo(f"revoked: {told['name']}")


@members_app.command("ledger")
def members_ledger(
    ticket: Annotated[str | None, typer.Argument(help="The line that begins with hocket1:")] = None,
    ticket_from: TicketFrom = None,
    json_output: JsonFlag = False,
) -> None:
    """Sum up who has contributed what, over all finished rounds; anybody with the ticket may."""
    import asyncio

    from coordinator.ledger import OUTCOMES, ledger
    from protocol.ticket import Ticket
    from simulations.status_client import fetch_status

    status = asyncio.run(fetch_status(Ticket.decode(ticket_line(ticket, ticket_from))))
    sums = ledger(status["rounds"])
    if json_output:
        print_json(sums)
        return
    for kind in ("operators", "members"):
        typer.echo(f"{kind}:")
        for one in sums[kind]:
            counts = ", ".join(f"{one[outcome]} {outcome}" for outcome in OUTCOMES if one[outcome])
            name = one.get("member", one["operator"])
            typer.echo(f"  {plain(name):<52}  {one['frames']:>12} frames  {counts}")
