"""What stage 0 commits to have read, held against the rows that were leased to it and against the dataset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import leased_dataset
import pytest
from audited_members import Replica, opened_round
from door_in_process import Aborted, House, within
from forked_core import KEY
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from coordinator.audit_state import Kind
from coordinator.evidence import Evidence, packed, read_evidence
from coordinator.evidence_check import Outcome
from coordinator.leased_batches import LeasedBatches
from coordinator.leased_rows import rows_fault, rows_of
from coordinator.leases import Cursor, Range, Sizes, next_range
from coordinator.records import Lease
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.manifest import DatasetManifest
from simulations.attacks.on_data import DataAttack, ShiftedCodes, SwappedTexts
from simulations.audit_check import Found, verify_evidence
from swarm.blocks import BlockStore
from tokenizer.reader import DatasetReader
from tts.batch import TextBatch
from tts.config import ModelConfig, preset

AUDIT = "rate = 1.0\ncanaries = 0.0\nopening_s = 20\nwitness_s = 10"
SEED = 3
ROWS = sum(leased_dataset.SHARDS)


@cache
def dataset() -> tuple[DatasetManifest, dict[str, bytes]]:
    return leased_dataset.made_up()


def model(**changes: Any) -> ModelConfig:
    return preset(
        "test", n_codebooks=leased_dataset.BOOKS, codebook_size=leased_dataset.CARD, n_phonemes=leased_dataset.SYMBOLS,
        n_languages=2, **changes,
    )  # fmt: skip


def record_of(identifier: int, batch: TextBatch, rows: pb.LeasedRows) -> pb.MicrobatchRecord:
    """What a worker commits to of a batch, as far as its input goes."""
    return pb.MicrobatchRecord(id=identifier, frames=batch.frames, input=tensors_digest(batch.arrays()), leased=rows)


# ---- the batches of a lease -----------------------------------------------------------------------------------------


@cache
def known_batches(tempo: float) -> LeasedBatches:
    manifest, shards = dataset()
    return LeasedBatches(manifest, shards.__getitem__, model(tempo_share=tempo), SEED)


@cache
def reader() -> DatasetReader:
    manifest, shards = dataset()
    return leased_dataset.reader_of(manifest, shards)


LEASED = st.builds(
    lambda epoch, start, size, count: pb.LeasedRows(
        epoch=epoch, start=start, stop=min(start + size, ROWS), first_microbatch_id=40, microbatches=count
    ),
    st.integers(0, 3), st.integers(0, ROWS - 1), st.integers(1, 16), st.integers(1, 6),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(LEASED, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["input", "frames", "id"]), st.integers(0, 5))
def test_what_a_worker_makes_of_a_lease_is_what_the_dataset_has(
    rows: pb.LeasedRows, tempo: float, what: str, which: int
) -> None:
    batches = asyncio.run(leased_dataset.batches_of(reader(), rows, model(tempo_share=tempo), SEED))
    records = [record_of(40 + index, batch, rows) for index, batch in enumerate(batches)]
    commit = pb.StepCommit(step=1, records=[*records, pb.MicrobatchRecord(id=7, input=b"not counted")])
    assert known_batches(tempo).compare_commit(commit).ok
    wrong = commit.records[which % len(records)]
    false = {"input": tensors_digest({}), "frames": wrong.frames + 1, "id": 40 + len(records)}
    setattr(wrong, what, false[what])
    found = known_batches(tempo).compare_commit(commit)
    assert found.ok is False and found.microbatch == wrong.id


def test_rows_that_the_dataset_has_not_are_no_excuse_and_shards_that_nobody_has_accuse_nobody() -> None:
    manifest, shards = dataset()
    known = LeasedBatches(manifest, shards.__getitem__, model(), SEED)
    beyond = pb.MicrobatchRecord(id=0, frames=1, leased=pb.LeasedRows(start=ROWS - 1, stop=ROWS + 1, microbatches=1))
    assert known.compare(beyond).ok is False
    empty = pb.MicrobatchRecord(id=0, frames=1, leased=pb.LeasedRows(start=5, stop=5, microbatches=1))
    assert known.compare(empty).ok is False
    assert known.compare(pb.MicrobatchRecord(id=0, frames=1)).ok is None

    def gone(cid: str) -> bytes:
        raise HocketError(Code.BLOCK_NOT_FOUND, cid)

    some = pb.MicrobatchRecord(id=0, frames=1, leased=pb.LeasedRows(start=0, stop=4, microbatches=1))
    found = LeasedBatches(manifest, gone, model(), SEED).compare(some)
    assert found.ok is None and "H306" not in found.reason and "cannot be read" in found.reason


# ---- which rows -----------------------------------------------------------------------------------------------------

MOVES = st.lists(st.tuples(st.sampled_from(["grant", "return", "done"]), st.integers(0, 2), st.integers(0, 9)), max_size=30)


@given(MOVES, st.data())
def test_whoever_works_on_its_lease_is_within_its_rows_whatever_became_of_the_lease(
    moves: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    sizes = Sizes(rows=23, frames=2300, frames_per_inner_step=400, microbatches_per_inner_step=2)
    cursor, returned, leases = Cursor(), list[Range](), list[Lease]()
    for what, who, number in moves:
        if what == "grant":
            grant = next_range(cursor, returned, sizes)
            if grant.recycled:
                returned.remove(grant.range)
            cursor = grant.cursor
            lease = Lease(len(leases), f"m{who}", number, grant.range, 2 * len(leases), 0.0, 2)
            leases.append(lease)
        elif leases:
            lease = leases[number % len(leases)]
            if what == "return" and not lease.returned:
                lease.returned = "its holder is away"
                returned.append(lease.range)
            elif what == "done":
                lease.done_at = 1.0
    for lease in leases:
        rows = rows_of(lease)
        records = [pb.MicrobatchRecord(id=lease.first_microbatch_id + index, frames=10, leased=rows) for index in (0, 1)]
        honest = pb.StepCommit(records=[*records, pb.MicrobatchRecord(id=99)])
        assert rows_fault(honest, lease.member, leases) == ""
        assert "no lease of yours" in rows_fault(honest, "somebody else", leases)
        name = data.draw(st.sampled_from(["epoch", "start", "stop", "first_microbatch_id", "microbatches"]))
        setattr(records[1].leased, name, getattr(rows, name) + 1)
        assert rows_fault(pb.StepCommit(records=records), lease.member, leases)
        assert rows_fault(pb.StepCommit(stage=1, records=records), lease.member, leases) == ""
    assert "of which rows" in rows_fault(pb.StepCommit(records=[pb.MicrobatchRecord(id=0, frames=1)]), "m0", leases)


# ---- through the door -----------------------------------------------------------------------------------------------


async def step_of(
    house: House, member: Replica, poison: Callable[[Sequence[Any]], Sequence[Any]] = lambda rows: rows
) -> list[pb.MicrobatchRecord]:  # fmt: skip
    """The records of a lease that a member of stage 0 takes and works on."""
    identifiers = await member.lease()
    rows = member.leased[identifiers[0]]
    config = ModelConfig.from_dict(house.state.model_config)
    batches = await leased_dataset.batches_of(reader(), rows, config, house.pieces.core.config.run.seed, poison)
    return [
        member.record(identifier, input=tensors_digest(batch.arrays()), frames=batch.frames)
        for identifier, batch in zip(identifiers, batches, strict=False)
    ]


def checks_of(house: House, evidence: Evidence, state: Path | None = None) -> dict[str, Outcome]:
    with TemporaryDirectory() as scratch:
        found = verify_evidence(Found(evidence, KEY.member_id), state or house.folder / "state", Path(scratch), ask=None)
    return {one.what: one.outcome for one in found}


@pytest.mark.parametrize("attack", [ShiftedCodes(), SwappedTexts()])
def test_false_data_is_proved_by_the_first_commit_and_its_update_counts_no_more(tmp_path: Path, attack: DataAttack) -> None:
    async def body(house: House) -> None:
        liar, honest, *_ = await opened_round(house)
        batches = house.pieces.auditing.batches
        for member in (liar, honest):
            await member.commit(member.next_commit([]))
        await honest.commit(honest.next_commit(good := await step_of(house, honest)))
        await batches.step()
        assert not house.state.audit.quarantined and batches.counts == {"compared": len(good)}
        records = await step_of(house, liar, lambda rows: attack.poison(rows, leased_dataset.CARD))
        await liar.commit(liar.next_commit(records))
        await batches.step()
        assert list(house.state.audit.quarantined) == [liar.id]
        record = house.state.audit.quarantined[liar.id]
        assert (record["kind"], record["round"]) == ("BATCH", 1)
        assert house.state.returned, "its rows go to somebody else"

        store = BlockStore(house.folder / "state" / "blocks")
        evidence = read_evidence(store.read_file(record["evidence_cid"]), signer=KEY.public)
        what = "it read something else than its lease names"
        checks = checks_of(house, evidence)
        assert set(checks.values()) == {Outcome.HOLDS} and what in checks
        (link,) = [one.link for one in honest.commits if one.step == 1]
        (word,) = house.pieces.auditing.book.signed(1, honest.id, lambda one: one.link == link)
        against = {"signed": [packed(word)], "member": honest.id, "microbatch": good[0].id}
        assert checks_of(house, evidence.model_copy(update=against))[what] is Outcome.FAILS
        assert checks_of(house, evidence.model_copy(update={"microbatch": 10**6}))[what] is Outcome.FAILS
        elsewhere = BlockStore(tmp_path / "elsewhere" / "blocks")
        elsewhere.add_bytes(store.read_file(evidence.base_cid))
        copytree(house.folder / "state" / "versions", tmp_path / "elsewhere" / "versions")
        assert checks_of(house, evidence, tmp_path / "elsewhere")[what] is Outcome.OPEN, "the dataset is not there"

    within(tmp_path, body, audit=AUDIT, dataset=leased_dataset.write_dataset)


def test_a_restart_between_a_commit_and_its_comparison_lets_nothing_through(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        liar, honest, *_ = await opened_round(house)
        for member in (liar, honest):
            await member.commit(member.next_commit([]))
        await honest.commit(honest.next_commit(await step_of(house, honest)))
        await liar.commit(liar.next_commit(await step_of(house, liar, lambda rows: ShiftedCodes().poison(rows, 32))))
        again = await house.restarted()
        house.pieces = again.pieces
        assert not house.state.audit.quarantined
        await again.pieces.auditing.batches.step()
        assert list(house.state.audit.quarantined) == [liar.id]
        last = await again.restarted()
        house.pieces = last.pieces
        assert list(last.state.audit.quarantined) == [liar.id]

    within(tmp_path, body, audit=AUDIT, dataset=leased_dataset.write_dataset)


def test_an_update_is_taken_once_what_it_was_trained_on_is_known(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        liar, honest, *_ = await opened_round(house)
        for member, poison in ((liar, SwappedTexts()), (honest, None)):
            await member.commit(member.next_commit([]))
            records = await step_of(house, member, lambda rows, by=poison: by.poison(rows, 32) if by else rows)
            await member.commit(member.next_commit(records))
        house.pieces.core.emit("phase", phase="CLOSING", reason="for the test")
        receipt = await liar.submit(liar.moved)
        assert not receipt.accepted and "quarantined" in receipt.reason
        assert (await honest.submit(honest.moved)).accepted
        assert list(house.state.updates) == [(0, honest.id)] and list(house.state.audit.quarantined) == [liar.id]

    within(tmp_path, body, audit=AUDIT, dataset=leased_dataset.write_dataset)


def test_a_commit_that_names_rows_of_no_lease_of_its_own_is_refused_and_accuses_nobody(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        one, other, *_ = await opened_round(house)
        await one.commit(one.next_commit([]))
        records = await step_of(house, one)
        theirs = await step_of(house, other)
        bare = [pb.MicrobatchRecord(id=record.id, frames=record.frames, input=record.input) for record in records]
        moved = [pb.MicrobatchRecord() for _ in records]
        for record, to in zip(records, moved, strict=True):
            to.CopyFrom(record)
            to.leased.stop += 1
        for false in (theirs, bare, moved):
            with pytest.raises(Aborted) as refused:
                await one.commit(one.next_commit(false))
            assert refused.value.error.code is Code.COMMIT_REFUSED
        for lease in house.state.outstanding:
            house.pieces.core.emit("lease_returned", lease_id=lease.lease_id, reason="it is overdue")
        await other.lease()  # the range of the first goes to the other
        await one.commit(one.next_commit(records))
        await house.pieces.auditing.batches.step()
        assert not house.state.audit.quarantined and house.pieces.auditing.batches.counts == {"compared": len(records)}

    within(tmp_path, body, audit=AUDIT, dataset=leased_dataset.write_dataset)


def test_where_the_dataset_cannot_be_read_an_audit_says_so_and_nobody_is_accused(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        prover, *_ = await opened_round(house)
        await prover.commit(prover.next_commit([]))
        reply = await prover.commit(prover.next_commit([prover.record(one) for one in await prover.lease()]))
        await house.pieces.auditing.batches.step()
        assert house.pieces.auditing.batches.counts == {"not_compared": 2} and not house.state.audit.quarantined
        # The step may be drawn as a whole besides.
        (audit,) = [one for one in house.state.audit.audits.values() if one.kind is Kind.PASS]
        assert reply.open_microbatches == [audit.microbatch]
        house.pieces.core.lose(prover.id, "for the test")
        await house.pieces.auditing.loop.step()
        for ended in house.state.audit.ended:
            assert "its batch was not compared" in ended["reason"] and "H207" in ended["reason"]
        assert [one["id"] for one in house.state.audit.ended if one["kind"] == "pass"] == [audit.id]

    within(tmp_path, body, audit=AUDIT)  # shards that are none


def test_as_many_inner_steps_are_compared_as_the_run_file_says(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        one, *_ = await opened_round(house)
        await one.commit(one.next_commit([]))
        await one.commit(one.next_commit(await step_of(house, one, lambda rows: ShiftedCodes().poison(rows, 32))))
        batches = house.pieces.auditing.batches
        await batches.step()
        assert not batches.counts and not house.state.audit.quarantined
        assert "not drawn" in batches.word(one.commits[1].link)

    within(tmp_path, body, audit=AUDIT + "\nbatches = 0.0", dataset=leased_dataset.write_dataset)
