"""Reads what a replica shows of an exchange with its neighbour, and says which of the two signed something false."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from google.protobuf.message import DecodeError

from common.errors import HocketError
from coordinator.audit_state import Audit
from protocol.generated import hocket_pb2 as pb
from protocol.identity import member_id
from protocol.messages import signed_header
from protocol.openings import read_request
from protocol.tensor_files import read_tensors
from protocol.tensors import digest_of

REQUEST_METHOD = "train_step"


class Guilt(StrEnum):
    """Who signed something false."""

    SENDER = "sender"
    RECEIVER = "receiver"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Exchange:
    """What both sides committed to: `sent` by the one, `came` to the other."""

    sent: bytes
    came: bytes


@dataclass(frozen=True)
class Verdict:
    guilt: Guilt
    reason: str


def read_exchange(path: Path, audit: Audit, exchange: Exchange) -> Verdict:
    """Look at the signed request that a REQUEST audit brought.

    Args:
        path: of the opening. audit: its `accused` sent, its `member` received.
    """
    try:
        _, request, _ = read_request(read_tensors(path))
        signed = pb.Signed.FromString(request)
        header = signed_header(signed)
        step = pb.TrainStepRequest.FromString(signed.payload)
    except (HocketError, DecodeError) as error:
        return Verdict(Guilt.UNKNOWN, f"what it opened is no signed request: {error}")
    place = (header.method, member_id(header.public_key), header.receiver, step.round, step.stage, step.microbatch_id)
    if place != (REQUEST_METHOD, audit.accused, audit.member, audit.round, audit.stage, audit.microbatch):
        return Verdict(Guilt.UNKNOWN, "the request that it opened is another one")
    digest = digest_of(step.tensors)
    what = f"microbatch {audit.microbatch} of round {audit.round}"
    if digest == exchange.sent:
        return Verdict(Guilt.RECEIVER, f"it committed to another input for {what} than the one it was sent")
    if digest == exchange.came:
        return Verdict(Guilt.SENDER, f"it committed to one output for {what} and sent another one on")
    return Verdict(Guilt.UNKNOWN, f"the request for {what} is neither what was sent nor what came")
