"""The document that says why a member was quarantined, so that anybody can check it without believing the coordinator.

A signed document in canonical JSON (`protocol.manifest`), named by its CID. It carries the member's own signed messages, byte for
byte, and names by CID every file that is needed to look again: the base, what the member opened, and its update.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import Code, HocketError
from protocol.identity import MemberKey
from protocol.manifest import Cid, Count, Sha256Hex, open_document, sign_document


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EvidenceFile(_Part):
    """A file, by what it is: `input`, `output`, `step`, `request`, `witness`, `update`. `member` made it."""

    part: str
    member: str
    cid: Cid
    sha256: Sha256Hex
    size_bytes: Count


class DrawnBy(_Part):
    """How the member's work came to be looked at: redone from the secret, which the version manifest of the round reveals.

    Args:
        link: hex, of the commit that was answered with the draw. step: of that commit. microbatch: None for a step.
        closing: drawn when the update was in. audited, microbatches, steps: see `audit_draw.Rates`.
    """

    link: Sha256Hex
    step: Count
    microbatch: Count | None = None
    closing: bool = False
    audited: float
    microbatches: Count
    steps: Count


class Evidence(_Part):
    """Why a member was quarantined.

    Args:
        kind: PASS, STEP, WITNESS (by recomputation); CHAIN, FORK, EQUIVOCATION, SHAPE, NOT_FINITE, NORM, ZERO, REPLAY, STALE_BASE
            (by what the member signed); BATCH (by what it signed and the dataset); NOT_OPENED (the coordinator's word alone).
        round, stage, base_cid, version: of the work. generation: of the member. step, microbatch: where one is meant.
        signed: base64 of serialized `Signed` messages of members, the accused one's first.
        files: that were looked at. drawn: None where nothing had to be drawn.
        audit_commitment: SHA-256 of the round's secret, in hex. device_class: of the member. settings: of the run that a
            recomputation depends on.
        statistics: what was measured. limits: what was allowed. by: who recomputed: "referee", or a member id.
    """

    format: Literal["hocket-evidence/1"] = "hocket-evidence/1"
    run_id: str
    kind: str
    member: str
    operator: str = ""
    reason: str
    time_s: float
    round: Count
    stage: Count
    generation: Count = 0
    base_cid: Cid
    version: Count
    step: Count | None = None
    microbatch: Count | None = None
    signed: list[Annotated[str, Field(max_length=6 * 2**20)]] = []
    files: list[EvidenceFile] = []
    drawn: DrawnBy | None = None
    audit_commitment: Sha256Hex
    device_class: str = ""
    settings: dict[str, Any] = {}
    statistics: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    by: str = ""


def packed(signed: bytes) -> str:
    """A signed message as the document carries it."""
    return base64.b64encode(signed).decode("ascii")


def sign_evidence(key: MemberKey, evidence: Evidence) -> bytes:
    """The signed document."""
    return sign_document(key, evidence.model_dump(mode="json"))


def read_evidence(data: bytes, *, signer: bytes | None) -> Evidence:
    """Check the signature of a document and read it; what it claims is not checked.

    Args:
        signer: raw public key of the coordinator; None accepts any.

    Raises:
        HocketError: MANIFEST_INVALID.
    """
    body = open_document(data, signer=signer)
    try:
        return Evidence.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise HocketError(Code.MANIFEST_INVALID, f"{'.'.join(map(str, first['loc'])) or 'evidence'}: {first['msg']}") from error
