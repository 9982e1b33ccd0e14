"""Peers as processes of their own, carriers over libp2p beside them, and whether a process is there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from swarm.carrier import PeerAddress
from swarm.daemon import LibP2POptions
from swarm.libp2p import LibP2PCarrier

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


@contextlib.contextmanager
def serving_peer(state: Path, listen: str = LOOPBACK, *bootstrap: str) -> Iterator[Peer]:
    peer = Peer(str(ROOT / "tests/swarm/serving_peer.py"), str(state), listen, *bootstrap)
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
