"""A coordinator's door under fire from inside: two of its members, each with a place, send nothing but malformed calls.

The door, the one who asks for the status, and the storm are three processes, so that memory and waiting times are the server's
own. Nobody answers for the members, so no round ends: what is looked at is that every call is answered or refused by a number,
and that the state is still what the journal says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from protocol.generated import hocket_pb2 as pb
from protocol.ticket import Ticket
from simulations.hostile.call_storm import CallStorm, in_turn
from simulations.hostile.door_process import insider_keys
from simulations.hostile.helper import Helper, asking, note_answers
from simulations.hostile.tally import Tally, faults_in_logs
from simulations.usage import resident_bytes

AT_ONCE = 16
LOOK_EVERY_S = 0.1
GROWTH_LIMIT_BYTES = 128 << 20


def _messages(facts: Mapping[str, Any]) -> dict[str, tuple[str, Message]]:
    """What the member of stage 1 would send if it were honest."""
    where: dict[str, Any] = {"round": facts["round"], "generation": 1, "stage": 1}
    update = pb.UpdateHead(
        **where, base_cid=facts["base_cid"], size_bytes=facts["stage_bytes"], sha256=bytes(32), frames=3, leaving=True
    )
    return {
        "SubmitUpdate": ("submit_update", update),
        "SubmitOpening": ("submit_opening", pb.OpeningHead(**where, kind=pb.STEP, step=1, size_bytes=100, sha256=bytes(32))),
        "Commit": ("commit", pb.StepCommit(**where, link=bytes(32), update_digest=bytes(32), moments_digest=bytes(32))),
        "Lease": ("lease", pb.LeaseRequest(round=facts["round"], generation=1)),
        "Watch": ("watch", pb.WatchRequest(known_revision=1, report=pb.MemberReport(
            **where, ready_base_cid=facts["base_cid"], weights_sha256=bytes(32), frames_done=10, suspects=["x"],
            losses=[pb.CodebookLoss(ce_sum=1.0, count=1)], oddities=[pb.Oddity(member_id="x")],
            heldout=[pb.CodebookLoss(ce_sum=1.0, count=1)], leases_done=[pb.LeaseDone(lease_id=0, frames=1, microbatches=1)],
        ))),
    }  # fmt: skip


async def _look(pid: int, seen: list[int]) -> None:
    """Note the server's resident memory again and again, until cancelled."""
    while True:
        seen.extend(resident_bytes(pid)[:1])
        await asyncio.sleep(LOOK_EVERY_S)


async def fuzz_door(messages: int, seed: int, folder: Path) -> Tally:
    """Throw malformed calls of members at a coordinator's door.

    Args:
        folder: for the coordinator's state.
    """
    tally = Tally("coordinator's door", limit_bytes=GROWTH_LIMIT_BYTES)
    began = time.monotonic()
    async with Helper("simulations.hostile.door_process", str(folder), log=folder / "door.log") as server:
        ticket = Ticket.decode(server.ready["ticket"])
        storm = CallStorm(ticket, tally, seed, insider_keys(), _messages(server.ready))
        await storm.open()
        async with asking(server.ready["ticket"], LOOK_EVERY_S, folder / "asker.log") as asker:
            seen = resident_bytes(server.pid)[:1]
            looking = asyncio.create_task(_look(server.pid, seen))
            try:
                with faults_in_logs(tally):
                    async with storm.half_open():
                        await in_turn(range(messages), AT_ONCE, storm.one)
                note_answers(tally, await asker.end())
            finally:
                looking.cancel()
                await asyncio.wait({looking})
                await storm.close()
        for fault in (await server.end())["faults"]:
            tally.fault(fault)
    tally.grown_bytes = {"the server at its peak": max(seen) - seen[0]}
    tally.seconds = time.monotonic() - began
    return tally
