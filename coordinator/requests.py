"""Reads what a replica shows of an exchange with its neighbour, and says which of the two signed something false."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
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
    NOBODY = "nobody"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Exchange:
    """What both sides committed to: `sent` by the one, `came` to the other.

    Args:
        given_up: what else the one committed to have sent for the microbatch: passes that it computed again on later weights.
    """

    sent: bytes
    came: bytes
    given_up: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Request:
    """A signed request, opened: by whom and for whom it is, its method and place, and the digest of what it carries."""

    sender: str
    receiver: str
    run_id: str
    round: int
    stage: int
    microbatch: int
    digest: bytes


@dataclass(frozen=True)
class Verdict:
    guilt: Guilt
    reason: str


def opened_request(path: Path) -> Request:
    """The request in a REQUEST opening, its signature checked.

    Raises:
        HocketError: EVIDENCE_INVALID when it is no signed request; see `signed_header` and `read_request`.
    """
    _, request, _ = read_request(read_tensors(path))
    try:
        signed = pb.Signed.FromString(request)
        header = signed_header(signed)
        step = pb.TrainStepRequest.FromString(signed.payload)
    except DecodeError as error:
        raise HocketError(Code.EVIDENCE_INVALID, "it cannot be read as a signed request") from error
    if header.method != REQUEST_METHOD:
        raise HocketError(Code.EVIDENCE_INVALID, f"a signed {header.method[:40]!r} is no {REQUEST_METHOD}")
    return Request(
        member_id(header.public_key), header.receiver, header.run_id, step.round, step.stage, step.microbatch_id,
        digest_of(step.tensors),
    )  # fmt: skip


def read_exchange(path: Path, audit: Audit, exchange: Exchange, run_id: str) -> Verdict:
    """Look at the signed request that a REQUEST audit brought.

    Args:
        path: of the opening. audit: its `accused` sent, its `member` received.
    """
    try:
        found = opened_request(path)
    except HocketError as error:
        return Verdict(Guilt.UNKNOWN, f"what it opened is no signed request: {error}")
    place = (found.sender, found.receiver, found.run_id, found.round, found.stage, found.microbatch)
    if place != (audit.accused, audit.member, run_id, audit.round, audit.stage, audit.microbatch):
        return Verdict(Guilt.UNKNOWN, "the request that it opened is another one")
    digest = found.digest
    what = f"microbatch {audit.microbatch} of round {audit.round}"
    if digest == exchange.sent:
        return Verdict(Guilt.RECEIVER, f"it committed to another input for {what} than the one it was sent")
    if digest == exchange.came and digest in exchange.given_up:
        return Verdict(Guilt.NOBODY, f"the request for {what} is one that its sender says it gave up")
    if digest == exchange.came:
        return Verdict(Guilt.SENDER, f"it committed to one output for {what} and sent another one on")
    return Verdict(Guilt.UNKNOWN, f"the request for {what} is neither what was sent nor what came")
