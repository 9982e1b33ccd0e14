"""What every carrier promises, checked on the one in memory and on the one over libp2p."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from common.errors import Code, HocketError
from swarm.carrier import WAITING_EVERY_S, Message, PeerAddress, PeerRefused
from swarm.frames import MAX_HEAD_BYTES, encode
from swarm.libp2p import LibP2PCarrier
from swarm.memory import MemoryCarrier, MemoryNetwork
from swarm.pool import MAX_STREAMS, StreamCarrier

T = TypeVar("T")
LIMIT = 64 << 20
TIMES: dict[str, Any] = {"silence_s": 10.0, "deadline_s": 30.0}


class World:
    """Two carriers and a loop that live as long as the module's tests."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._runner = asyncio.Runner()
        self._network = MemoryNetwork()
        self._carriers: list[StreamCarrier] = []
        self.server = self.run(self.another("server"))
        self.client = self.run(self.another("client"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def another(self, name: str) -> StreamCarrier:
        """One more carrier, on the same network; it is closed at the end."""
        if self.kind == "memory":
            carrier: StreamCarrier = MemoryCarrier(self._network, name)
        else:
            state = self._folder / name
            bootstrap = self._carriers[0].multiaddrs if self._carriers else ()
            carrier = await LibP2PCarrier.create(state / "peer.key", bootstrap=bootstrap, state_dir=state)
        self._carriers.append(carrier)
        return carrier

    async def serve_cut(self, protocol: str, answer: Message, after_bytes: int) -> None:
        """Serve `protocol` with `answer`, but end the stream after so many bytes of it, as a dying peer does."""
        if isinstance(self.server, MemoryCarrier):

            async def handle(peer_id: str, request: Message) -> Message:
                return answer

            await self.server.serve(protocol, handle, max_request_bytes=LIMIT)
            self._network.cut_next_answer(self.server.peer_id, protocol, after_bytes=after_bytes)
            return

        async def accept(info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(5)
            writer.write(b"".join(encode(answer))[:after_bytes])
            await writer.drain()
            writer.close()

        assert isinstance(self.server, LibP2PCarrier)
        await self.server._daemon.p2p.add_binary_stream_handler(protocol, accept)

    def close(self) -> None:
        for carrier in self._carriers:
            self.run(carrier.close())
        self._runner.close()


@pytest.fixture(scope="module", params=["memory", "libp2p"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(request.param, tmp_path_factory.mktemp("world"))
    try:
        yield made
    finally:
        made.close()


def pattern(size: int) -> bytes:
    return hashlib.shake_128(str(size).encode()).digest(size)


async def echo(peer_id: str, request: Message) -> Message:
    return Message(b"re:" + request.head, request.body)


async def code_of(call: Coroutine[Any, Any, Message]) -> tuple[Code, float]:
    """The number of the error that `call` ends with, and after how many seconds."""
    start = time.monotonic()
    with pytest.raises(HocketError) as caught:
        await call
    return caught.value.code, time.monotonic() - start


@pytest.mark.parametrize("size", [0, 1, 65_537, 8 << 20])
def test_round_trip(world: World, size: int) -> None:
    async def work() -> None:
        await world.server.serve("echo", echo, max_request_bytes=LIMIT)
        body = pattern(size)
        for body_parts in ([body], [body[: size // 3], b"", body[size // 3 :]]):
            answer = await world.client.call(world.server.address, "echo", Message(b"h", list(body_parts)), **TIMES)
            assert answer.head == b"re:h"
            assert answer.body_bytes == body
            assert answer.body_size_bytes == size

    world.run(work())


def test_handler_knows_the_caller_and_bytes_are_counted(world: World) -> None:
    async def work() -> None:
        callers = []

        async def handle(peer_id: str, request: Message) -> Message:
            callers.append(peer_id)
            return Message(b"", [bytes(5000)])

        await world.server.serve("count", handle, max_request_bytes=LIMIT)
        await world.client.call(world.server.peer_id, "count", Message(b"", [bytes(200_000)]), **TIMES)
        assert callers == [world.client.peer_id]
        assert 200_000 < world.client.traffic.requests["count"] < 200_200
        assert world.client.bytes_sent["count"] == world.client.traffic.requests["count"]
        assert 5000 < world.server.traffic.answers["count"] < 5200
        assert world.client.traffic.answers["count"] == 0
        assert world.server.bytes_sent["count"] == world.server.traffic.answers["count"]

    world.run(work())


def test_concurrent_calls_keep_apart_and_are_bounded(world: World) -> None:
    async def work() -> None:
        running, most = 0, 0

        async def handle(peer_id: str, request: Message) -> Message:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return Message(request.head, request.body)

        await world.server.serve("many", handle, max_request_bytes=LIMIT)

        async def one(number: int) -> None:
            body = pattern(number * 300)
            answer = await world.client.call(world.server.address, "many", Message(str(number).encode(), [body]), **TIMES)
            assert answer.head == str(number).encode()
            assert answer.body_bytes == body

        await asyncio.gather(*(one(number) for number in range(3 * MAX_STREAMS)))
        assert 2 < most <= MAX_STREAMS

    world.run(work())


def test_serving_again_replaces_the_handler(world: World) -> None:
    async def work() -> None:
        for name in (b"first", b"second"):

            async def handle(peer_id: str, request: Message, name: bytes = name) -> Message:
                return Message(name)

            await world.server.serve("again", handle, max_request_bytes=LIMIT)
            assert (await world.client.call(world.server.address, "again", Message(b""), **TIMES)).head == name

    world.run(work())


def test_calls_in_turn_share_one_stream(world: World) -> None:
    async def work() -> None:
        await world.server.serve("turn", echo, max_request_bytes=LIMIT)
        for _ in range(20):
            await world.client.call(world.server.address, "turn", Message(b""), **TIMES)
        assert len(world.client._streams[world.server.peer_id, "turn"].idle) == 1

    world.run(work())


def test_numbered_error_of_a_handler_reaches_the_caller(world: World) -> None:
    async def work() -> None:
        fail = True

        async def handle(peer_id: str, request: Message) -> Message:
            if fail:
                raise HocketError(Code.SIGNATURE_INVALID, "signed by ünknown")
            return request

        await world.server.serve("refuse", handle, max_request_bytes=LIMIT)
        request = Message(b"", [bytes(3 << 20)])
        with pytest.raises(PeerRefused) as caught:
            await world.client.call(world.server.address, "refuse", request, **TIMES)
        assert caught.value.code is Code.PEER_REFUSED
        assert caught.value.remote_code == Code.SIGNATURE_INVALID
        assert caught.value.remote_detail == "signed by ünknown"
        assert caught.value.peer_id == world.server.peer_id
        assert "H308" in caught.value.line()
        fail = False
        assert (await world.client.call(world.server.address, "refuse", Message(b"now"), **TIMES)).head == b"now"

    world.run(work())


def test_fault_of_a_handler_is_logged_there_and_told_without_details(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def handle(peer_id: str, request: Message) -> Message:
            raise ValueError("a secret of the server")

        await world.server.serve("fault", handle, max_request_bytes=LIMIT)
        with pytest.raises(PeerRefused) as caught:
            await world.client.call(world.server.address, "fault", Message(b""), **TIMES)
        assert caught.value.remote_code == 0
        assert "secret" not in caught.value.line()

    with caplog.at_level(logging.ERROR):
        world.run(work())
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)


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


def test_a_request_above_the_limit_never_reaches_the_handler(world: World) -> None:
    async def work() -> None:
        handled = []

        async def handle(peer_id: str, request: Message) -> Message:
            handled.append(request.body_size_bytes)
            return Message(b"ok")

        await world.server.serve("limit", handle, max_request_bytes=1 << 20)
        for too_much in (1, 30 << 20):
            with pytest.raises(PeerRefused) as caught:
                request = Message(b"", [bytes((1 << 20) + too_much)])
                await world.client.call(world.server.address, "limit", request, **TIMES)
            assert caught.value.remote_code == Code.MESSAGE_TOO_LARGE
        await world.client.call(world.server.address, "limit", Message(b"", [bytes(1 << 20)]), **TIMES)
        assert handled == [1 << 20]

    world.run(work())


def test_an_answer_above_the_limit_is_refused(world: World) -> None:
    async def work() -> None:
        await world.server.serve("large", echo, max_request_bytes=LIMIT)
        call = world.client.call(world.server.address, "large", Message(b"", [bytes(3 << 20)]), max_answer_bytes=1 << 20, **TIMES)
        assert (await code_of(call))[0] is Code.MESSAGE_TOO_LARGE

    world.run(work())


def test_a_head_above_the_limit_is_refused_here(world: World) -> None:
    async def work() -> None:
        call = world.client.call(world.server.address, "echo", Message(bytes(MAX_HEAD_BYTES + 1)), **TIMES)
        assert (await code_of(call))[0] is Code.MESSAGE_TOO_LARGE

    world.run(work())


def test_a_protocol_that_is_not_served_is_refused(world: World) -> None:
    async def work() -> None:
        with pytest.raises(PeerRefused, match="does not serve") as caught:
            await world.client.call(world.server.address, "nobody/serves/this", Message(b""), **TIMES)
        assert caught.value.code is Code.PEER_REFUSED

    world.run(work())


def test_an_unknown_peer_is_unreachable(world: World) -> None:
    async def work() -> None:
        nobody = PeerAddress("QmUqmyZmRHKRBjVUGVYS2D5sBmiCdHRWnN4X9Q1vwcwTSC", ("/ip4/127.0.0.1/tcp/9",))
        assert (await code_of(world.client.call(nobody, "echo", Message(b""), **TIMES)))[0] is Code.PEER_UNREACHABLE

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
