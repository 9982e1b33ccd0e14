"""The secret of a round, which draws what is audited: fixed before the round, committed to at its start, revealed after it.

It follows from the coordinator's key, so that a restart changes no draw and no disk holds it beforehand. Members get its SHA-256
with the view of the round, and the secret itself with the manifest of the version that the round made: whoever keeps the commits
of a round can then redo every draw, and nobody can foresee one.
"""

from __future__ import annotations

import hashlib
import hmac

from protocol.identity import MemberKey


class AuditSecrets:
    """The secrets of one run.

    Args:
        key: the coordinator's.
    """

    def __init__(self, key: MemberKey, run_id: str) -> None:
        self._root = key.derive(b"audit|" + run_id.encode())

    def secret(self, round: int) -> bytes:
        """32 bytes that nobody outside may know before the round's version is published."""
        return hmac.digest(self._root, f"round|{round}".encode(), "sha256")

    def commitment(self, round: int) -> bytes:
        """What the round's members are told at once, 32 bytes."""
        return commitment_of(self.secret(round))

    def revealed(self, round: int) -> dict[str, str]:
        """What the manifest of the round's version says, in hex."""
        return {"secret": self.secret(round).hex(), "commitment": self.commitment(round).hex()}


def commitment_of(secret: bytes) -> bytes:
    """SHA-256 of a secret: what must have been told before it is believed."""
    return hashlib.sha256(secret).digest()
