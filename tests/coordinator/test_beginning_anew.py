"""A member that begins anew, goes, or says too much must not shake off what was drawn, nor fill what others need."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from audited_members import LR, Replica, going_on, opened_round, send
from door_in_process import Aborted, House, within

from common.errors import Code
from coordinator.audit_rates import Standing
from coordinator.chains import MAX_CHAINS
from coordinator.rounds import Phase
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb

HARDLY = "rate = 1e-9\nnew_rounds = 0\ncanaries = 0.0"


async def drawn_once(house: House, place: int) -> Replica:
    """A member of whose first step a pass is drawn, and which is then as likely to be drawn as anybody: hardly."""
    member = (await opened_round(house))[place]
    state = house.state.audit
    state.standings[member.id] = Standing(suspected="for the test")
    await member.commit(member.next_commit([]))
    if member.stage == 0:
        assert 0 in await member.lease()
    moved = {name: np.full_like(zero, LR / 2) for name, zero in member.zeros.items()}
    reply = await member.commit(member.next_commit([member.record(0)], moved))
    assert reply.open_microbatches
    state.standings[member.id] = Standing(rounds=9)
    return member


@pytest.mark.parametrize("looked", [False, True])
def test_whoever_begins_again_after_a_draw_is_drawn_again(looked: bool, tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = await drawn_once(house, 0)
        begin = going_on(member, 1, [], update_digest=tensors_digest(member.zeros))
        await send(member, begin)
        if looked:
            await house.pieces.auditing.loop.step()
            assert house.state.audit.standing(member.id).gone == 1
        after = hashlib.sha256(b"another").digest()
        reply = await send(member, going_on(member, 1, [begin], records=[member.record(0)], update_digest=after))
        assert reply.open_microbatches, "else it could begin again until nothing is drawn"

    within(tmp_path, body, audit=HARDLY)


@pytest.mark.parametrize("looked", [False, True])
def test_an_update_that_rests_on_what_was_drawn_and_not_shown_is_left_out(looked: bool, tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = await drawn_once(house, 2)
        last = member.commits[-1]
        begin = going_on(member, 1, [], previous=last.link, update_digest=last.update_digest)
        await send(member, begin)
        if looked:
            await house.pieces.auditing.loop.step()
        house.pieces.core.emit("phase", phase=Phase.CLOSING.value, reason="for the test")
        await member.submit(member.moved, chain_link=begin.link, chain_step=0, chain_part=1)
        assert (1, member.id) not in house.state.updates
        assert "not shown" in house.state.audit.excluded[1, member.id]

    within(tmp_path, body, audit=HARDLY)


def test_a_member_that_goes_after_its_update_but_before_it_has_shown_its_step_is_left_out(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = await drawn_once(house, 2)
        house.pieces.core.emit("phase", phase=Phase.CLOSING.value, reason="for the test")
        assert (await member.submit(member.moved)).accepted and (1, member.id) in house.state.updates
        await house.ask(member.key, "leave", pb.LeaveRequest(reason="for the test"))
        await house.pieces.auditing.loop.step()
        assert (1, member.id) not in house.state.updates and (1, member.id) in house.state.audit.excluded

    within(tmp_path, body, audit=HARDLY)


def test_a_member_begins_only_so_many_chains_in_a_round(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = (await opened_round(house))[0]
        zeros = tensors_digest(member.zeros)
        for part in range(MAX_CHAINS):
            await send(member, going_on(member, part, [], update_digest=zeros))
        with pytest.raises(Aborted) as caught:
            await send(member, going_on(member, MAX_CHAINS, [], update_digest=zeros))
        assert caught.value.error.code is Code.COMMIT_REFUSED and not house.state.audit.quarantined

    within(tmp_path, body, audit=HARDLY)


def test_what_a_member_sent_before_its_good_bye_does_not_bring_it_back(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = (await opened_round(house))[0]
        await house.ask(member.key, "leave", pb.LeaveRequest(reason="stopped"))
        await house.ask(member.key, "watch", pb.WatchRequest(report=pb.MemberReport(round=1, pid=1)))
        assert not house.state.members[member.id].live
        await member.join()
        assert house.state.members[member.id].live

    within(tmp_path, body, audit=HARDLY)


def test_a_lease_counts_no_more_frames_than_its_rows_can_have(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        member = (await opened_round(house))[0]
        await member.lease()
        (lease,) = house.state.leases.values()
        house.state.model_config["max_frames"] = 120  # far below all the frames that there are
        most = lease.range.rows * 120
        for frames, taken in ((most + 1, False), (most, True)):
            report = pb.MemberReport(round=1, pid=1, stage=0, generation=member.entry.generation)
            report.leases_done.add(lease_id=lease.lease_id, frames=frames, microbatches=2)
            await house.ask(member.key, "watch", pb.WatchRequest(report=report))
            assert (lease.done_at is not None) == taken

    within(tmp_path, body, audit=HARDLY)
