"""Real processes, real daemons: what happens when one of them dies, freezes or moves."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from peer_processes import Peer, carrier_in, serving_peer, wait_until_gone

from common.errors import Code, HocketError
from protocol.identity import MemberKey
from swarm.carrier import Message, PeerAddress
from swarm.daemon import LibP2POptions
from swarm.libp2p import LibP2PCarrier
from swarm.records import MAX_LIFE_MS, make_record, wall_clock_ms

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A serving peer for the tests that leave it alive."""
    with serving_peer(tmp_path_factory.mktemp("peer")) as running:
        yield running


async def failure(carrier: LibP2PCarrier, peer: PeerAddress, protocol: str, *, silence_s: float = 20.0) -> tuple[Code, float]:
    start = time.monotonic()
    with pytest.raises(HocketError) as caught:
        await carrier.call(peer, protocol, Message(b""), silence_s=silence_s, deadline_s=60.0)
    return caught.value.code, time.monotonic() - start


def test_a_peer_killed_in_the_middle_of_its_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with carrier_in(tmp_path / "own") as carrier:
            await carrier.call(peer.address, "echo", Message(b"x"), silence_s=10, deadline_s=20)
            code, after_s = await failure(carrier, peer.address, "die")
            assert code is Code.STREAM_BROKEN
            assert after_s < 10
            assert peer.process.wait(10) == -signal.SIGKILL

    with serving_peer(tmp_path / "peer") as peer:
        asyncio.run(work())
        wait_until_gone(peer.told["daemon_pid"], 15)


@pytest.mark.parametrize("daemon_too", [False, True])
def test_a_frozen_peer_is_silent_and_comes_back(tmp_path: Path, peer: Peer, daemon_too: bool) -> None:
    async def work() -> None:
        async with carrier_in(tmp_path / "own") as carrier:
            await carrier.call(peer.address, "echo", Message(b"x"), silence_s=10, deadline_s=20)
            pids = [peer.process.pid, *([peer.told["daemon_pid"]] if daemon_too else [])]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            for protocol in ("echo", "hold"):  # over the stream that is open, and over a new one
                code, after_s = await failure(carrier, peer.address, protocol, silence_s=1.0)
                assert code is Code.PEER_SILENT
                assert 1.0 <= after_s < 4
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            answer = await carrier.call(peer.address, "echo", Message(b"back"), silence_s=10, deadline_s=20)
            assert answer.head == b"back"

    asyncio.run(work())


def test_a_peer_killed_while_it_works_and_restarted_at_another_port(tmp_path: Path) -> None:
    async def work() -> None:
        async with carrier_in(tmp_path / "own") as carrier:
            with serving_peer(tmp_path / "peer") as peer:
                await carrier.call(peer.address, "echo", Message(b"x"), silence_s=10, deadline_s=20)
                calling = asyncio.create_task(failure(carrier, peer.address, "hold"))
                while not carrier.traffic.requests["hold"]:
                    await asyncio.sleep(0.01)
                start = time.monotonic()
                peer.process.kill()
                assert (await calling)[0] is Code.STREAM_BROKEN
                assert time.monotonic() - start < 5
                await asyncio.to_thread(wait_until_gone, peer.told["daemon_pid"], 20)
                async with asyncio.timeout(5):
                    # Until our daemon has read the end of the old connection, a call may still be sent into it, and break.
                    while (found := (await failure(carrier, peer.address, "echo"))[0]) is Code.STREAM_BROKEN:
                        await asyncio.sleep(0.01)
                assert found is Code.PEER_UNREACHABLE
            with serving_peer(tmp_path / "peer") as again:
                assert again.address.peer_id == peer.address.peer_id
                assert again.address.multiaddrs != peer.address.multiaddrs
                answer = await carrier.call(again.address, "echo", Message(b"again"), silence_s=10, deadline_s=20)
                assert answer.head == b"again"

    asyncio.run(work())


def test_a_peer_that_moved_is_reached_though_its_old_machine_never_said_goodbye(tmp_path: Path, peer: Peer) -> None:
    """The old process and its daemon freeze, as a suspended machine does; the same identity comes up elsewhere."""
    (tmp_path / "moved").mkdir()
    shutil.copy(Path(peer.told["state"]) / "peer.key", tmp_path / "moved" / "peer.key")

    async def work(moved: Peer) -> None:
        async with carrier_in(tmp_path / "own") as carrier:
            await carrier.call(peer.address, "echo", Message(b"x"), silence_s=10, deadline_s=20)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            assert moved.address.peer_id == peer.address.peer_id
            answer = await carrier.call(moved.address, "echo", Message(b"here"), silence_s=10, deadline_s=20)
            assert answer.head == b"here"

    pids = [peer.process.pid, peer.told["daemon_pid"]]
    with serving_peer(tmp_path / "moved") as moved:
        try:
            asyncio.run(work(moved))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def test_a_daemon_that_dies_is_replaced(tmp_path: Path, peer: Peer) -> None:
    """The new one has its identity and port, serves the calls of both sides, holds its records, and leaves no descriptor open."""

    async def ours(peer_id: str, request: Message) -> Message:
        return Message(b"ours")

    async def answer_of(carrier: LibP2PCarrier, address: PeerAddress, protocol: str) -> bytes:
        """A call of one who, as callers do, tries again when a stream breaks."""
        async with asyncio.timeout(20):
            while True:
                try:
                    return (await carrier.call(address, protocol, Message(b"x"), silence_s=10, deadline_s=15)).head
                except HocketError as error:
                    assert error.code in (Code.STREAM_BROKEN, Code.PEER_UNREACHABLE)
                    await asyncio.sleep(0.05)

    async def work() -> None:
        async with carrier_in(tmp_path / "own", *peer.address.multiaddrs) as carrier, carrier_in(tmp_path / "other") as other:
            await carrier.serve("ours", ours, max_request_bytes=100)
            address = carrier.address
            assert await answer_of(other, address, "ours") == b"ours"
            now_ms = wall_clock_ms()
            record = make_record(
                MemberKey.from_seed(bytes(32)), run_id="run", stage=0, peer_id=carrier.peer_id, multiaddrs=address.multiaddrs,
                version_cid="", throughput=1.0, now_ms=now_ms,
            )  # fmt: skip
            await carrier.dht.announce(record, "run", 0, carrier.peer_id, now_ms + MAX_LIFE_MS)
            descriptors = 0
            for _ in range(2):
                calling = asyncio.create_task(failure(carrier, peer.address, "hold"))
                held = carrier.traffic.requests["hold"]
                while carrier.traffic.requests["hold"] == held:
                    await asyncio.sleep(0.01)
                dead = carrier.daemon_pid
                os.kill(dead, signal.SIGKILL)
                assert (await calling)[0] is Code.STREAM_BROKEN
                assert await answer_of(carrier, peer.address, "echo") == b"x"
                assert carrier.daemon_pid != dead
                assert await answer_of(other, address, "ours") == b"ours"
                assert await carrier.refresh_multiaddrs() == address.multiaddrs
                assert [found.peer_id for found in await carrier.dht.find("run", 0)] == [carrier.peer_id]
                gc.collect()
                descriptors = descriptors or len(os.listdir("/proc/self/fd"))
            assert len(os.listdir("/proc/self/fd")) <= descriptors
            assert not carrier.failed.is_set()

    asyncio.run(work())


def test_a_daemon_that_is_frozen_is_replaced(tmp_path: Path, peer: Peer) -> None:
    """It lives, and nobody closes a connection to it: that it does not answer is all there is to see."""

    async def work() -> None:
        options = LibP2POptions(pulse_s=0.3)
        async with carrier_in(tmp_path / "own", *peer.address.multiaddrs, options=options) as carrier:
            address, frozen = carrier.address, carrier.daemon_pid
            calling = asyncio.create_task(failure(carrier, peer.address, "hold"))
            while not carrier.traffic.requests["hold"]:
                await asyncio.sleep(0.01)
            os.kill(frozen, signal.SIGSTOP)
            assert (await asyncio.wait_for(calling, 20))[0] is Code.STREAM_BROKEN
            answer = await carrier.call(peer.address, "echo", Message(b"x"), silence_s=20, deadline_s=30)
            assert answer.head == b"x" and carrier.daemon_pid != frozen
            assert await carrier.refresh_multiaddrs() == address.multiaddrs
            await asyncio.to_thread(wait_until_gone, frozen, 10)

    asyncio.run(work())


def test_a_daemon_that_dies_too_often_ends_the_carrier(tmp_path: Path, peer: Peer) -> None:
    async def work() -> None:
        async with carrier_in(tmp_path / "own", options=LibP2POptions(restarts=0)) as carrier:
            calling = asyncio.create_task(failure(carrier, peer.address, "hold"))
            while not carrier.traffic.requests["hold"]:
                await asyncio.sleep(0.01)
            os.kill(carrier.daemon_pid, signal.SIGKILL)
            error = await asyncio.wait_for(carrier.wait_failed(), 5)
            assert error.code is Code.CARRIER_FAILED
            assert "given up after 1 end" in error.detail
            assert carrier.failed.is_set()
            assert (await calling)[0] is Code.STREAM_BROKEN
            assert (await failure(carrier, peer.address, "echo"))[0] is Code.CARRIER_FAILED
            with pytest.raises(HocketError) as caught:
                await carrier.refresh_multiaddrs()
            assert caught.value.code is Code.CARRIER_FAILED

    asyncio.run(work())


def test_a_daemon_that_dies_is_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with carrier_in(tmp_path, options=LibP2POptions(restarts=0)) as carrier:
            os.kill(carrier.daemon_pid, signal.SIGKILL)
            assert (await carrier.wait_failed()).code is Code.CARRIER_FAILED
            await asyncio.sleep(0.2)  # for what hivemind's tasks have to say

    with caplog.at_level("INFO"):
        asyncio.run(work())
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert sum("daemon died" in record.getMessage() for record in caplog.records) == 1
