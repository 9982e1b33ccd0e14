"""What two neighbours committed to, compared; a signed request tells who of them lies; what an audit does next."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from audited_members import arrays
from hypothesis import given
from hypothesis import strategies as st

from coordinator.audit_state import Audit, Kind, Opening, Part
from coordinator.audits import Do, Facts, Limits, decide, in_order
from coordinator.cross_check import Records
from coordinator.evidence import Evidence, EvidenceFile
from coordinator.evidence_check import Outcome, Signed, check_exchange
from coordinator.requests import Exchange, Guilt, read_exchange
from protocol.content import cid_of
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed
from protocol.openings import About, opening_tensors
from protocol.tensor_files import write_tensors
from protocol.tensors import digest_of, encode

SENDER, RECEIVER = MemberKey.from_seed(b"s" * 32), MemberKey.from_seed(b"r" * 32)
IDENTIFIER = 5
CID = cid_of(b"request")


def named(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()


def commit(step: int, **fields: bytes | str | int) -> pb.StepCommit:
    record = pb.MicrobatchRecord(id=IDENTIFIER, frames=10)
    for name, value in fields.items():
        setattr(record, name, value)
    return pb.StepCommit(step=step, link=named(f"{step} {fields}"), records=[record])


def test_only_records_of_one_exchange_contradict_each_other() -> None:
    def conflicts(*sent: pb.StepCommit, came: pb.StepCommit) -> int:
        records = Records()
        found = [records.add(0, "producer", one) for one in sent]
        return sum(map(len, [*found, records.add(1, "consumer", came)]))

    came = commit(1, sender="producer", input=named("x"), gradient_out=named("g"))
    honest = commit(1, output=named("x"), gradient_in=named("g"))
    lie = commit(1, output=named("y"), gradient_in=named("g"))
    elsewhere = commit(2, output=named("y"), gradient_in=named("h"))  # a retry, that another replica answered
    uncounted = commit(2, output=named("y"), gradient_in=named("g"), frames=0)
    assert conflicts(honest, came=came) == conflicts(honest, elsewhere, came=came) == conflicts(uncounted, came=came) == 0
    assert conflicts(lie, came=came) == conflicts(honest, lie, came=came) == 1
    # In whatever order they are committed to, and only from the one whom the receiver names.
    records = Records()
    assert records.add(1, "consumer", came) == []
    (found,) = records.add(0, "producer", lie)
    assert (found.producer.member, found.consumer.member) == ("producer", "consumer")
    assert records.add(0, "somebody else", lie) == [] and records.add(2, "producer", lie) == []


def audit_of(kind: Kind, **changes: object) -> Audit:
    one = Audit(
        id="a", kind=kind, member=RECEIVER.member_id, operator="o", device_class="cpu", stage=1, round=2, generation=1, part=0,
        step=1, microbatch=IDENTIFIER, version=1, base_cid="b", link="00", since=100.0, most_bytes=1 << 20,
        accused=SENDER.member_id,
    )  # fmt: skip
    return replace(one, **changes)  # type: ignore[arg-type]


HEADS = [encode("hidden", arrays(1, 1, 4, 8), "fp32").head]


def show_request(path: Path, signer: MemberKey = SENDER, stage: int = 1, flip: int = 0) -> None:
    """Write the opening of a request as its receiver makes it; `flip`: bits that are wrong in every byte of it."""
    payload = pb.TrainStepRequest(round=2, stage=stage, microbatch_id=IDENTIFIER, tensors=HEADS)
    signed = make_signed(
        signer, method="train_step", payload=payload, run_id="r", receiver=RECEIVER.member_id, round=2, stage=stage, now_ms=1
    )
    about = About(
        run_id="r", round=2, base_cid="b", member_id=RECEIVER.member_id, stage=1, stages=3, generation=1, step=1, seed=0,
        microbatches=(),
    )  # fmt: skip
    shown = np.frombuffer(signed.SerializeToString(), np.uint8) ^ np.uint8(flip)
    write_tensors(path, opening_tensors(about, {}, {"request": shown}))


@pytest.mark.parametrize(
    ("signer", "stage", "sent", "came", "guilt"),
    [
        (SENDER, 1, "other", "real", Guilt.SENDER), (SENDER, 1, "real", "other", Guilt.RECEIVER),
        (SENDER, 1, "other", "third", Guilt.UNKNOWN), (RECEIVER, 1, "other", "real", Guilt.UNKNOWN),
        (SENDER, 2, "other", "real", Guilt.UNKNOWN),
    ],
)  # fmt: skip
def test_a_signed_request_says_which_neighbour_signed_something_false(
    signer: MemberKey, stage: int, sent: str, came: str, guilt: Guilt, tmp_path: Path
) -> None:
    path = tmp_path / "request.safetensors"
    show_request(path, signer, stage)
    digests = {"real": digest_of(HEADS), "other": named("other"), "third": named("third")}
    exchange = Exchange(digests[sent], digests[came])
    assert read_exchange(path, audit_of(Kind.REQUEST), exchange, "r").guilt is guilt
    assert read_exchange(path, audit_of(Kind.REQUEST), exchange, "another run").guilt is Guilt.UNKNOWN
    # Its sender has said that it gave this very pass up: the receiver shows an honest retry, which proves nothing.
    retried = replace(exchange, given_up=frozenset({digests["real"]}))
    told = Guilt.NOBODY if guilt is Guilt.SENDER else guilt
    assert read_exchange(path, audit_of(Kind.REQUEST), retried, "r").guilt is told
    # A byte of it changed: it says nothing.
    show_request(path, signer, stage, flip=1)
    assert read_exchange(path, audit_of(Kind.REQUEST), exchange, "r").guilt is Guilt.UNKNOWN


def test_anybody_can_check_who_signed_two_things_for_one_pass(tmp_path: Path) -> None:
    path, real = tmp_path / "request.safetensors", digest_of(HEADS)
    show_request(path)

    def outcome(accused: MemberKey, *sent: pb.StepCommit, came: pb.StepCommit, **changes: object) -> Outcome:
        evidence = Evidence(
            run_id="r", kind="EQUIVOCATION", member=accused.member_id, reason="", time_s=0.0, round=2, stage=1, version=1,
            base_cid=CID, microbatch=IDENTIFIER, audit_commitment="0" * 64,
            files=[EvidenceFile(part="request", member=RECEIVER.member_id, cid=CID, sha256="0" * 64, size_bytes=1)],
        ).model_copy(update=changes)  # fmt: skip
        signed = Signed(commits=[*((SENDER.member_id, one) for one in sent), (RECEIVER.member_id, came)])
        (check,) = check_exchange(evidence, signed, {CID: path})
        return check.outcome

    g, by = named("g"), SENDER.member_id
    came, misread = (commit(1, sender=by, input=what, gradient_out=g) for what in (real, named("x")))
    true, lie, given_up = (
        commit(1, output=what, gradient_in=g, frames=frames) for what, frames in ((real, 10), (named("y"), 10), (real, 0))
    )  # fmt: skip
    assert outcome(SENDER, lie, came=came) is Outcome.HOLDS
    assert outcome(RECEIVER, true, came=misread) is Outcome.HOLDS
    # Both say the same; it was given up; the other one is accused; another exchange, run or pass; nothing to look at.
    for accused, sent, arrived in (
        (SENDER, [true], came), (RECEIVER, [true], came), (SENDER, [lie, given_up], came), (RECEIVER, [lie], came),
        (SENDER, [true], misread), (SENDER, [lie], commit(1, sender=by, input=real, gradient_out=named("h"))),
    ):  # fmt: skip
        assert outcome(accused, *sent, came=arrived) is Outcome.FAILS
    for name, value in (("run_id", "other"), ("round", 3), ("stage", 2), ("microbatch", IDENTIFIER + 1)):
        assert outcome(SENDER, lie, came=came, **{name: value}) is Outcome.FAILS
    assert outcome(SENDER, lie, came=came, files=[]) is Outcome.OPEN


FILE = Opening("s", 1, "p", "m", "")
LIMITS = Limits(60.0, 30.0)
facts = st.builds(
    Facts, there=st.booleans(), going_since=st.floats(0, 200), current=st.booleans(),
    able=st.lists(st.sampled_from("wxyz"), max_size=3), witness_there=st.booleans(), base_kept=st.booleans(),
)  # fmt: skip
audits = st.builds(
    audit_of, st.sampled_from(Kind), files=st.dictionaries(st.sampled_from(Part), st.just(FILE)),
    witness=st.sampled_from(["", "w"]), asked_at=st.floats(0, 200), escalated=st.sampled_from(["", "why"]), known=st.booleans(),
    verified=st.booleans(),
)  # fmt: skip


@given(audit=audits, known=facts, now=st.floats(200, 500))
def test_every_audit_comes_to_an_end_and_nobody_is_blamed_for_being_gone(audit: Audit, known: Facts, now: float) -> None:
    action = decide(audit, known, now, LIMITS)
    assert action.reason
    if action.do is Do.NOT_OPENED:
        assert known.there and audit.missing and now - max(audit.since, known.going_since) >= LIMITS.opening_s
    if action.do is Do.WAIT:
        # Waiting has an end: the same facts, grown older, lead somewhere else.
        assert 0 < action.look_again_s <= max(LIMITS.opening_s, LIMITS.witness_s) + 200
        assert decide(audit, known, now + action.look_again_s + 1e-6, LIMITS).do is not Do.WAIT
    if action.do is Do.ASK:
        assert action.witness in known.able and known.current and not audit.missing
        assert not audit.known or audit.verified, "a known answer is known before anybody is asked"
    if action.do in (Do.COMPARE, Do.REFEREE, Do.ASK, Do.PASS):
        assert not audit.missing and known.base_kept
    if action.do is Do.PASS:
        assert audit.verified
    if action.silent:
        assert action.do in (Do.PASS, Do.ESCALATE) and audit.witness and known.witness_there and known.current
        assert now - max(audit.asked_at, known.going_since) >= LIMITS.witness_s, "it had its time"


def test_the_referee_first_looks_where_somebody_must_be_wrong_and_then_at_the_oldest_work() -> None:
    answer = {Part.WITNESS: Opening("00", 1, "path", "w", "")}
    odd = audit_of(Kind.PASS, id="b", round=4, escalated="the witness disagrees", files=answer)
    nobody = audit_of(Kind.PASS, id="d", round=3, escalated="the witness is gone")
    waiting = [audit_of(Kind.STEP, id="a"), nobody, odd, audit_of(Kind.STEP, id="c"), audit_of(Kind.STEP, id="e", round=1)]
    assert [one.id for one in in_order(waiting)] == ["b", "e", "a", "c", "d"]
