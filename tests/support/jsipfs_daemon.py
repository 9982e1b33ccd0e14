"""A js-ipfs daemon for one test module: offline, on the loopback interface, with a repository that is thrown away.

npm's ipfs lies in a folder of its own, .npm-jsipfs (`make setup-jsipfs`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLI = ROOT / ".npm-jsipfs" / "node_modules" / "ipfs" / "src" / "cli.js"
NODE = shutil.which("node")
START_S = 120
STOP_S = 20
LOOPBACK = "/ip4/127.0.0.1/tcp/0"  # a port that is free; the daemon says which
# Without these it dials the public network's bootstrap peers and delegates, looks for peers nearby and listens on all interfaces.
CONFIG = {
    "Addresses": {"Swarm": [], "API": LOOPBACK, "Gateway": LOOPBACK, "RPC": LOOPBACK, "Delegates": []},
    "Bootstrap": [],
    "Discovery": {"MDNS": {"Enabled": False}, "webRTCStar": {"Enabled": False}},
    "Pubsub": {"Enabled": False},
    "Routing": {"Type": "none"},
}

with_jsipfs = pytest.mark.skipif(
    NODE is None or not CLI.exists(), reason="js-ipfs has a folder of its own, .npm-jsipfs, and needs Node: make setup-jsipfs"
)


@dataclass(frozen=True)
class Daemon:
    """A daemon that is ready: its process, and where its RPC and its gateway listen, as `http://127.0.0.1:PORT`."""

    pid: int
    rpc: str
    gateway: str


def sockets(pid: int) -> list[tuple[str, int, str]]:
    """The internet sockets of a process, as (local address, local port, remote address); IPv6 ones as hexadecimal digits."""

    def host(digits: str) -> str:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(digits))) if len(digits) == 8 else digits

    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(descriptor))
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in own:
                (local, port), (remote, _) = (field.split(":") for field in fields[1:3])
                found.append((host(local), int(port, 16), host(remote)))
    return found


def _address(line: str) -> str:
    """`... listening on /ip4/127.0.0.1/tcp/PORT/http` as an address."""
    parts = line.rsplit(" ", 1)[1].split("/")
    return f"http://{parts[2]}:{parts[4]}"


@contextmanager
def daemon(folder: Path) -> Iterator[Daemon]:
    """Make a repository below `folder` and run a daemon over it."""
    assert NODE is not None
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    # Its command asks npm for a newer version of itself, unless it is told not to.
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "IPFS_PATH": str(folder / "repo"), "NO_UPDATE_NOTIFIER": "1"}
    command = [NODE, "--require", str(Path(__file__).with_name("with_resolvers.cjs")), str(CLI)]
    made = subprocess.run(
        [*command, "init", "--empty-repo", str(config)], env=env, cwd=folder, capture_output=True, text=True, timeout=START_S
    )
    assert made.returncode == 0, made.stdout + made.stderr
    process = subprocess.Popen(
        [*command, "daemon", "--offline", "--enable-preload=false"],
        env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(line.strip())
        said.put(None)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        lines: list[str] = []
        while "Daemon is ready" not in lines:
            line = said.get(timeout=START_S)
            assert line is not None, "it ended: " + "\n".join(lines)
            lines.append(line)
        rpc, gateway = (
            next(_address(line) for line in lines if line.startswith(start)) for start in ("HTTP API listening", "Gateway (read")
        )
        yield Daemon(process.pid, rpc, gateway)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
