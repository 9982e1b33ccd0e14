"""Who may join: the organiser's bans and invitations, and the decision about a newcomer. Pure; a fold over journal events.

Of an invitation the journal holds a hash only: whoever reads the journal cannot join with it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.errors import Code, HocketError

TOKEN_BYTES = 16
MAX_TOKEN_CHARACTERS = 64
NAME_CHARACTERS = 12


def new_token() -> str:
    """A fresh invitation, from the system's randomness."""
    return secrets.token_hex(TOKEN_BYTES)


def invitation_name(token: str) -> str:
    """By what an invitation is known to the journal and to its organiser: SHA-256 of the token, in hex."""
    return hashlib.sha256(b"hocket-invitation:" + token.encode()).hexdigest()


@dataclass
class Invitation:
    """A right to join that the organiser gave away.

    Args:
        uses: members that may come in by it; members: those that did, in order: it is theirs for good.
        expires_at: seconds since the epoch.
        operator: whom it was given to; counts as the operator of all who come by it.
    """

    uses: int
    expires_at: float
    operator: str = ""
    members: list[str] = field(default_factory=list)
    revoked: bool = False

    def fault(self, now: float) -> str:
        """Why nobody new comes in by it; empty: somebody may."""
        if self.revoked:
            return "it was revoked"
        if now >= self.expires_at:
            return "it has expired"
        if len(self.members) >= self.uses:
            return "it is used up"
        return ""


@dataclass(frozen=True)
class Entry:
    """How a member comes in. Args: invitation: its name, where this join uses it. operator: known to be so, not merely said."""

    invitation: str = ""
    operator: str = ""


STRANGER = Entry()


@dataclass
class Admission:
    """The part of the run's state that says who may join.

    Args:
        bans: reason by member id. invitations: by name. guests: by which invitation a member came.
    """

    bans: dict[str, str] = field(default_factory=dict)
    invitations: dict[str, Invitation] = field(default_factory=dict)
    guests: dict[str, str] = field(default_factory=dict)

    # ---- events ------------------------------------------------------------------------------------------------------

    def invite(self, data: Mapping[str, Any]) -> None:
        """Event `invited`."""
        self.invitations[data["invitation"]] = Invitation(data["uses"], data["expires_at"], data["operator"])

    def revoke(self, data: Mapping[str, Any]) -> None:
        """Event `invitation_revoked`."""
        self.invitations[data["invitation"]].revoked = True

    def joined(self, data: Mapping[str, Any]) -> None:
        """Event `joined`: where it names an invitation, that is the member's from now on."""
        name, member = data.get("invitation", ""), data["member"]
        if name and member not in self.guests:
            self.invitations[name].members.append(member)
            self.guests[member] = name

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def check_banned(self, member: str) -> None:
        """BANNED for a member that the organiser has put out."""
        if member in self.bans:
            raise HocketError(Code.BANNED, self.bans[member] or "no reason was given")

    def admit(self, mode: str, member: str, token: str, listed: Mapping[str, str], now: float) -> Entry:
        """Decide on a join, new or again, of one that is not shut out.

        Args:
            mode: of the run, as in the run file.
            token: the invitation that the member shows; empty: none.
            listed: operator by member id, of the organiser's list; used in mode `listed`.
            now: seconds since the epoch.

        Raises:
            HocketError: INVITATION_REFUSED; JOIN_REFUSED for a member that is not on the list.
        """
        if mode == "listed":
            if member not in listed:
                raise HocketError(
                    Code.JOIN_REFUSED, f"member {member} is not on the organiser's list",
                    remedy="send the organiser your member id; `hocket key show` prints it",
                )  # fmt: skip
            return Entry(operator=listed[member])
        if member in self.guests:
            return Entry(operator=self._operator_of(self.guests[member]))
        name = invitation_name(token) if 0 < len(token) <= MAX_TOKEN_CHARACTERS else ""
        invitation = self.invitations.get(name)
        fault = "it is not one of this run" if invitation is None else invitation.fault(now)
        if not fault:
            return Entry(name, self._operator_of(name))
        if mode == "invited":
            raise HocketError(Code.INVITATION_REFUSED, fault if token else "the ticket holds none, and this run wants one")
        return STRANGER

    def _operator_of(self, name: str) -> str:
        """Who is behind an invitation: whom it was given to, else the invitation itself."""
        return self.invitations[name].operator or f"invitation {name[:NAME_CHARACTERS]}"
