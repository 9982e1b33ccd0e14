"""A carrier over libp2p starts and closes: its ports and files, whom it meets first, and what its daemon is told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from peer_processes import LOOPBACK, QUICK, ROOT, carrier_in, gone

from common.errors import Code, HocketError
from protocol.identity import MemberKey
from swarm.carrier import Message
from swarm.daemon import LibP2POptions, same_ports
from swarm.known_peers import KnownPeers
from swarm.libp2p import LibP2PCarrier
from swarm.records import MAX_LIFE_MS, make_record, wall_clock_ms
from swarm.socket_directory import LONGEST_SOCKET_NAME

pytestmark = pytest.mark.system


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
