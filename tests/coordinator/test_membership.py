"""Members that fall silent, come back, leave, or load the wrong weights."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.generated import hocket_pb2 as pb


async def live_until(members: list[Any], holds: Callable[[], bool]) -> None:
    """All these members keep going until `holds`."""
    async with asyncio.timeout(100):
        await asyncio.gather(*(member.live(lambda _: holds()) for member in members))


async def status(member: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await member.stub.Status(pb.StatusRequest())).json)
    return found


def replicas(found: dict[str, Any], stage: int) -> dict[str, dict[str, Any]]:
    return {one["member"]: one for one in found["stages"][stage]["replicas"]}


@pytest.mark.timeout(240)
def test_a_silent_member_is_replaced_and_may_come_back(scripted: SimpleNamespace) -> None:
    scripted.prepare(count=3, replicas=1, silence=2, evaluate="false")
    process = scripted.start(exits=True)
    ticket = process.ticket()

    async def run() -> None:
        world = await scripted.gather(ticket, 3)
        for member in world.members:
            await member.watch()
        by_stage: dict[int, list[Any]] = {0: [], 1: []}
        for member in world.members:
            while member.entry is None:
                await member.watch()
            by_stage[member.entry.stage].append(member)
        # Either stage may have got the third member: the lot decides where both would have it.
        thin, full = sorted(by_stage, key=lambda stage: len(by_stage[stage]))
        assert [len(by_stage[thin]), len(by_stage[full])] == [1, 2]
        lone = by_stage[thin][0]
        # The only replica of its stage joins the first round and falls silent in it, though its connection stands.
        await live_until(world.members, lambda: lone.view.phase in (pb.OPEN, pb.CLOSING))
        lone.alive = False
        others = by_stage[full]
        await live_until(others, lambda: all(one.view.round >= 2 for one in others))
        found = await status(others[0])
        assert replicas(found, thin)[lone.id]["alive"] is False and "silent" in replicas(found, thin)[lone.id]["reason"]
        # One of the two others was moved to cover its stage, under a new generation.
        moved = next(one for one in others if one.entry is not None and one.entry.stage == thin)
        assert moved.entry.generation == 2
        # It only watches again: it is live again, under a new generation.
        generation = replicas(found, thin)[lone.id]["generation"]
        lone.alive = True
        await live_until(world.members, lambda: lone.entry is not None)
        assert lone.entry.generation == generation + 1
        await live_until(world.members, lambda: lone.view.phase == pb.FINISHED)

    asyncio.run(run())
    assert process.wait() == 0


@pytest.mark.timeout(240)
def test_wrong_weights_are_noticed_and_must_be_loaded_again(scripted: SimpleNamespace) -> None:
    scripted.prepare(count=2, replicas=1, silence=20, evaluate="false")
    process = scripted.start()
    ticket = process.ticket()

    async def run() -> None:
        world = await scripted.gather(ticket, 3)
        wrong = world.members[2]
        wrong.wrong_weights = 1
        seen: list[int] = []

        def given_up() -> bool:
            if wrong.entry is not None and wrong.entry.generation not in seen:
                seen.append(wrong.entry.generation)
            return not wrong.alive

        async def rest() -> None:
            while True:
                found = await status(world.members[0])
                listed = [one for stage in (0, 1) for one in replicas(found, stage).values() if one["member"] == wrong.id]
                if any("other weights" in one["reason"] for one in listed):
                    wrong.alive = False
                    return
                await asyncio.sleep(0.05)

        await asyncio.gather(live_until(world.members, given_up), rest())
        assert len(seen) >= 2
        # It is not taken in again until its process starts anew, mended.
        wrong.alive = True
        for _ in range(3):
            await wrong.watch()
        assert wrong.entry is None
        wrong.wrong_weights = 0
        await wrong.join()
        # The others never waited for it longer than for its readiness, and bring the run to its end.
        await live_until(world.members, lambda: world.members[0].view.phase == pb.FINISHED)
        found = await status(world.members[0])
        assert found["phase"] == "FINISHED" and len(found["rounds"]) == 2
        # A connection that breaks is noticed long before the bound of a silent member, which is twenty seconds here.
        broken = wrong
        held = asyncio.ensure_future(broken.stub.Watch(broken.sign("watch", pb.WatchRequest(
            known_revision=broken.view.revision + 1000, wait_s=6, report=broken.report()))))  # fmt: skip
        await asyncio.sleep(0.5)
        await broken.channel.close()
        await asyncio.gather(held, return_exceptions=True)
        started = time.monotonic()
        while broken.alive:
            found = await status(world.members[0])
            listed = [one for stage in (0, 1) for one in replicas(found, stage).values() if one["member"] == broken.id]
            broken.alive = all(one["alive"] for one in listed)
            await asyncio.sleep(0.1)
        assert time.monotonic() - started < 8
        # A member that leaves is gone at once.
        leaver = world.members[1]
        leaver.open("leave", await leaver.stub.Leave(leaver.sign("leave", pb.LeaveRequest(reason="bedtime"))), pb.LeaveReply)
        found = await status(world.members[0])
        gone = next(one for stage in (0, 1) for one in replicas(found, stage).values() if one["member"] == leaver.id)
        assert gone["alive"] is False and "bedtime" in gone["reason"]

    asyncio.run(run())
    assert process.terminate() == 0
