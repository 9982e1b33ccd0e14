"""The process that serves a parent's blocks: what it hands out, and what happens when its daemon or its parent dies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from peer_processes import LOOPBACK, ROOT, Peer, carrier_in

from common.errors import EXIT_USAGE, HocketError
from protocol.identity import MemberKey
from swarm.block_swarm import fetch
from swarm.blocks import BlockStore
from swarm.records import wall_clock_ms
from swarm.whereabouts import make_whereabouts

pytestmark = pytest.mark.system


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
