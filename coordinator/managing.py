"""What the organiser does to a running coordinator: look at the members, ban, pardon, invite, revoke."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import Any

from common.errors import Code, HocketError
from coordinator.admission import NAME_CHARACTERS, invitation_name, new_token
from coordinator.core import Core, Nonce
from coordinator.measures import one_line
from coordinator.run import Member, RunState
from protocol.generated import hocket_pb2 as pb
from protocol.identity import public_from_member_id

MAX_USES = 10_000
MAX_EXPIRES_S = 366 * 86_400.0
LEAST_CHARACTERS = 6


def manage(core: Core, request: pb.ManageRequest, nonce: Nonce) -> dict[str, Any]:
    """Do what a signed request asks for; what is to be told of it.

    Raises:
        HocketError: OPTION_INVALID for a member, an invitation or a number that does not fit; SIGNATURE_INVALID for a
            request of a newer version.
    """
    match request.WhichOneof("what"):
        case "list":
            return members_json(core)
        case "ban":
            return _ban(core, request.ban, nonce)
        case "pardon":
            return _pardon(core, request.pardon, nonce)
        case "invite":
            return _invite(core, request.invite, nonce)
        case "revoke":
            return _revoke(core, request.revoke, nonce)
        case _:
            raise HocketError(Code.SIGNATURE_INVALID, "it asks for nothing that is known here")


def _ban(core: Core, request: pb.BanMember, nonce: Nonce) -> dict[str, Any]:
    member = _named(request.member_id, core.state.members, "member", whole=True)
    core.ban(member, request.reason, nonce)
    return {"member": member, "banned": True}


def _pardon(core: Core, request: pb.PardonMember, nonce: Nonce) -> dict[str, Any]:
    member = _named(request.member_id, {**core.state.admission.bans, **core.state.audit.quarantined}, "shut-out member")
    core.emit("pardoned", member=member, nonce=nonce)
    return {"member": member, "banned": False}


def _invite(core: Core, request: pb.Invite, nonce: Nonce) -> dict[str, Any]:
    if not 0 < request.uses <= MAX_USES:
        raise HocketError(Code.OPTION_INVALID, f"an invitation is for 1 to {MAX_USES} members, not {request.uses}")
    if not (isfinite(request.expires_s) and 0 < request.expires_s <= MAX_EXPIRES_S):
        raise HocketError(Code.OPTION_INVALID, "an invitation holds for more than no time, and for a year at most")
    token = new_token()
    name, expires_at, operator = invitation_name(token), core.clock() + request.expires_s, one_line(request.operator, 200)
    core.emit("invited", invitation=name, uses=request.uses, expires_at=expires_at, operator=operator, nonce=nonce)
    return {"invitation": token, "name": name[:NAME_CHARACTERS], "uses": request.uses, "expires_at": expires_at,
            "mode": core.config.membership.mode}  # fmt: skip


def _revoke(core: Core, request: pb.RevokeInvitation, nonce: Nonce) -> dict[str, Any]:
    name = _named(request.name, core.state.admission.invitations, "invitation")
    core.emit("invitation_revoked", invitation=name, nonce=nonce)
    return {"name": name[:NAME_CHARACTERS], "revoked": True}


def _named(text: str, known: Collection[str], what: str, *, whole: bool = False) -> str:
    """The one of `known` that begins with `text`. `whole`: a whole member id will do although it is not known."""
    text = text.strip().lower()
    found = [one for one in known if len(text) >= LEAST_CHARACTERS and one.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found or not whole:
        raise HocketError(
            Code.OPTION_INVALID, f"{len(found)} {what}s begin with {text[:60]!r}",
            remedy=f"give at least {LEAST_CHARACTERS} characters of one that `hocket members list` shows",
        )  # fmt: skip
    try:
        public_from_member_id(text)
    except HocketError as error:
        raise HocketError(Code.OPTION_INVALID, f"no {what} begins with {text[:60]!r}, and it is no whole member id") from error
    return text


def members_json(core: Core) -> dict[str, Any]:
    """Everybody who ever joined or was banned, and all invitations; with addresses, so it is for the organiser alone."""
    state, now = core.state, core.clock()
    strangers = sorted(set(state.admission.bans) - set(state.members))
    return {
        "run_id": state.run_id,
        "mode": core.config.membership.mode,
        "members": [
            *(_member_json(state, one) for one in sorted(state.members.values(), key=lambda one: one.member)),
            *({"member": one, "state": "banned", "reason": state.admission.bans[one]} for one in strangers),
        ],
        "invitations": [
            {"name": name[:NAME_CHARACTERS], "operator": one.operator, "uses": one.uses, "members": list(one.members),
             "expires_at": one.expires_at, "over": one.fault(now)}
            for name, one in sorted(state.admission.invitations.items(), key=lambda entry: entry[1].expires_at)
        ],
    }  # fmt: skip


def _member_json(state: RunState, member: Member) -> dict[str, Any]:
    reason, standing = member.reason, "lost" if not member.live else "live" if member.stage is not None else "waiting"
    if (record := state.audit.quarantined.get(member.member)) is not None:
        reason, standing = f"{record['reason']}; evidence: {record['evidence_cid']}", "quarantined"
    if member.member in state.admission.bans:
        reason, standing = state.admission.bans[member.member], "banned"
    return {
        "member": member.member, "state": standing, "operator": member.operator, "stage": member.stage,
        "role": member.role.value if member.stage is not None else None, "address": member.address,
        "invitation": state.admission.guests.get(member.member, "")[:NAME_CHARACTERS],
        "reason": reason, "software": member.info.get("software", ""),
    }  # fmt: skip
