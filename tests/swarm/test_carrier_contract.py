"""What every carrier promises of calls that are answered or refused, checked on the one in memory and on the one over libp2p."""

from __future__ import annotations

import asyncio
import logging

import pytest
from contract_world import LIMIT, TIMES, World, code_of, echo, pattern

from common.errors import Code, HocketError
from swarm.carrier import Message, PeerAddress, PeerRefused
from swarm.frames import MAX_HEAD_BYTES
from swarm.pool import MAX_STREAMS


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
