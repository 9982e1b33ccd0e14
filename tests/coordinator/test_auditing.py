"""Audits through the coordinator's own door: what is drawn, opened and compared, and what becomes of members that lie."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from audited_members import LR, Replica, opened_round
from door_in_process import Aborted, House, within
from forked_core import KEY

from common.errors import Code
from coordinator import auditing
from coordinator.audit_draw import on_commit
from coordinator.audit_secret import AuditSecrets
from coordinator.audit_state import Kind
from coordinator.evidence import Evidence, read_evidence
from coordinator.evidence_check import Outcome
from coordinator.referee_child import RefereeChild
from coordinator.retention import retained_by
from coordinator.rounds import Phase
from protocol.commitments import NO_MOMENTS, tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.identity import member_id
from protocol.messages import signed_header
from simulations.audit_check import Found, verify_evidence
from swarm.blocks import BlockStore

AUDIT = "rate = 1.0\ncanaries = 0.0\nopening_s = 20\nwitness_s = 10"


async def first_step(house: House, replicas: list[Replica]) -> tuple[Replica, list[int], pb.CommitReply]:
    """A replica of stage 0 commits to its first inner step, of which passes alone are drawn."""
    prover = replicas[0]
    identifiers = await prover.lease()
    await prover.commit(prover.next_commit([]))
    commit = prover.next_commit([prover.record(one) for one in identifiers])
    intake = house.pieces.auditing.intake
    while on_commit(intake.seed(1, commit.link), 1, identifiers, intake.rates(prover.id)).step:
        prover.moved = {name: value + np.float32(1e-5) for name, value in prover.moved.items()}
        commit.update_digest = tensors_digest(prover.moved)
        prover.link(commit)
    return prover, identifiers, await prover.commit(commit)


def evidence_of(house: House, member: str) -> Evidence:
    """The evidence against a member, its signature checked, everything that it names at hand, and found to hold offline."""
    store = BlockStore(house.folder / "state" / "blocks")
    record = house.state.audit.quarantined[member]
    found = read_evidence(store.read_file(record["evidence_cid"]), signer=KEY.public)
    assert (found.member, found.kind, found.reason) == (member, record["kind"], record["reason"])
    for file in found.files:
        assert hashlib.sha256(store.read_file(file.cid)).hexdigest() == file.sha256
    first = signed_header(pb.Signed.FromString(base64.b64decode(found.signed[0])))
    assert member_id(first.public_key) == member, "the accused one's own word comes first"
    with TemporaryDirectory() as scratch:
        checks = verify_evidence(Found(found, KEY.member_id), house.folder / "state", Path(scratch), ask=None)
    unproved = [one for one in checks if one.outcome is not Outcome.HOLDS]
    assert not unproved or found.kind == "NOT_OPENED", unproved
    assert not [one for one in unproved if one.outcome is Outcome.FAILS]
    return found


def test_a_pass_is_drawn_opened_and_recomputed_by_a_witness_of_another_operator(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, identifiers, reply = await first_step(house, replicas := await opened_round(house))
        (drawn,) = reply.open_microbatches
        assert drawn in identifiers and not reply.open_step
        await prover.watch()
        assert {one.kind for one in prover.view.openings} == {pb.PASS_INPUT, pb.PASS_OUTPUT}
        secrets = AuditSecrets(KEY, house.state.run_id)
        assert prover.view.audit_commitment == secrets.commitment(1)
        for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
            assert (await prover.open(kind, drawn)).accepted and (await prover.open(kind, drawn)).accepted
        await house.pieces.auditing.loop.step()
        witness = replicas[1]
        await witness.watch()
        (task,) = witness.view.witness
        assert (task.microbatch_id, task.stage, task.round) == (drawn, 0, 1) and not prover.view.witness
        BlockStore(house.folder / "state" / "blocks").read_file(task.input_cid)
        shown = {name: prover.passed(drawn)[name] for name in ("output", "gradient_out")}
        shown["output"] = {"hidden": shown["output"]["hidden"] * np.float32(1 + 1e-6)}  # other hands, other last bits
        assert (await witness.open(pb.WITNESS, drawn, groups=shown, audit_id=task.audit_id)).accepted
        await house.pieces.auditing.loop.step()
        await house.pieces.auditing.loop.step()
        (ended,) = house.state.audit.ended
        assert (ended["outcome"], ended["by"]) == ("passed", witness.id) and ended["statistics"]
        assert house.state.audit.standing(prover.id).passed == 1
        assert not list((house.folder / "state/audit/openings").glob("*"))
        await witness.watch()
        assert not witness.view.witness

    within(tmp_path, body, audit=AUDIT)


def test_a_witness_that_says_otherwise_or_nothing_at_all_leaves_it_to_the_referee(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, _, reply = await first_step(house, replicas := await opened_round(house))
        (drawn,) = reply.open_microbatches
        for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
            await prover.open(kind, drawn)
        loop = house.pieces.auditing.loop
        await loop.step()
        (audit,) = house.state.audit.audits.values()
        assert audit.witness == replicas[1].id
        await replicas[1].watch()
        zeros = {"output": {"hidden": np.zeros((1, 9, 8), np.float32)}, "gradient_out": {"grad": np.zeros((1, 9, 8), np.float32)}}
        assert (await replicas[1].open(pb.WITNESS, drawn, groups=zeros, audit_id=audit.id)).accepted
        await loop.step()
        assert "disagrees" in audit.escalated and house.state.audit.ended == []

    within(tmp_path, body, audit=AUDIT)


def test_the_weights_that_the_referee_takes_are_fetched_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads, export = [], BlockStore.export

    def watched(store: BlockStore, *args: Any, **more: Any) -> None:
        threads.append(threading.current_thread())
        export(store, *args, **more)

    async def nothing(*args: Any) -> None:
        assert len(threads) == 1

    async def body(house: House) -> None:
        prover, _, reply = await first_step(house, await opened_round(house, ("a", "a", "a", "a")))
        for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
            await prover.open(kind, reply.open_microbatches[0])
        monkeypatch.setattr(BlockStore, "export", watched)
        monkeypatch.setattr(RefereeChild, "do", nothing)
        loop = house.pieces.auditing.loop
        await loop.step()
        (audit,) = house.state.audit.audits.values()
        assert await loop._referee.rule(audit) is None is await loop._referee.rule(audit)
        assert threads != [threading.current_thread()]
        assert len(list((house.folder / "state/audit/referee").glob("base-0-0.safetensors"))) == 1

    within(tmp_path, body, audit=AUDIT, membership="per_operator = 4")


async def quiet(house: House, replicas: list[Replica], seconds: int) -> None:
    """Time goes by in which all members are there."""
    for _ in range(seconds // 2):
        house.clock.now += 2
        for one in replicas:
            await one.watch()


def test_a_witness_that_is_silent_again_and_again_is_asked_no_more_and_suspected_and_never_quarantined(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, witness, *others = await opened_round(house)
        loop, audit = house.pieces.auditing.loop, house.state.audit
        await prover.commit(prover.next_commit([]))
        identifiers = await prover.lease()
        commit = prover.next_commit([prover.record(one) for one in identifiers])
        reply = await prover.commit(commit)
        assert sorted(reply.open_microbatches) == identifiers
        asked = []
        for microbatch in identifiers:
            for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
                assert (await prover.open(kind, microbatch)).accepted
            await loop.step()
            (one,) = [one for one in audit.audits.values() if one.microbatch == microbatch]
            asked.append(one)
            assert one.witness == witness.id and not audit.standing(witness.id).suspected
            await quiet(house, [prover, witness, *others], 12)
            await loop.step()
            assert "no answer of the witness" in one.escalated
        standing = audit.standing(witness.id)
        assert standing.silent and "no answer" in standing.suspected
        assert house.pieces.auditing.intake.rates(witness.id).audited == 1.0
        assert not audit.quarantined and witness.id not in audit.excluded
        again = await house.restarted()
        assert again.state.audit.standing(witness.id) == standing
        house.pieces = again.pieces
        asked[0].escalated = asked[0].witness = ""
        assert house.pieces.auditing.loop._able(asked[0]) == [], "its word is not asked for any more"

    within(tmp_path, body, audit=AUDIT + "\nmicrobatches = 2")


def test_no_witness_of_the_same_operator_is_asked(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, _, reply = await first_step(house, await opened_round(house, ("a", "a", "a", "a")))
        for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
            await prover.open(kind, reply.open_microbatches[0])
        await house.pieces.auditing.loop.step()
        (audit,) = house.state.audit.audits.values()
        assert not audit.witness and "another operator" in audit.escalated

    within(tmp_path, body, audit=AUDIT, membership="per_operator = 4")


def test_what_is_opened_must_be_what_was_committed_and_asked_for(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, identifiers, reply = await first_step(house, replicas := await opened_round(house))
        (drawn,) = reply.open_microbatches
        other = next(one for one in identifiers if one != drawn)
        passed = prover.passed(drawn)
        forged = {"input": {"hidden": passed["input"]["hidden"] + 1}, "gradient_in": passed["gradient_in"]}
        receipt = await prover.open(pb.PASS_INPUT, drawn, groups=forged)
        assert not receipt.accepted and "another input" in receipt.reason
        witness = replicas[1]
        for refused in (
            await prover.open(pb.PASS_INPUT, other), await prover.open(pb.STEP, drawn),
            await prover.open(pb.PASS_INPUT, drawn, step=2), await witness.open(pb.PASS_INPUT, drawn),
            await witness.open(pb.WITNESS, drawn, audit_id="0" * 24),
        ):  # fmt: skip
            assert not refused.accepted and "nobody asked" in refused.reason
        large = {"input": {"hidden": np.zeros((1, 4096, 4096), np.float32)}}
        receipt = await prover.open(pb.PASS_INPUT, drawn, groups=large)
        assert not receipt.accepted and "at most" in receipt.reason

    within(tmp_path, body, audit=AUDIT)


def test_a_member_that_is_there_and_does_not_open_is_left_out_and_in_the_end_quarantined(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas = await opened_round(house)
        prover = replicas[2]
        await prover.commit(prover.next_commit([]))
        await prover.commit(prover.next_commit([prover.record(0)]))
        loop = house.pieces.auditing.loop
        for _ in range(12):
            house.clock.now += 2
            for one in replicas:
                await one.watch()
        await loop.step()
        assert {ended["outcome"] for ended in house.state.audit.ended} == {"not opened"}
        assert house.state.audit.standing(prover.id).suspected
        assert prover.id not in house.state.audit.quarantined
        for number in range(1, 16):
            await prover.commit(prover.next_commit([prover.record(number)]))
            if drawn_late := [one for one in house.state.audit.audits.values() if one.kind is Kind.STEP]:
                break
        assert drawn_late, "each step of a suspected member that takes two is drawn with a half"
        for _ in range(12):
            house.clock.now += 2
            for one in replicas:
                await one.watch()
        await loop.step()
        assert evidence_of(house, prover.id).kind == "NOT_OPENED"

    within(tmp_path, body, audit=AUDIT, membership="")


def test_a_member_that_is_gone_is_not_blamed_for_what_it_did_not_open(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, _, _ = await first_step(house, await opened_round(house))
        await prover.join()  # its process is a new one
        await house.pieces.auditing.loop.step()
        (ended,) = house.state.audit.ended
        assert ended["outcome"] == "gone"
        standing = house.state.audit.standing(prover.id)
        assert not standing.suspected and standing.gone == 1 and standing.passed == 0

    within(tmp_path, body, audit=AUDIT)


def test_a_restart_draws_the_same_and_goes_on_with_what_had_come(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, _, reply = await first_step(house, await opened_round(house))
        (drawn,) = reply.open_microbatches
        await prover.open(pb.PASS_INPUT, drawn)
        before = dict(house.state.audit.audits)
        path = next((house.folder / "state/audit/commits").glob("*/*.commits"))
        with path.open("ab") as stream:
            stream.write(b"\x40\x00\x00\x00cut")  # killed while the next one was written
        after = await house.restarted()
        assert after.state.audit.audits == before
        prover.house = after
        again = await prover.commit(prover.commits[1])
        assert list(again.open_microbatches) == [drawn]
        assert (await prover.open(pb.PASS_OUTPUT, drawn)).accepted
        await prover.commit(prover.next_commit([]))
        house.pieces = after.pieces

    within(tmp_path, body, audit=AUDIT)


def test_a_chain_may_begin_before_the_base_is_reported_as_loaded(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas = [Replica(house, number + 1) for number in range(4)]
        for one in replicas:
            await one.join()
            await house.pieces.driver.step()
        for one in replicas:
            one.view = await house.ask(one.key, "watch", pb.WatchRequest())
            assert one.view.phase == pb.PREPARING
            await one.commit(one.next_commit([]))

    within(tmp_path, body, audit=AUDIT)


def test_what_a_neighbour_found_odd_has_a_member_audited_and_is_no_fault_of_its(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas = await opened_round(house)
        accuser, accused, beside = replicas[0], replicas[2], replicas[1]
        report = pb.MemberReport(round=1, generation=accuser.entry.generation, stage=0)
        for name in (accused.id, beside.id, "nobody"):
            report.oddities.add(member_id=name, microbatch_id=1, what="grad", reason="its norm")
        for _ in range(2):
            await house.ask(accuser.key, "watch", pb.WatchRequest(report=report))
        state = house.state.audit
        assert state.standing(accused.id).suspected and not state.quarantined and not state.excluded
        assert not state.standing(beside.id).suspected, "it never sends the accuser anything"
        assert house.pieces.auditing.intake.rates(accused.id).audited == 1.0

    within(tmp_path, body, audit=AUDIT)


def test_a_chain_begins_with_moments_that_were_committed_to_or_with_none(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas = await opened_round(house)
        prover, other = replicas[0], replicas[1]

        async def begin(member: Replica, moments: bytes) -> None:
            member.commits = []
            commit = member.next_commit([])
            commit.moments_digest = moments
            member.link(commit)
            await member.commit(commit)

        forged = hashlib.sha256(b"moments that point where I like").digest()
        assert await refused(begin(prover, forged)) is Code.COMMIT_REFUSED
        await begin(prover, NO_MOMENTS)
        await prover.commit(prover.next_commit([prover.record(one) for one in await prover.lease()]))
        trained = prover.commits[-1].moments_digest
        for round in range(2, 6):
            house.pieces.core.emit("phase", phase=Phase.PREPARING.value, reason="for the test", round=round)
            again = await house.restarted()
            house.pieces = again.pieces
            for one in replicas:
                one.house, one.view.round = again, round
            if round == 2:
                assert await refused(begin(other, trained)) is Code.COMMIT_REFUSED, "these are another's"
                await begin(other, NO_MOMENTS)
                continue
            if round == 3:
                await begin(prover, trained)
            if round == 5:
                assert await refused(begin(other, trained)) is Code.COMMIT_REFUSED
                await begin(prover, trained)

    within(tmp_path, body, audit=AUDIT)


def test_a_new_member_is_audited_for_certain_then_at_the_rate_and_a_suspected_one_for_certain_again(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas = await opened_round(house)
        prover, neighbour, state = replicas[2], replicas[0], house.state

        async def drawn_of(round: int) -> list[int]:
            """The passes that are drawn of the prover's first step in a round."""
            house.pieces.core.emit("phase", phase=Phase.PREPARING.value, reason="for the test", round=round)
            prover.view.round, prover.commits = round, []
            await prover.commit(prover.next_commit([]))
            reply = await prover.commit(prover.next_commit([prover.record(number) for number in range(4)]))
            return list(reply.open_microbatches)

        for round in (2, 3):
            assert len(await drawn_of(round)) == 1, "new members are audited for certain"
            for one in list(state.audit.audits.values()):
                words = [(prover.id, "passed", "")]
                house.pieces.core.emit("audit_ended", id=one.id, outcome="passed", reason="", standings=words)
        assert await drawn_of(4) == [], "the rate is one in a million"
        report = pb.MemberReport(round=4, generation=neighbour.entry.generation, stage=0)
        report.oddities.add(member_id=prover.id, microbatch_id=1, what="grad", reason="its norm")
        await house.ask(neighbour.key, "watch", pb.WatchRequest(report=report))
        assert len(await drawn_of(5)) == 1, "suspected ones are audited for certain"

    within(tmp_path, body, audit="rate = 0.000001\nnew_rounds = 2\ncanaries = 0.0")


async def refused(calling: Any) -> Code:
    with pytest.raises(Aborted) as caught:
        await calling
    return caught.value.error.code


def test_commits_that_do_not_go_on_are_refused_and_two_for_one_step_are_proof(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, identifiers, _ = await first_step(house, replicas := await opened_round(house))
        fresh = await prover.lease()
        good = prover.next_commit([prover.record(one) for one in fresh])

        def changed(**fields: Any) -> pb.StepCommit:
            made = pb.StepCommit()
            made.CopyFrom(good)
            for name, value in fields.items():
                setattr(made, name, value)
            prover.link(made)
            return made

        twice = prover.next_commit([prover.record(one) for one in identifiers])
        broken = changed()
        broken.link = bytes(32)
        for commit in (
            changed(step=3), changed(previous=bytes(32)), changed(lr=1.0), changed(lr=float("nan")), changed(frames=7),
            changed(generation=99), changed(round=2), changed(stage=1), changed(moments_digest=b"short"), twice, broken,
        ):  # fmt: skip
            assert await refused(prover.commit(commit)) is Code.COMMIT_REFUSED
        prover.commits = prover.commits[:2]
        await prover.commit(good)
        other = replicas[1]
        begin = other.next_commit([])
        begin.update_digest = bytes(32)
        other.link(begin)
        assert await refused(other.commit(begin)) is Code.COMMIT_REFUSED  # not the base's weights
        assert not house.state.audit.quarantined
        fork = changed(update_digest=hashlib.sha256(b"another").digest())
        assert await refused(prover.commit(fork)) is Code.QUARANTINED
        found = evidence_of(house, prover.id)
        assert found.kind == "FORK" and len(found.signed) == 2
        assert not house.state.members[prover.id].live and house.state.members[prover.id].stage is None
        assert await refused(prover.join()) is Code.QUARANTINED

    within(tmp_path, body, audit=AUDIT)


LIES = ("none", "CHAIN", "NOT_FINITE", "NORM", "ZERO", "SHAPE", "size", "STALE_BASE", "unchained")


@pytest.mark.parametrize("lie", LIES)
def test_what_the_bytes_of_an_update_prove_is_found_at_the_door(lie: str, tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas = await opened_round(house)
        member = replicas[2]  # of the last stage
        good = {name: np.full_like(zero, LR / 2) for name, zero in member.zeros.items()}
        first = next(iter(good))
        sent = {
            "CHAIN": {**good, first: good[first] + np.float32(1e-6)},
            "NOT_FINITE": {**good, first: good[first] * np.float32("nan")},
            "NORM": {**good, first: good[first] + np.float32(10)}, "ZERO": {**good, **member.zeros},
            "SHAPE": {**good, first: good[first].T.copy()},
        }.get(lie, good)  # fmt: skip
        await member.commit(member.next_commit([]))
        moved = good if lie == "CHAIN" else sent
        await member.commit(member.next_commit([member.record(0)], moved))
        house.pieces.core.emit("phase", phase=Phase.CLOSING.value, reason="for the test")
        changes: dict[str, Any] = {
            "size": {"size_bytes": 1 << 30}, "STALE_BASE": {"base_cid": house.state.dataset["cid"]},
            "unchained": {"chain_link": b"", "chain_step": 0},
        }.get(lie, {})  # fmt: skip
        receipt = await member.submit(sent, **changes)
        assert receipt.accepted == (lie == "none")
        if lie in ("none", "unchained"):
            assert not house.state.audit.quarantined
            assert receipt.open_step == (lie == "none"), "the last step of a round that is audited for certain"
            return
        found = evidence_of(house, member.id)
        assert found.kind == ("SHAPE" if lie == "size" else lie)
        assert (1, member.id) not in house.state.updates
        assert bool(found.files) == (lie not in ("size", "STALE_BASE"))
        again = await house.restarted()
        assert again.state.audit.quarantined == house.state.audit.quarantined
        house.pieces = again.pieces

    within(tmp_path, body, audit=AUDIT)


def test_evidence_is_of_the_round_of_the_work_though_the_run_went_on_while_it_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def body(house: House) -> None:
        core, member = house.pieces.core, (await opened_round(house))[2]
        await member.commit(member.next_commit([]))
        large = {name: zero + np.float32(10) for name, zero in member.zeros.items()}
        await member.commit(member.next_commit([member.record(0)], large))
        core.emit("phase", phase=Phase.CLOSING.value, reason="for the test")
        loop, read = asyncio.get_running_loop(), auditing.update_fault

        async def next_round() -> None:
            core.emit("phase", phase=Phase.PREPARING.value, reason="for the test", round=2)

        def slowly(*args: Any, **more: Any) -> Any:
            asyncio.run_coroutine_threadsafe(next_round(), loop).result()
            return read(*args, **more)

        monkeypatch.setattr(auditing, "update_fault", slowly)
        assert not (await member.submit(large)).accepted
        found = evidence_of(house, member.id)
        assert (found.kind, found.round, house.state.round) == ("NORM", 1, 2)

    within(tmp_path, body, audit=AUDIT)


def test_commits_and_base_of_an_audit_stay_as_long_as_it_takes(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, _, reply = await first_step(house, await opened_round(house))
        book, base = house.pieces.auditing.book, prover.view.base_cid
        link = prover.commits[1].link
        assert retained_by(house.state, house.pieces.core.config.checkpoint, ())[base]
        for later in range(2, 9):
            house.pieces.core.emit("phase", phase=Phase.PREPARING.value, reason="for the test", round=later)
            with pytest.raises(Aborted):
                await prover.commit(prover.commits[1])
        assert book.commit(1, prover.id, link) is not None
        for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
            old = prover.view.round
            assert (await prover.open(kind, reply.open_microbatches[0])).accepted and old == 1
        (audit,) = house.state.audit.audits.values()
        house.pieces.core.emit("audit_ended", id=audit.id, outcome="lapsed", reason="x", standings=[])
        house.pieces.core.emit("phase", phase=Phase.PREPARING.value, reason="for the test", round=9)
        with pytest.raises(Aborted):
            await prover.commit(prover.commits[1])
        assert book.commit(1, prover.id, link) is None and not list((house.folder / "state/audit/commits").glob("*/*"))

    within(tmp_path, body, audit=AUDIT)
