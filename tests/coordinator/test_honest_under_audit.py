"""What may happen to an honest member while it is audited, none of which may be held against it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audited_members import FRAMES, LR, Replica, going_on, opened_round, send
from door_in_process import Context, House, within

from common.errors import Code
from coordinator.audit_draw import Rates, on_commit, seed_of
from coordinator.audit_state import Kind
from coordinator.evidence import DrawnBy, Evidence
from coordinator.evidence_check import Outcome as Found
from coordinator.evidence_check import Signed, check_draw
from coordinator.rounds import Phase
from protocol.generated import hocket_pb2 as pb
from protocol.openings import opening_tensors
from protocol.tensor_files import file_parts

ALWAYS = "rate = 1.0\ncanaries = 0.0\nopening_s = 20\nwitness_s = 10"
HARDLY = "rate = 1e-9\nnew_rounds = 0\ncanaries = 0.0"


def test_the_first_step_after_a_restart_is_shown_to_the_referee_and_not_to_a_witness_with_the_base(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = (await opened_round(house))[0]
        first = await member.lease()
        await member.commit(member.next_commit([]))
        await member.commit(member.next_commit([member.record(one) for one in first]))
        last = member.commits[-1]
        begin = going_on(member, 1, [], previous=last.link, update_digest=last.update_digest)
        await send(member, begin)
        records = [member.record(one) for one in await member.lease()]
        step = going_on(member, 1, [begin], records=records, update_digest=hashlib.sha256(b"after").digest())
        reply = await send(member, step)
        assert reply.open_step and not reply.open_microbatches, "its passes did not run on the base"
        drawn = [one for one in house.state.audit.audits.values() if one.part == 1]
        assert [one.kind for one in drawn] == [Kind.STEP]
        secret = house.pieces.auditing.intake._secrets.secret(1)
        check = check_draw(evidence_of_draw(house, member, step), Signed(commits=[(member.id, begin), (member.id, step)]), secret)
        assert all(one.outcome is Found.HOLDS for one in check), check

    within(tmp_path, body, audit=ALWAYS)


def evidence_of_draw(house: House, member: Replica, step: pb.StepCommit) -> Evidence:
    """A document that says no more than how a step came to be drawn."""
    (audit,) = [one for one in house.state.audit.audits.values() if one.link == step.link.hex()]
    return Evidence(
        run_id=house.state.run_id, kind="STEP", member=member.id, reason="", time_s=0.0, round=1, stage=0,
        base_cid=house.state.base_cid, version=0, drawn=DrawnBy(link=audit.link, step=audit.step, **audit.rates),
        audit_commitment=house.pieces.auditing.intake.commitment().hex(),
    )  # fmt: skip


def test_a_first_step_is_as_likely_to_be_drawn_whether_it_was_resumed_or_not() -> None:
    rates = Rates(0.5, 1, 9)
    for number in range(200):
        seed = seed_of(b"s", number.to_bytes(4, "big"))
        fresh, resumed = on_commit(seed, 1, range(4), rates), on_commit(seed, 1, range(4), rates, resumed=True)
        assert resumed.step == (bool(fresh.microbatches) or fresh.step) and not resumed.microbatches


def test_a_restarted_coordinator_asks_for_nothing_of_steps_that_were_answered(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = (await opened_round(house))[0]
        await member.commit(member.next_commit([]))
        for identifier in [*await member.lease(), *await member.lease()]:
            reply = await member.commit(member.next_commit([member.record(identifier)]))
            assert not reply.open_step and not reply.open_microbatches
        # From now on it would all be drawn; but what was answered its maker has let go of.
        house.pieces.core.emit("audit_suspected", member=member.id, reason="for the test")
        again = await house.restarted()
        assert not again.state.audit.audits
        house.pieces = again.pieces

    within(tmp_path, body, audit=HARDLY)


async def uploads(house: House, replica: Replica, data: bytes, gate: asyncio.Event, first: int) -> pb.Signed:
    """Send the update that ends a replica's chain, its bytes from `first` on only when `gate` opens."""
    last = replica.commits[-1]
    head = pb.UpdateHead(
        round=replica.view.round, base_cid=replica.view.base_cid, stage=replica.stage, generation=replica.entry.generation,
        size_bytes=len(data), sha256=hashlib.sha256(data).digest(), frames=FRAMES, inner_steps=last.step,
        microbatches=[pb.CountedMicrobatch(id=0, frames=FRAMES)], chain_link=last.link, chain_step=last.step,
    )  # fmt: skip
    signed = house.signed(replica.key, "submit_update", head, round=head.round, base_cid=head.base_cid, stage=head.stage)

    async def stream() -> AsyncIterator[pb.UpdateChunk]:
        yield pb.UpdateChunk(head=signed)
        if first:
            yield pb.UpdateChunk(data=data[:first])
            await gate.wait()
        yield pb.UpdateChunk(data=data[first:])
        if not first:  # the first one breaks
            yield pb.UpdateChunk(end=pb.UpdateEnd(chunks=1, bytes=len(data)))

    return await house.door.SubmitUpdate(stream(), Context())


async def ready_to_submit(house: House) -> tuple[Replica, bytes]:
    """A replica of the last stage that has trained and may hand in, and the bytes of its update."""
    member = (await opened_round(house))[2]
    await member.commit(member.next_commit([]))
    moved = {name: np.full_like(zero, LR / 2) for name, zero in member.zeros.items()}
    await member.commit(member.next_commit([member.record(0)], moved))
    house.pieces.core.emit("phase", phase=Phase.CLOSING.value, reason="for the test")
    return member, b"".join(bytes(part) for part in file_parts(moved))


def test_an_update_is_taken_from_a_second_connection_once_the_first_is_known_to_be_broken(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member, data = await ready_to_submit(house)
        gate = asyncio.Event()
        broken = asyncio.create_task(uploads(house, member, data, gate, len(data) // 2))
        while not list((house.folder / "state/updates").glob("*/*/*.part")):
            await asyncio.sleep(0)
        error = await house.refused(uploads(house, member, data, gate, 0))
        assert error.code is Code.STREAM_BROKEN, "a receipt would be the last word, and its work lost"
        gate.set()
        assert (await house.refused(broken)).code is Code.STREAM_BROKEN
        receipt = member.opened("submit_update", await uploads(house, member, data, gate, 0), pb.UpdateReceipt)
        assert receipt.accepted and (1, member.id) in house.state.updates

    within(tmp_path, body, audit=HARDLY)


@pytest.mark.parametrize("gone", [False, True])
def test_what_this_machine_cannot_read_is_no_fault_of_whoever_sent_it(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(house: House) -> None:
        member, data = await ready_to_submit(house)
        read = os.preadv

        def fails(descriptor: int, *rest: Any) -> int:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.endswith(".part"):
                if gone:
                    os.unlink(name)  # as the clearing up of a round that has gone on does
                else:
                    raise OSError(errno.EIO, "Input/output error")
            return read(descriptor, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", fails)
            await house.refused(uploads(house, member, data, asyncio.Event(), 0))
        assert not house.state.audit.quarantined
        receipt = member.opened("submit_update", await uploads(house, member, data, asyncio.Event(), 0), pb.UpdateReceipt)
        assert receipt.accepted

    within(tmp_path, body, audit=HARDLY)


async def drawn_pass(house: House) -> tuple[list[Replica], Replica, int]:
    """A replica of stage 0 of whose first step a pass is drawn."""
    replicas = await opened_round(house)
    prover = replicas[0]
    identifiers = await prover.lease()
    await prover.commit(prover.next_commit([]))
    reply = await prover.commit(prover.next_commit([prover.record(one) for one in identifiers]))
    return replicas, prover, reply.open_microbatches[0]


async def pass_time(house: House, replicas: list[Replica], seconds: int) -> None:
    """Let time go by while everybody is there."""
    for _ in range(seconds // 2):
        house.clock.now += 2
        for one in replicas:
            await one.watch()


def test_a_slow_line_has_the_time_that_its_bytes_take_and_silence_has_none(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        replicas, prover, drawn = await drawn_pass(house)
        loop, files = house.pieces.auditing.loop, house.pieces.auditing._files
        shown = opening_tensors(prover.about(drawn, 1), {name: prover.passed(drawn)[name] for name in ("input", "gradient_in")})
        data = b"".join(bytes(part) for part in file_parts({**shown, "filler": np.zeros(1_500_000, np.uint8)}))
        head = pb.OpeningHead(
            kind=pb.PASS_INPUT, round=1, stage=0, generation=prover.entry.generation, step=1, microbatch_id=drawn,
            size_bytes=len(data), sha256=hashlib.sha256(data).digest(),
        )  # fmt: skip
        gate = asyncio.Event()

        async def stream() -> AsyncIterator[pb.UpdateChunk]:
            yield pb.UpdateChunk(head=house.signed(prover.key, "submit_opening", head, round=1, stage=0))
            yield pb.UpdateChunk(data=data[:1000])
            await gate.wait()

        sending = asyncio.create_task(house.door.SubmitOpening(stream(), Context()))
        while not files.sending_until(prover.id):
            await asyncio.sleep(0)
        await pass_time(house, replicas, 22)  # 20 s are the limit; 1.5 MB take 23 s on the slowest line
        await loop.step()
        assert house.state.audit.audits and not house.state.audit.ended
        await pass_time(house, replicas, 4)
        await loop.step()
        (ended,) = [one for one in house.state.audit.ended if one["kind"] == "pass"]
        assert ended["outcome"] == "not opened"
        gate.set()
        await house.refused(sending)

    within(tmp_path, body, audit=ALWAYS)


def test_an_opening_that_found_no_room_here_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(house: House) -> None:
        replicas, prover, drawn = await drawn_pass(house)
        await pass_time(house, replicas, 18)

        def full(self: Path, *rest: Any, **more: Any) -> Any:
            if self.suffix == ".part":
                raise OSError(errno.ENOSPC, "No space left on device")
            return opened(self, *rest, **more)

        opened = Path.open
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full)
            assert (await house.refused(prover.open(pb.PASS_INPUT, drawn))).code is Code.DISK_FULL
        await pass_time(house, replicas, 4)
        await house.pieces.auditing.loop.step()
        assert not house.state.audit.ended, "it tries again, and we could not take it"
        for kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
            assert (await prover.open(kind, drawn)).accepted

    within(tmp_path, body, audit=ALWAYS)


def test_nobody_answers_for_time_in_which_the_coordinator_stood_still(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        await drawn_pass(house)
        loop = house.pieces.auditing.loop
        running = asyncio.create_task(loop.run())
        for _ in range(3):
            await asyncio.sleep(0)
        house.clock.now += 100  # frozen, and the first to look again
        loop.changed.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert house.state.audit.audits and not house.state.audit.ended
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    within(tmp_path, body, audit=ALWAYS)
