"""Checks the evidence against a member again, without believing the coordinator that wrote it. Fetches and computes nothing.

What a document claims falls into three parts: what the members themselves have signed, that the work was drawn and not chosen,
and what came out when it was computed again. The first two are looked at here; the third takes a referee, whose job is made here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from coordinator.audit_draw import Rates, on_close, on_commit, seed_of
from coordinator.audit_secret import commitment_of
from coordinator.commit_book import start_of
from coordinator.evidence import Evidence
from coordinator.leased_batches import LeasedBatches
from coordinator.requests import opened_request
from coordinator.update_proof import rates_of, size_fault, update_fault
from protocol.commitments import link_of
from protocol.generated import hocket_pb2 as pb
from protocol.identity import member_id
from protocol.manifest import VersionManifest
from protocol.messages import signed_header
from protocol.tensor_files import TensorInfo

BY_RECOMPUTATION = ("PASS", "STEP", "WITNESS")
MOST_WEIGHT_DECAY = 1e6
BY_BYTES = ("CHAIN", "SHAPE", "NOT_FINITE", "NORM", "ZERO")


class Outcome(StrEnum):
    """What became of a check."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not checked"


@dataclass(frozen=True)
class Check:
    """One check: what was looked at, and what came of it."""

    what: str
    outcome: Outcome
    detail: str = ""


@dataclass
class Signed:
    """What members signed, as the document carries it, by kind.

    Args:
        commits: with their signers. openings, updates: heads of files, with their signers. others: method and signer.
    """

    commits: list[tuple[str, pb.StepCommit]] = field(default_factory=list)
    openings: list[tuple[str, pb.OpeningHead]] = field(default_factory=list)
    updates: list[tuple[str, pb.SignedHeader, pb.UpdateHead]] = field(default_factory=list)
    others: list[tuple[str, str]] = field(default_factory=list)


def _check(what: str, holds: bool, detail: str = "") -> Check:
    return Check(what, Outcome.HOLDS if holds else Outcome.FAILS, detail)


def open_messages(evidence: Evidence) -> tuple[list[Check], Signed]:
    """Check every signature, and that every message is of this run and round."""
    found, checks = Signed(), []
    for number, text in enumerate(evidence.signed):
        what = f"signed message {number + 1}"
        try:
            signed = pb.Signed.FromString(base64.b64decode(text, validate=True))
            header = signed_header(signed)
            if header.run_id != evidence.run_id:
                raise HocketError(Code.SIGNATURE_INVALID, f"it is of run {header.run_id[:40]!r}")
            signer = member_id(header.public_key)
            _file(found, signer, header, signed.payload, evidence)
        except (HocketError, DecodeError, binascii.Error) as error:
            checks.append(Check(what, Outcome.FAILS, error.line() if isinstance(error, HocketError) else "it cannot be read"))
            continue
        checks.append(Check(what, Outcome.HOLDS, f"{header.method} by {signer[:12]}"))
    own = {signer for signer, *_ in [*found.commits, *found.openings, *found.updates, *found.others]}
    if evidence.kind != "NOT_OPENED":
        checks.append(_check("the accused member signed it", evidence.member in own))
    return checks, found


def _file(found: Signed, signer: str, header: pb.SignedHeader, payload: bytes, evidence: Evidence) -> None:
    if header.method == "commit":
        commit = pb.StepCommit.FromString(payload)
        if commit.link != link_of(commit, start_of(header, commit)):
            raise HocketError(Code.EVIDENCE_INVALID, f"commit {commit.step} names a link that is not its own")
        if header.base_cid != evidence.base_cid or commit.round != evidence.round:
            raise HocketError(Code.EVIDENCE_INVALID, f"commit {commit.step} is of round {commit.round} or of another version")
        found.commits.append((signer, commit))
    elif header.method == "submit_opening":
        found.openings.append((signer, pb.OpeningHead.FromString(payload)))
    elif header.method == "submit_update":
        found.updates.append((signer, header, pb.UpdateHead.FromString(payload)))
    else:
        found.others.append((header.method, signer))


def check_terms(evidence: Evidence, base: VersionManifest, others: Iterable[VersionManifest]) -> list[Check]:
    """That the version is the one that the round began with, and that the work is computed again as that version says.

    Args:
        base: the version that the document names. others: of the same run and signer, as far as they are at hand.
    """
    newer = [one.version for one in others if one.round < evidence.round and one.version > base.version]
    told = f"version {max(newer)} was there before round {evidence.round}" if newer else ""
    checks = [_check("the version is the newest one before the round", not newer and base.round < evidence.round, told)]
    if evidence.kind in (*BY_RECOMPUTATION, "NORM"):
        terms, what = base.outer.get("inner"), "the run trains as the version says"
        if terms is None:
            return [*checks, Check(what, Outcome.OPEN, "the version does not say it")]
        checks.append(_check(what, terms == evidence.settings))
    return checks


def check_given(evidence: Evidence, signed: Signed) -> list[Check]:
    """That a witness was given the input that the document shows: it signed what it answers for."""
    if evidence.kind != "WITNESS":
        return []
    given = {one.cid for one in evidence.files if one.part == "input"}
    answered = {head.input_cid for signer, head in signed.openings if signer == evidence.member}
    return [_check("the witness answered for this input", bool(given & answered))]


def check_files(evidence: Evidence, signed: Signed, files: Mapping[str, Path]) -> list[Check]:
    """That the files are there, have the digests named, and that the accused member signed for its own.

    Args:
        files: by CID, of those that could be had.
    """
    promised = {(signer, head.sha256.hex()) for signer, head in signed.openings}
    promised |= {(signer, head.sha256.hex()) for signer, _, head in signed.updates}
    checks = []
    for one in evidence.files:
        what = f"file {one.part} of {one.member[:12]}"
        path = files.get(one.cid)
        if path is None:
            checks.append(Check(what, Outcome.OPEN, f"{one.cid} is not at hand"))
            continue
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != one.sha256 or path.stat().st_size != one.size_bytes:
            checks.append(Check(what, Outcome.FAILS, "it is another file than the one named"))
        elif one.member == evidence.member:
            checks.append(_check(what, (one.member, one.sha256) in promised, "its maker signed for it"))
        else:
            checks.append(Check(what, Outcome.HOLDS, "it is the file named"))
    return checks


def check_draw(evidence: Evidence, signed: Signed, secret: bytes | None) -> list[Check]:
    """That the work was drawn: by the secret that was committed to before, from the link that the member had committed to.

    Args:
        secret: that a later version's manifest reveals; None: not at hand.
    """
    drawn = evidence.drawn
    if drawn is None:
        return []
    commit = next((one for _, one in signed.commits if one.link.hex() == drawn.link and one.step == drawn.step), None)
    checks = [_check("the drawn step is one that was committed to", commit is not None)]
    if commit is None:
        return checks
    if secret is None:
        return [*checks, Check("the draw", Outcome.OPEN, "no version at hand reveals the secret of this round")]
    checks.append(
        _check("the secret is the one committed to", commitment_of(secret).hex() == evidence.audit_commitment)
    )  # fmt: skip
    seed = seed_of(secret, bytes.fromhex(drawn.link))
    rates = Rates(drawn.audited, drawn.microbatches, drawn.steps)
    identifiers = [record.id for record in commit.records if record.frames]
    closing = on_close(seed, drawn.step, rates, opened=False)
    # As `Chain.resumed`, from the beginning of the chain, which evidence about a first step holds.
    resumed = any(one.link == commit.previous and one.step == 0 and one.previous for _, one in signed.commits)
    draw = closing if drawn.closing else on_commit(seed, drawn.step, identifiers, rates, resumed=resumed)
    asked = draw.step if drawn.microbatch is None else drawn.microbatch in draw.microbatches
    return [*checks, _check("the draw", asked, draw.reason)]


def check_words(
    evidence: Evidence, signed: Signed, files: Mapping[str, Path], tensors: Sequence[TensorInfo], base_largest: float
) -> list[Check]:
    """For what is proved without a recomputation: by what the member signed, and by its update's bytes.

    Args:
        tensors: of the stage. base_largest: largest magnitude of the base's weights; looked at for NORM alone.
    """
    kind = evidence.kind
    own = [one for signer, one in signed.commits if signer == evidence.member]
    heads = [(header, head) for signer, header, head in signed.updates if signer == evidence.member]
    if kind == "FORK":
        forked = any(
            (a.generation, a.part, a.step) == (b.generation, b.part, b.step) and a.link != b.link for a in own for b in own
        )  # fmt: skip
        return [_check("it signed two different links for one step", forked)]
    if kind == "STALE_BASE":
        stale = any(header.base_cid != evidence.base_cid and head.round == evidence.round for header, head in heads)
        return [_check("it signed an update of this round for another version", stale)]
    if kind not in BY_BYTES:
        return []
    update = next((files[one.cid] for one in evidence.files if one.part == "update" and one.cid in files), None)
    if not heads:
        return [Check("the update's bytes", Outcome.OPEN, "the document has no head of an update")]
    head = heads[0][1]
    if update is None:
        told = size_fault(head, tensors) if kind == "SHAPE" else ""
        return [Check("the update's bytes", Outcome.HOLDS if told else Outcome.OPEN, told or "the update is not at hand")]
    last = next((one for one in own if one.link == head.chain_link), None)
    rates = rates_of(own, head.chain_link) if kind in ("NORM", "ZERO") else None
    fault = update_fault(
        update, tensors, committed=last.update_digest if last is not None else None,
        lr_sum=sum(rates) if rates is not None else None, weight_decay=_weight_decay(evidence),
        base_largest=base_largest,
    )  # fmt: skip
    return [_check("the update's bytes", fault is not None and fault.kind == kind, fault.reason if fault else "nothing is wrong")]


def _weight_decay(evidence: Evidence) -> float:
    """As the document says; EVIDENCE_INVALID for what is no number."""
    told = evidence.settings.get("weight_decay", 0.0)
    if not isinstance(told, int | float) or abs(told) > MOST_WEIGHT_DECAY:
        raise HocketError(Code.EVIDENCE_INVALID, f"a weight decay of {str(told)[:40]}")
    return float(told)


def referee_job(
    evidence: Evidence, signed: Signed, files: Mapping[str, Path], base: Path, secret: bytes | None
) -> dict[str, Any] | None:
    """What a referee must recompute (see `tts.referee`); None when a file or a commit that it takes is not at hand.

    Raises:
        HocketError: EVIDENCE_INVALID when the document does not say how the run trains.
    """
    paths = {(one.part, one.member): files[one.cid] for one in evidence.files if one.cid in files}
    by_link = {one.link.hex(): (signer, one) for signer, one in signed.commits}
    if evidence.drawn is None or evidence.drawn.link not in by_link:
        return None
    prover, commit = by_link[evidence.drawn.link]
    try:
        settings = evidence.settings
        common = {
            "id": "evidence", "stage": evidence.stage, "base": str(base), "wire": settings["wire"], "seed": settings["seed"],
            "commit": commit.SerializeToString().hex(),
        }  # fmt: skip
        if evidence.kind == "STEP":
            opening, before = paths.get(("step", prover)), by_link.get(commit.previous.hex())
            if opening is None or before is None:
                return None
            return {
                **common, "kind": "step", "opening": str(opening), "classes": {"prover": evidence.device_class},
                "weight_decay": settings["weight_decay"], "clip_norm": settings["clip_norm"],
                "previous": before[1].SerializeToString().hex(),
            }  # fmt: skip
    except KeyError as error:
        raise HocketError(Code.EVIDENCE_INVALID, f"it does not say {error} of the run") from error
    given = paths.get(("input", prover))
    made = paths.get(("output" if evidence.kind == "PASS" else "witness", evidence.member))
    if given is None or made is None or evidence.microbatch is None:
        return None
    challenge = seed_of(secret, bytes.fromhex(evidence.drawn.link)).hex() if secret else ""
    return {
        **common, "kind": "pass", "microbatch_id": evidence.microbatch, "input": str(given), "prover": prover,
        "outputs": {evidence.member: str(made)}, "classes": {evidence.member: evidence.device_class}, "challenge": challenge,
    }  # fmt: skip


def check_ruling(evidence: Evidence, ruling: Mapping[str, Any]) -> Check:
    """What a referee's answer says about the accusation."""
    what = "the recomputation"
    if "error" in ruling:
        blamed = ruling.get("fault") == "opening"
        return Check(what, Outcome.HOLDS if blamed else Outcome.OPEN, str(ruling["error"]))
    found = ruling.get("verdicts", {}).get(evidence.member, ruling)
    return _check(what, found["ok"] is False, str(found["reason"]))


def check_batch(evidence: Evidence, signed: Signed, batches: Callable[[], LeasedBatches]) -> Check:
    """For BATCH: what the member has signed that it read, beside what the dataset has in the rows that it signed for.

    Args:
        batches: of the dataset that the round's version names.
    """
    what = "it read something else than its lease names"
    records = [
        record for signer, commit in signed.commits if signer == evidence.member and commit.stage == evidence.stage == 0
        for record in commit.records if record.id == evidence.microbatch and record.frames
    ]  # fmt: skip
    if not records:
        return Check(what, Outcome.FAILS, "it has signed nothing about this microbatch")
    try:
        found = [batches().compare(record) for record in records]
    except HocketError as error:
        return Check(what, Outcome.OPEN, f"the dataset is not at hand: {error.line()}")
    differs = next((one for one in found if one.ok is False), found[0])
    if differs.ok is None:
        return Check(what, Outcome.OPEN, differs.reason)
    return _check(what, not differs.ok, differs.reason)


def undecided(evidence: Evidence) -> list[Check]:
    """For accusations that rest on the coordinator's word, or on more than the document carries."""
    if evidence.kind == "NOT_OPENED":
        return [Check("that it opened nothing", Outcome.OPEN, "silence leaves no trace: this is the coordinator's word")]
    return []


def check_exchange(evidence: Evidence, signed: Signed, files: Mapping[str, Path]) -> list[Check]:
    """For EQUIVOCATION: the signed request beside what its sender and its receiver committed to, one of whom is accused."""
    what = "it signed two different things for one pass"
    path = next((files[one.cid] for one in evidence.files if one.part == "request" and one.cid in files), None)
    if path is None:
        return [Check(what, Outcome.OPEN, "the request is not at hand")]
    try:
        request = opened_request(path)
    except HocketError as error:
        return [Check(what, Outcome.FAILS, error.line())]
    place = (request.run_id, request.round, request.stage, request.microbatch)
    if place != (evidence.run_id, evidence.round, evidence.stage, evidence.microbatch):
        return [Check(what, Outcome.FAILS, "the request is of another pass")]
    records = [(signer, record) for signer, one in signed.commits for record in one.records if record.id == request.microbatch]
    sent, came = (
        [record for signer, record in records if signer == member]
        for member in (request.sender, request.receiver)
    )
    pairs = [
        (ours, theirs) for ours in sent for theirs in came
        if ours.frames and theirs.frames and ours.gradient_in and ours.gradient_in == theirs.gradient_out
    ]  # fmt: skip
    if evidence.member == request.sender:
        told = {one.output for one in sent}
        return [_check(what, request.digest not in told and any(theirs.input == request.digest for _, theirs in pairs))]
    wrong = any(ours.output == request.digest != theirs.input and theirs.sender == request.sender for ours, theirs in pairs)
    return [_check(what, evidence.member == request.receiver and wrong)]
