"""A member keeps the receipts that are its coordinator's, each round once, over restarts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from node.receipts import FILE, Receipts, open_receipt
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed
from protocol.ticket import Ticket

MEMBER, OTHER = MemberKey.from_seed(b"m" * 32), MemberKey.from_seed(b"o" * 32)
COORDINATOR = MemberKey.from_seed(b"c" * 32)
TICKET = Ticket("run", ("127.0.0.1:1",), COORDINATOR.public, bytes(32), ())


def receipt(round: int, *, key: MemberKey = COORDINATOR, member: str = MEMBER.member_id, **more: Any) -> pb.Signed:
    payload = pb.ContributionReceipt(round=round, stage=1, member_id=member, frames=7, outcome="accepted", version_cid="v")
    fields: dict[str, Any] = {"method": "receipt", "run_id": "run", "receiver": MEMBER.member_id, "now_ms": 1, **more}
    return make_signed(key, payload=payload, **fields)


def test_receipts_are_kept_once_and_can_be_checked_later(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path, TICKET, MEMBER.member_id)
    assert receipts.take(pb.Signed()) is None
    first = receipt(3)
    assert receipts.take(first) is not None and receipts.take(first) is None
    assert receipts.take(receipt(3)) is None, "signed anew by a coordinator that was restarted"
    again = Receipts(tmp_path, TICKET, MEMBER.member_id)
    assert again.take(receipt(3)) is None and again.take(receipt(4)) is not None
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(one["round"], one["stage"], one["frames"], one["outcome"]) for one in lines] == [
        (3, 1, 7, "accepted"), (4, 1, 7, "accepted")
    ]  # fmt: skip
    signed = pb.Signed.FromString(base64.b64decode(lines[0]["signed"]))
    assert open_receipt(signed, TICKET, MEMBER.member_id).round == 3


def test_what_the_coordinator_did_not_make_out_to_us_is_not_kept(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path, TICKET, MEMBER.member_id)
    forged = receipt(3)
    forged.payload = pb.ContributionReceipt(round=3, member_id=MEMBER.member_id, frames=10**9).SerializeToString()
    for signed in (
        receipt(3, key=OTHER), receipt(3, member=OTHER.member_id), receipt(3, receiver=OTHER.member_id),
        receipt(3, run_id="another"), receipt(3, method="watch"), forged,
    ):  # fmt: skip
        assert receipts.take(signed) is None
    assert not (tmp_path / FILE).exists() and receipts.take(receipt(3)) is not None


def test_a_line_that_was_cut_by_a_power_cut_is_passed_over(tmp_path: Path) -> None:
    Receipts(tmp_path, TICKET, MEMBER.member_id).take(receipt(5))
    with (tmp_path / FILE).open("a") as stream:
        stream.write('{"run_id": "run", "round": 6, "sta')
    receipts = Receipts(tmp_path, TICKET, MEMBER.member_id)
    assert [one["round"] for one in receipts.kept()] == [5]
    assert receipts.take(receipt(6)) is not None
    assert [one["round"] for one in Receipts(tmp_path, TICKET, MEMBER.member_id).kept()] == [5, 6]
