"""What every carrier promises of calls that end early: by silence, a deadline, a break, or a peer that is gone."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from contract_world import LIMIT, TIMES, World, code_of, echo, pattern

from common.errors import Code, HocketError
from swarm.carrier import WAITING_EVERY_S, Message, PeerAddress
from swarm.frames import encode
from swarm.pool import MAX_STREAMS


def test_a_working_peer_is_not_silent(world: World) -> None:
    async def work() -> None:
        async def handle(peer_id: str, request: Message) -> Message:
            await asyncio.sleep(1.0)
            return request

        await world.server.serve("slow", handle, max_request_bytes=LIMIT)
        world.server.waiting_every_s = 0.05
        try:
            answer = await world.client.call(world.server.address, "slow", Message(b"x"), silence_s=0.5, deadline_s=20)
        finally:
            world.server.waiting_every_s = WAITING_EVERY_S
        assert answer.head == b"x"

    world.run(work())


def test_silence_ends_the_call_and_the_handler(world: World) -> None:
    async def work() -> None:
        cancelled = asyncio.Event()

        async def handle(peer_id: str, request: Message) -> Message:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return request

        await world.server.serve("mute", handle, max_request_bytes=LIMIT)
        world.server.waiting_every_s = 3600.0
        try:
            code, after_s = await code_of(
                world.client.call(world.server.address, "mute", Message(b"x"), silence_s=0.4, deadline_s=20)
            )
        finally:
            world.server.waiting_every_s = WAITING_EVERY_S
        assert code is Code.PEER_SILENT
        assert 0.4 <= after_s < 5
        await asyncio.wait_for(cancelled.wait(), 10)

    world.run(work())


def test_deadline_ends_a_call_that_is_not_silent(world: World) -> None:
    async def work() -> None:
        async def handle(peer_id: str, request: Message) -> Message:
            await asyncio.Event().wait()
            return request

        await world.server.serve("never", handle, max_request_bytes=LIMIT)
        world.server.waiting_every_s = 0.02
        start = time.monotonic()
        try:
            with pytest.raises(HocketError, match="deadline") as caught:
                await world.client.call(world.server.address, "never", Message(b"x"), silence_s=0.4, deadline_s=1.0)
        finally:
            world.server.waiting_every_s = WAITING_EVERY_S
        assert caught.value.code is Code.PEER_SILENT
        assert 1.0 <= time.monotonic() - start < 5

    world.run(work())


def test_cancelling_a_call_cancels_its_handler(world: World) -> None:
    async def work() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def handle(peer_id: str, request: Message) -> Message:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return request

        await world.server.serve("cancel", handle, max_request_bytes=LIMIT)
        calling = asyncio.create_task(world.client.call(world.server.address, "cancel", Message(b""), **TIMES))
        await asyncio.wait_for(started.wait(), 10)
        calling.cancel()
        await asyncio.wait_for(cancelled.wait(), 10)
        assert (await asyncio.gather(calling, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    world.run(work())


@pytest.mark.parametrize("left_bytes", [None, 1, 45, 46, 300_000, 700_000])
def test_an_answer_that_ends_early_is_an_error(world: World, left_bytes: int | None) -> None:
    """`left_bytes` of the answer are missing; None: all."""

    async def work() -> None:
        answer = Message(b"head", [pattern(700_000)])
        whole = len(b"".join(encode(answer)))
        await world.serve_cut(f"cut{left_bytes}", answer, 0 if left_bytes is None else whole - left_bytes)
        code, after_s = await code_of(world.client.call(world.server.address, f"cut{left_bytes}", Message(b""), **TIMES))
        assert code is Code.STREAM_BROKEN
        assert after_s < 5

    world.run(work())


def test_calls_that_fail_leave_nothing_open(world: World) -> None:
    async def work() -> None:
        async def refuse(peer_id: str, request: Message) -> Message:
            raise HocketError(Code.TICKET_INVALID, "no")

        async def hold(peer_id: str, request: Message) -> Message:
            await asyncio.Event().wait()
            return request

        await world.server.serve("refusing", refuse, max_request_bytes=LIMIT)
        await world.server.serve("holding", hold, max_request_bytes=LIMIT)
        nobody = PeerAddress("QmUqmyZmRHKRBjVUGVYS2D5sBmiCdHRWnN4X9Q1vwcwTSC", ("/ip4/127.0.0.1/tcp/9",))

        async def fail(times: int) -> None:
            for _ in range(times):
                for peer, protocol in ((nobody, "x"), (world.server.address, "unserved"), (world.server.address, "refusing")):
                    await code_of(world.client.call(peer, protocol, Message(b""), **TIMES))
                for deadline_s in (0.0, 0.02):
                    call = world.client.call(world.server.address, "holding", Message(b""), silence_s=9, deadline_s=deadline_s)
                    assert (await code_of(call))[0] is Code.PEER_SILENT
            async with asyncio.timeout(20):
                while len(world.server._serving) > serving:
                    await asyncio.sleep(0.01)

        serving = len(world.server._serving)
        await fail(3)
        before, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        await fail(20)
        assert len(os.listdir("/proc/self/fd")) < before + 10
        assert len(asyncio.all_tasks()) < tasks + 10
        assert not any(streams.users for streams in world.client._streams.values())

    world.run(work())


def test_a_closed_peer_breaks_calls_and_cannot_be_reached(world: World) -> None:
    async def work() -> None:
        peer = await world.another("closing")
        started = asyncio.Event()

        async def handle(peer_id: str, request: Message) -> Message:
            started.set()
            await asyncio.Event().wait()
            return request

        await peer.serve("hold", handle, max_request_bytes=LIMIT)
        await peer.serve("echo", echo, max_request_bytes=LIMIT)
        await world.client.call(peer.address, "echo", Message(b""), **TIMES)
        calling = asyncio.create_task(world.client.call(peer.address, "hold", Message(b""), **TIMES))
        await asyncio.wait_for(started.wait(), 10)
        await peer.close()
        with pytest.raises(HocketError) as caught:
            await calling
        assert caught.value.code is Code.STREAM_BROKEN
        code, after_s = await code_of(world.client.call(peer.address, "echo", Message(b""), **TIMES))
        assert code is Code.PEER_UNREACHABLE
        assert after_s < 5
        assert (await code_of(peer.call(world.server.address, "echo", Message(b""), **TIMES)))[0] is Code.CARRIER_FAILED
        await peer.close()

    world.run(work())


def test_a_full_pool_counts_against_the_deadline(world: World) -> None:
    async def work() -> None:
        release, all_run = asyncio.Event(), asyncio.Event()
        running = 0

        async def handle(peer_id: str, request: Message) -> Message:
            nonlocal running
            running += 1
            if running == MAX_STREAMS:
                all_run.set()
            await release.wait()
            return request

        await world.server.serve("full", handle, max_request_bytes=LIMIT)
        calls = [
            asyncio.create_task(world.client.call(world.server.address, "full", Message(b""), **TIMES))
            for _ in range(MAX_STREAMS)
        ]
        await asyncio.wait_for(all_run.wait(), 20)
        code, after_s = await code_of(world.client.call(world.server.address, "full", Message(b""), silence_s=5, deadline_s=0.3))
        assert code is Code.PEER_SILENT
        assert 0.3 <= after_s < 3
        release.set()
        await asyncio.gather(*calls)

    world.run(work())
