"""What a member keeps of its contributions: the coordinator's signed receipts, one a round, in a file of lines."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from common.files import disk_errors
from protocol.generated import hocket_pb2 as pb
from protocol.messages import open_signed
from protocol.ticket import Ticket

logger = logging.getLogger(__name__)

FILE = "receipts.jsonl"
# A receipt holds as long as the key that signed it: when it was signed does not matter.
_ANY_TIME_MS = 2**62


def open_receipt(signed: pb.Signed, ticket: Ticket, member_id: str) -> pb.ContributionReceipt:
    """The receipt inside a signed message.

    Raises:
        HocketError: SIGNATURE_INVALID unless the coordinator of the ticket's run made it out to this member.
    """
    header, payload = open_signed(
        signed, method="receipt", run_id=ticket.run_id, receiver=member_id, now_ms=0, nonces=None, window_ms=_ANY_TIME_MS
    )
    if header.public_key != ticket.coordinator_key:
        raise HocketError(Code.SIGNATURE_INVALID, "the receipt is not signed by the coordinator")
    try:
        receipt = pb.ContributionReceipt.FromString(payload)
    except DecodeError as error:
        raise HocketError(Code.SIGNATURE_INVALID, "the receipt cannot be read") from error
    if receipt.member_id != member_id:
        raise HocketError(Code.SIGNATURE_INVALID, "the receipt is for another member")
    return receipt


class Receipts:
    """The receipts of one member in one run.

    Args:
        state_dir: the file `receipts.jsonl` in it grows by a line a round; the whole signed receipt is in it.
    """

    def __init__(self, state_dir: Path, ticket: Ticket, member_id: str) -> None:
        self._path = state_dir / FILE
        self._ticket = ticket
        self._member_id = member_id
        self._last = b""
        self._round = max((one["round"] for one in self.kept()), default=0)

    def take(self, signed: pb.Signed) -> pb.ContributionReceipt | None:
        """Check a receipt that came with a view, and keep it; None where it is known already, is not ours, or there is none.

        Raises:
            HocketError: DISK_FULL, STATE_UNREADABLE.
        """
        if not signed.signature or signed.signature == self._last:
            return None
        self._last = signed.signature
        try:
            receipt = open_receipt(signed, self._ticket, self._member_id)
        except HocketError as error:
            logger.error("a receipt is not kept: %s", error.line())
            return None
        if receipt.round <= self._round:
            return None
        line = json.dumps(
            {
                "run_id": self._ticket.run_id, "round": receipt.round, "stage": receipt.stage, "frames": receipt.frames,
                "outcome": receipt.outcome, "reason": receipt.reason, "version_cid": receipt.version_cid,
                "signed": base64.b64encode(signed.SerializeToString()).decode("ascii"),
            }
        )  # fmt: skip
        with disk_errors(self._path), self._path.open("ab+") as stream:
            stream.seek(max(stream.tell() - 1, 0))
            # What a power cut left of a line must not spoil the next one.
            cut = stream.read(1) not in (b"", b"\n")
            stream.write((b"\n" if cut else b"") + line.encode() + b"\n")
        self._round = receipt.round
        logger.info("round %d, stage %d: our update is %s%s", receipt.round, receipt.stage, receipt.outcome,
                    f" ({receipt.reason})" if receipt.reason else "")  # fmt: skip
        return receipt

    def kept(self) -> list[dict[str, Any]]:
        """What is kept of this run, oldest first; a line that is not whole, as after a power cut, is passed over."""
        found = []
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HocketError(Code.STATE_UNREADABLE, f"{self._path} ({error.strerror})") from error
        for number, line in enumerate(lines, start=1):
            try:
                one = json.loads(line)
                if one["run_id"] == self._ticket.run_id and isinstance(one["round"], int):
                    found.append(one)
            except (ValueError, KeyError, TypeError):
                logger.warning("line %d of %s is damaged and passed over", number, self._path)
        return found
