"""Real processes, real daemons: what happens when one of them dies, freezes, moves, or was never there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.errors import EXIT_USAGE, Code, HocketError
from protocol.identity import MemberKey
from swarm.block_swarm import fetch
from swarm.blocks import BlockStore
from swarm.carrier import Message, PeerAddress
from swarm.daemon import LibP2POptions, same_ports
from swarm.known_peers import KnownPeers
from swarm.libp2p import LibP2PCarrier
from swarm.records import MAX_LIFE_MS, make_record, wall_clock_ms
from swarm.socket_directory import LONGEST_SOCKET_NAME
from swarm.whereabouts import make_whereabouts

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
QUICK = LibP2POptions(dial_timeout_s=3.0, bootstrap_attempts=2, bootstrap_wait_s=0.1)


class Peer:
    """A child process that prints one JSON line when it is up."""

    def __init__(self, *command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.kill()
            raise AssertionError(self.process.communicate()[1].decode())
        self.told = json.loads(line)
        self.address = PeerAddress.from_multiaddrs(self.told["multiaddrs"])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A serving peer for the tests that leave it alive."""
    with serving_peer(tmp_path_factory.mktemp("peer")) as running:
        yield running


@contextlib.contextmanager
def serving_peer(state: Path, listen: str = LOOPBACK, *bootstrap: str) -> Iterator[Peer]:
    peer = Peer(str(Path(__file__).with_name("serving_peer.py")), str(state), listen, *bootstrap)
    try:
        yield peer
    finally:
        peer.close()


@contextlib.asynccontextmanager
async def carrier_in(state: Path, *bootstrap: str, options: LibP2POptions | None = None) -> AsyncIterator[LibP2PCarrier]:
    carrier = await LibP2PCarrier.create(
        state / "peer.key", bootstrap=bootstrap, listen=[LOOPBACK], state_dir=state, options=options
    )
    try:
        yield carrier
    finally:
        await carrier.close()


async def failure(carrier: LibP2PCarrier, peer: PeerAddress, protocol: str, *, silence_s: float = 20.0) -> tuple[Code, float]:
    start = time.monotonic()
    with pytest.raises(HocketError) as caught:
        await carrier.call(peer, protocol, Message(b""), silence_s=silence_s, deadline_s=60.0)
    return caught.value.code, time.monotonic() - start


def gone(pid: int) -> bool:
    """True once no such process runs; a dead child of another process may still be listed as a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pid: int, within_s: float) -> float:
    start = time.monotonic()
    while not gone(pid):
        assert time.monotonic() - start < within_s, f"process {pid} is still there"
        time.sleep(0.05)
    return time.monotonic() - start


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


@pytest.mark.parametrize(
    ("listen", "visible", "again"),
    [
        ("/ip4/127.0.0.1/tcp/0", ["/ip4/127.0.0.1/tcp/41/p2p/Q"], "/ip4/127.0.0.1/tcp/41"),
        ("/ip4/127.0.0.1/tcp/7", ["/ip4/127.0.0.1/tcp/7/p2p/Q"], "/ip4/127.0.0.1/tcp/7"),
        ("/ip4/0.0.0.0/tcp/0", ["/ip4/9.9.9.9/tcp/99/p2p/Q", "/ip4/127.0.0.1/tcp/41/p2p/Q"], "/ip4/0.0.0.0/tcp/41"),
        ("/ip6/::1/tcp/0", ["/ip4/127.0.0.1/tcp/41/p2p/Q", "/ip6/::1/tcp/42/p2p/Q"], "/ip6/::1/tcp/42"),
        ("/ip4/0.0.0.0/tcp/0", ["/dns4/a.example/tcp/99/p2p/Q"], "/ip4/0.0.0.0/tcp/0"),
    ],
)
def test_the_port_that_was_taken_is_kept(listen: str, visible: list[str], again: str) -> None:
    assert same_ports([listen], visible) == (again,)


def test_closing_is_no_failure_and_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> int:
        async with carrier_in(tmp_path / "own") as carrier:
            assert (tmp_path / "own" / "sockets").is_dir()
        assert not carrier.failed.is_set()
        return carrier.daemon_pid

    assert gone(asyncio.run(work()))
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["peer.key"]


def test_closing_does_not_wait_long_for_a_daemon_that_is_frozen(tmp_path: Path) -> None:
    """A process that is told to stop has some seconds, and its daemon's pulse would take longer to tell."""

    async def work() -> tuple[int, float]:
        async with carrier_in(tmp_path / "own", options=LibP2POptions(pulse_s=60.0)) as carrier:
            os.kill(carrier.daemon_pid, signal.SIGSTOP)
            began = time.monotonic()
            await carrier.close()
            return carrier.daemon_pid, time.monotonic() - began

    pid, seconds = asyncio.run(work())
    assert gone(pid) and 3.0 < seconds < 10.0


@pytest.mark.parametrize("socket_path_bytes", [107, 108, 300])
def test_a_path_about_or_far_too_long_for_a_socket(socket_path_bytes: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        length = socket_path_bytes - len("/sockets/") - len(LONGEST_SOCKET_NAME)
        use_state_directory(Path(folder) / ("x" * (length - len(folder) - 1)))


def use_state_directory(state: Path) -> None:

    async def work() -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        async with carrier_in(state) as carrier:
            assert (await carrier.dht.find("run", 0)) == []
            assert list((state / "sockets").glob("*.sock"))
        assert len(os.listdir("/proc/self/fd")) <= descriptors

    (state / "sockets").mkdir(parents=True)
    (state / "sockets" / "p2pd-left.sock").touch()
    asyncio.run(work())
    assert sorted(path.name for path in state.iterdir()) == ["peer.key"]


def dead_multiaddr(state: Path) -> str:
    """The address of a peer that was there and is not any more."""

    async def work() -> str:
        async with carrier_in(state) as carrier:
            return carrier.multiaddrs[0]

    return asyncio.run(work())


def test_one_living_bootstrap_peer_is_enough(tmp_path: Path) -> None:
    dead = dead_multiaddr(tmp_path / "dead")

    async def work() -> None:
        async with carrier_in(tmp_path / "living") as living:
            async with carrier_in(tmp_path / "own", dead, *living.multiaddrs, options=QUICK) as carrier:
                await living.serve("here", answer, max_request_bytes=100)
                assert (await carrier.call(living.peer_id, "here", Message(b""), silence_s=5, deadline_s=10)).head == b"yes"

    async def answer(peer_id: str, request: Message) -> Message:
        return Message(b"yes")

    asyncio.run(work())


def test_only_dead_bootstrap_peers_end_the_join(tmp_path: Path) -> None:
    dead = dead_multiaddr(tmp_path / "dead")

    async def work() -> None:
        async with carrier_in(tmp_path / "own", dead, options=QUICK):
            pass

    start = time.monotonic()
    with pytest.raises(HocketError) as caught:
        asyncio.run(work())
    assert caught.value.code is Code.BOOTSTRAP_UNREACHABLE
    assert dead in caught.value.detail
    assert time.monotonic() - start < 15
    assert not (tmp_path / "own" / "sockets").exists()


def test_a_peer_met_before_is_enough(tmp_path: Path) -> None:
    """All that the ticket names is gone; the others are still there, and one that is restarted finds them."""

    async def work() -> None:
        async with carrier_in(tmp_path / "other") as other:
            async with carrier_in(tmp_path / "first") as first:
                ticket = first.multiaddrs
                async with carrier_in(tmp_path / "own", *ticket) as carrier:
                    await other.serve("here", answer, max_request_bytes=100)
                    await carrier.call(other.address, "here", Message(b""), silence_s=5, deadline_s=10)
                    now_ms = wall_clock_ms()
                    record = make_record(
                        MemberKey.from_seed(bytes(32)), run_id="run", stage=0, peer_id=carrier.peer_id,
                        multiaddrs=carrier.multiaddrs, version_cid="", throughput=1.0, now_ms=now_ms,
                    )  # fmt: skip
                    await carrier.dht.announce(record, "run", 0, carrier.peer_id, now_ms + MAX_LIFE_MS)
                    await first.close()
            # The first was dialled by others only, and knows them from their records.
            assert {carrier.peer_id} <= {one.peer_id for one in KnownPeers(tmp_path / "first" / "peers.json").newest()}
            async with carrier_in(tmp_path / "own", *ticket, options=QUICK) as again:
                assert (await again.call(other.peer_id, "here", Message(b""), silence_s=5, deadline_s=10)).head == b"yes"

    async def answer(peer_id: str, request: Message) -> Message:
        return Message(b"yes")

    asyncio.run(work())


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HocketError) as caught:
            asyncio.run(
                LibP2PCarrier.create(
                    tmp_path / "peer.key", bootstrap=[], listen=[f"/ip4/127.0.0.1/tcp/{port}"], state_dir=tmp_path
                )
            )
    assert caught.value.code is Code.PORT_TAKEN


def test_a_damaged_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "peer.key").write_bytes(b"no key")
    (tmp_path / "peer.key").chmod(0o600)
    with pytest.raises(HocketError) as caught:
        asyncio.run(LibP2PCarrier.create(tmp_path / "peer.key", state_dir=tmp_path))
    assert caught.value.code is Code.IDENTITY_UNREADABLE
    assert (tmp_path / "peer.key").read_bytes() == b"no key"


def test_the_light_parts_load_neither_hivemind_nor_torch() -> None:
    """The coordinator's core uses them."""
    light = "swarm.carrier, swarm.blocks, swarm.block_service, swarm.memory, swarm.records"
    program = f"import sys, {light}; sys.exit(bool({{'torch', 'hivemind'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False).returncode == 0


def arguments_of(carrier: LibP2PCarrier) -> set[str]:
    return set(Path(f"/proc/{carrier.daemon_pid}/cmdline").read_text().split("\0"))


def test_the_daemon_is_told_of_nobody_but_our_own_peers(tmp_path: Path) -> None:
    """Its defaults are public peers, for joining and for relays."""

    async def work() -> None:
        wide = LibP2POptions(relay=True)
        async with carrier_in(tmp_path / "first", options=wide) as first, carrier_in(tmp_path / "plain") as plain:
            assert {"-b=0", "-autoRelay=0", "-relay=1"} <= arguments_of(first)
            assert {"-b=0", "-autoRelay=0", "-relay=0", "-autonat=0", "-natPortMap=0"} <= arguments_of(plain)
            async with carrier_in(tmp_path / "second", *first.multiaddrs, options=wide) as second:
                assert {"-b=0", "-autoRelay=1", f"-trustedRelays={first.multiaddrs[0]}"} <= arguments_of(second)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("listen", "wide"), [("/ip4/127.0.0.1/tcp/0", False), ("/ip6/::1/tcp/0", False), ("/ip4/0.0.0.0/tcp/0", True)]
)
def test_nat_traversal_is_on_unless_we_listen_on_loopback(listen: str, wide: bool) -> None:
    options = LibP2POptions.for_listen([LOOPBACK, listen], run_id="run")
    assert (options.relay, options.auto_nat, options.nat_port_map, options.run_id) == (wide, wide, wide, "run")


@pytest.mark.parametrize("wrong", ["nonsense", "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1/p2p/0OIl"])
def test_a_bootstrap_address_that_is_none(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(HocketError) as caught:
        asyncio.run(LibP2PCarrier.create(tmp_path / "peer.key", bootstrap=[wrong], state_dir=tmp_path))
    assert caught.value.code is Code.OPTION_INVALID


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


def block_peer(folder: Path) -> Peer:
    return Peer(
        "-m",
        "swarm.peer",
        "--store",
        str(folder / "store"),
        "--state",
        str(folder / "state"),
        "--run-id",
        "run",
        "--listen",
        LOOPBACK,
    )


def test_the_block_peer_serves_what_its_parent_stores(tmp_path: Path) -> None:
    data = hashlib.shake_128(b"file").digest(5_000_000)
    peer = block_peer(tmp_path)

    async def work() -> None:
        store = BlockStore(tmp_path / "own" / "blocks")
        async with carrier_in(tmp_path / "own", *peer.address.multiaddrs) as carrier:
            root = BlockStore(tmp_path / "store").add_bytes(data)
            await fetch(carrier, store, root, [peer.address], max_bytes=len(data))
            assert store.read_file(root) == data
            async with asyncio.timeout(20):
                while not (found := await carrier.dht.find_coordinator("run")):
                    await asyncio.sleep(0.05)
            assert [one.addresses for one in found] == [("127.0.0.1:7000",)]

    try:
        assert peer.process.stdin is not None and peer.process.stdout is not None
        coordinator = MemberKey.from_seed(bytes(32))
        for now_ms, address in ((wall_clock_ms() - 1000, "127.0.0.1:6999"), (wall_clock_ms(), "127.0.0.1:7000")):
            signed = make_whereabouts(coordinator, run_id="run", addresses=[address], bootstrap_multiaddrs=[], now_ms=now_ms)
            word = {"coordinator_record": base64.b64encode(signed.SerializeToString()).decode()}
            peer.process.stdin.write(b"noise\n" + json.dumps(word).encode() + b"\n")
        peer.process.stdin.flush()
        asyncio.run(work())
        sent_bytes = 0
        while sent_bytes < len(data):  # the traffic may be told in several lines
            told_bytes = json.loads(peer.process.stdout.readline())["block_bytes_sent"]
            assert sent_bytes < told_bytes
            sent_bytes = told_bytes
        assert sent_bytes < 1.01 * len(data)
        peer.process.stdin.close()
        assert peer.process.wait(15) == 0
        assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["lock", "peer.key"]
    finally:
        peer.process.kill()
        peer.process.wait()


def test_the_block_peer_outlives_its_daemon(tmp_path: Path) -> None:
    peer = block_peer(tmp_path)
    store = BlockStore(tmp_path / "own" / "blocks")

    async def work() -> None:
        async with carrier_in(tmp_path / "own", *peer.address.multiaddrs) as carrier:
            for number in (1, 2):
                data = bytes([number]) * 1000
                root = BlockStore(tmp_path / "store").add_bytes(data)
                async with asyncio.timeout(30):
                    while not store.has(root):
                        with contextlib.suppress(HocketError):  # while the daemon comes back there is nobody to dial
                            await fetch(carrier, store, root, [peer.address], max_bytes=len(data))
                        await asyncio.sleep(0.05)
                os.kill(daemons_of(peer)[0], signal.SIGKILL)

    try:
        asyncio.run(work())
        assert peer.process.poll() is None
    finally:
        peer.close()


def daemons_of(peer: Peer) -> list[int]:
    children = Path(f"/proc/{peer.process.pid}/task/{peer.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "p2pd" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_block_peers_of_parents_that_die_at_once_do_not_take_away_each_others_sockets(tmp_path: Path) -> None:
    """Each earlier one, orphaned while it starts, would remove the sockets of the one that serves when it ends after it."""
    data = hashlib.shake_128(b"file").digest(100_000)
    root = BlockStore(tmp_path / "store").add_bytes(data)
    command = [sys.executable, "-m", "swarm.peer", "--store", str(tmp_path / "store"), "--state", str(tmp_path / "state")]
    orphans = []
    for sockets in ("state/lock", "state/sockets"):
        orphan = subprocess.Popen(
            [*command, "--run-id", "run", "--listen", LOOPBACK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        orphans.append(orphan)
        start = time.monotonic()
        while not (tmp_path / sockets).exists() and time.monotonic() - start < 60:
            time.sleep(0.02)
        assert orphan.stdin is not None and orphan.stdout is not None
        orphan.stdout.close()
        orphan.stdin.close()
    peer = block_peer(tmp_path)
    for number in (signal.SIGINT, signal.SIGHUP):  # from a terminal, whose parent process closes our input if it wants us to end
        os.kill(peer.process.pid, number)
    try:
        for orphan in orphans:
            assert orphan.wait(30) == 0

        async def work() -> None:
            async with carrier_in(tmp_path / "own", *peer.address.multiaddrs) as carrier:
                store = BlockStore(tmp_path / "own" / "blocks")
                await fetch(carrier, store, root, [peer.address], max_bytes=len(data))
                assert store.read_file(root) == data

        asyncio.run(work())
    finally:
        peer.close()


def test_the_block_peer_wants_a_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swarm.peer", "--store", str(tmp_path), "--state", str(tmp_path), "--run-id", "run"]
    with (tmp_path / "file").open("w+b") as file:
        ended = subprocess.run(
            [*command, "--listen", LOOPBACK], stdin=file, capture_output=True, cwd=ROOT, timeout=60, check=False
        )
    assert ended.returncode == EXIT_USAGE
    assert b"H105" in ended.stderr
