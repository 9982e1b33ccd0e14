"""Signs for each member what became of its work, once a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.core import Core
from coordinator.entrance import Entrance
from coordinator.ledger import ROUNDS_BACK, receipt_of
from protocol.generated import hocket_pb2 as pb
from protocol.messages import make_signed


class SignedReceipts:
    """Receipts by member, signed when they are first asked for.

    Args:
        core: whose finished rounds say what became of it. entrance: whose key signs.
    """

    def __init__(self, core: Core, entrance: Entrance) -> None:
        self._core = core
        self._entrance = entrance
        self._seen_rounds = 0
        self._newest: Sequence[dict[str, Any]] = ()
        self._kept: dict[str, pb.Signed | None] = {}

    def of(self, member: str) -> pb.Signed | None:
        """The receipt of the last round in which the member took part, method "receipt"; None: there is none lately."""
        state = self._core.state
        if len(state.rounds) != self._seen_rounds:
            # Unpacked once for all members, as a record is long where these are many.
            self._seen_rounds, self._kept, self._newest = len(state.rounds), {}, state.rounds[-ROUNDS_BACK:]
        if member not in self._kept:
            receipt = receipt_of(self._newest, member)
            self._kept[member] = None if receipt is None else make_signed(
                self._entrance.key, method="receipt", payload=receipt, run_id=state.run_id, receiver=member,
                round=receipt.round, base_cid=receipt.version_cid, stage=receipt.stage, now_ms=self._entrance.now_ms(),
            )  # fmt: skip
        return self._kept[member]
