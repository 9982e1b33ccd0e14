"""What follows from the referee's words: a canary finds a witness that has not computed, a class that fails raises an alarm."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audited_members import Replica, opened_round
from door_in_process import House, within

from coordinator.audit_state import Audit, Kind
from coordinator.referee_child import RefereeChild
from protocol.generated import hocket_pb2 as pb

AUDIT = "rate = 1.0\ncanaries = 1.0\nopening_s = 20\nwitness_s = 10"


class Child:
    """Stands for the referee's process: says which of those whose work it is given are right."""

    def __init__(self) -> None:
        self.wrong: set[str] = set()
        self.asked: list[dict[str, Any]] = []

    async def do(self, job: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(job)
        verdicts = {name: {"ok": name not in self.wrong, "reason": "the referee's word"} for name in job["outputs"]}
        return {"id": job["id"], "verdicts": verdicts}


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    made = Child()
    monkeypatch.setattr(RefereeChild, "do", lambda _, job: made.do(job))
    return made


async def ruled(house: House) -> None:
    """Let the audits go on until nothing changes any more, the referee's rulings included."""
    loop = house.pieces.auditing.loop
    for _ in range(12):
        await loop.step()
        if loop._ruling is not None:
            await loop._ruling


async def opened_pass(house: House, prover: Replica) -> Audit:
    """A pass of the prover's first step is drawn, and opened."""
    await prover.commit(prover.next_commit([]))
    reply = await prover.commit(prover.next_commit([prover.record(one) for one in await prover.lease()]))
    (drawn,) = reply.open_microbatches
    for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
        assert (await prover.open(kind, drawn)).accepted
    (audit,) = [one for one in house.state.audit.of(prover.id) if one.kind is Kind.PASS]
    return audit


def shown(prover: Replica, audit: Audit, factor: float) -> dict[str, Mapping[str, np.ndarray]]:
    passed = prover.passed(audit.microbatch)
    return {
        group: {name: value * np.float32(factor) for name, value in passed[group].items()} for group in ("output", "gradient_out")
    }


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_a_canary_is_known_before_the_witness_is_asked_and_finds_one_that_answers_a_constant(
    factor: float, tmp_path: Path, child: Child
) -> None:
    async def body(house: House) -> None:
        prover, witness, *_ = await opened_round(house)
        audit = await opened_pass(house, prover)
        assert audit.known and not audit.witness
        await ruled(house)
        assert [job["outputs"].keys() for job in child.asked] == [{prover.id}], "the referee came first"
        assert audit.verified and audit.witness == witness.id
        await witness.watch()
        (task,) = witness.view.witness
        assert not {"known", "verified"} & {field.name for field, _ in task.ListFields()}
        if factor == 0.0:
            child.wrong = {witness.id}
        groups = shown(prover, audit, factor)
        assert (await witness.open(pb.WITNESS, audit.microbatch, groups=groups, audit_id=task.audit_id)).accepted
        await ruled(house)
        (ended,) = house.state.audit.ended
        assert (ended["member"], ended["outcome"]) == (prover.id, "passed") and prover.id not in house.state.audit.quarantined
        if factor:
            assert not house.state.audit.quarantined and len(child.asked) == 1
        else:
            assert house.state.audit.quarantined[witness.id]["kind"] == "WITNESS" and len(child.asked) == 2

    within(tmp_path, body, audit=AUDIT)


@pytest.mark.parametrize("operators", [("e", "f", "g", "h"), ("m", "M", "m ", "m")])
def test_a_class_that_fails_with_three_operators_raises_an_alarm_and_one_operator_with_many_names_does_not(
    operators: tuple[str, ...], tmp_path: Path, child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(house: House) -> None:
        odd = (await opened_round(house, tuple("abcdefgh")))[4:]
        for one, operator in zip(odd, operators, strict=True):
            house.state.members[one.id].info["device_class"] = "odd"
            house.state.members[one.id].operator = operator
        child.wrong = {one.id for one in odd}
        lost = []
        with caplog.at_level(logging.ERROR):
            for one in odd[:3]:
                await one.commit(one.next_commit([]))
                reply = await one.commit(one.next_commit([one.record(number) for number in (0, 1)]))
                (drawn,) = reply.open_microbatches
                for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
                    assert (await one.open(kind, drawn)).accepted
                await ruled(house)
                lost.append(house.state.audit.quarantined.get(one.id, {}).get("kind"))
        many = len({name.strip().lower() for name in operators}) == len(operators)
        assert lost == ["PASS", "PASS", None if many else "PASS"]
        assert ("calibration: 3 of 4 members of the class odd" in caplog.text) == many
        if many:
            assert house.state.audit.standing(odd[2].id).suspected

    within(tmp_path, body, audit=AUDIT, membership="per_operator = 8", replicas=4)
