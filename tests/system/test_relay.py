"""Peers behind routers that translate addresses and let nobody in take part through the bootstrap peer, which relays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.errors import Code
from common.files import atomic_write
from common.log import read_events
from simulations.simulate import SimulationSettings, run_file

pytestmark = [pytest.mark.soak, pytest.mark.timeout(200)]

ROOT = Path(__file__).parents[2]
RELAY = "10.99.0.1"
LIMIT_S = 150.0
REDIAL_S = 5.0  # libp2p does not dial again for some 4 s after a failure
SUPPORT, SWARM = Path(__file__).parents[1] / "support", Path(__file__).parents[1] / "swarm"


class Process:
    """A child that answers in lines of JSON."""

    def __init__(self, *command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} ended"
        return line.strip()

    def ask(self, word: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(word) + "\n")
        self.process.stdin.flush()
        return json.loads(self.hear())


@contextlib.contextmanager
def running(*command: str) -> Iterator[Process]:
    one = Process(*command)
    try:
        yield one
    finally:
        assert one.process.stdin is not None
        one.process.stdin.close()
        try:
            one.process.wait(10)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


@contextlib.contextmanager
def network() -> Iterator[tuple[str, ...]]:
    """A network of its own; the command that starts another inside it."""
    with running("unshare", "--net", "--", "sh", "-c", "echo up; exec cat") as holder:
        holder.hear()
        yield ("nsenter", f"--net=/proc/{holder.process.pid}/ns/net", "--")


@contextlib.contextmanager
def home(number: int, world: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Process]]:
    """A network behind a router with the public address 10.99.NUMBER.2: the command that starts another there, and the router."""
    inside, outside, address = f"hki{number}-{os.getpid()}", f"hko{number}-{os.getpid()}", f"192.168.{number}.2"
    command = [sys.executable, str(SUPPORT / "translator.py"), inside, outside, address, f"10.99.{number}.2"]
    with network() as within, running(*command) as router:
        assert router.hear() == "ready"
        for where, device in ((world, outside), (within, inside)):
            subprocess.run(["ip", "link", "set", device, "netns", where[1].split("/")[2]], check=True)
        set_up(world, f"addr add 10.99.{number}.1/24 dev {outside}", f"link set {outside} up")
        set_up(
            within, "link set lo up", f"addr add {address}/24 dev {inside}", f"link set {inside} up",
            f"route add default dev {inside}",
        )  # fmt: skip
        yield within, router


def set_up(within: tuple[str, ...], *batch: str) -> None:
    subprocess.run([*within, "ip", "-batch", "-"], input="\n".join(batch) + "\n", text=True, check=True)


@contextlib.contextmanager
def two_homes() -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Process, tuple[str, ...]]]:
    """A public network and two behind routers: where to start what, and the router of the first. Skips where it cannot be."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with network() as world:
        set_up(world, "link set lo up", f"addr add {RELAY}/32 dev lo")
        subprocess.run([*world, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        with home(1, world) as (one, router), home(2, world) as (other, _):
            yield world, one, router, other


def why_not() -> str:
    """Why networks cannot be made here; empty if they can."""
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"there is no command {missing[0]}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun may not be used"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "this user may not make networks"
    return ""


def test_peers_that_nobody_can_dial_call_each_other_through_the_relay(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        world, one, router, other = stack.enter_context(two_homes())
        bootstrap = stack.enter_context(running(
            *world, sys.executable, "-m", "swarm.peer", "--store", str(tmp_path / "store"), "--state", str(tmp_path / "relay"),
            "--run-id", "run", "--listen", f"/ip4/{RELAY}/tcp/0",
        ))  # fmt: skip
        ticket = json.loads(bootstrap.hear())["multiaddrs"][0]

        def peer(within: tuple[str, ...], script: str, name: str) -> Process:
            command = [sys.executable, str(SWARM / script), str(tmp_path / name), "/ip4/0.0.0.0/tcp/0", ticket]
            return stack.enter_context(running(*within, *command))

        hidden, caller = peer(one, "serving_peer.py", "hidden"), peer(other, "calling_peer.py", "caller")
        addresses = json.loads(hidden.hear())["multiaddrs"]
        caller.hear()
        relayed = [address for address in addresses if "/p2p-circuit/" in address]
        direct = [address for address in addresses if address not in relayed]
        assert [address.partition("/p2p-circuit/")[0] for address in relayed] == [ticket]
        port, peer_id = direct[0].split("/")[4], direct[0].rpartition("/")[2]
        assert caller.ask([*direct, f"/ip4/10.99.1.2/tcp/{port}/p2p/{peer_id}"]) in (Code.PEER_UNREACHABLE, Code.PEER_SILENT)
        answers = [caller.ask(addresses)]
        if answers[0] != 0:  # the dial above was in vain, and libp2p remembers that for a while
            assert answers[0] == Code.PEER_UNREACHABLE
            time.sleep(REDIAL_S)
        answers += [caller.ask(addresses) for _ in range(3)]
        assert answers[1:] == [0, 0, 0]
        assert router.process.stdin is not None
        router.process.stdin.close()
        assert int(router.hear()) > 0  # what came to the router's own address in vain


def test_workers_that_nobody_can_dial_train_a_whole_run_together(tmp_path: Path) -> None:
    """One a stage, each behind a router of its own: every activation and gradient goes through the relay."""
    work = Workload("test", 4, 2, 16)
    settings = SimulationSettings(
        stages=2, replicas=1, rounds=2, inner_steps=2, frames_per_inner_step=work.frames_per_step, data=tmp_path / "data",
        extra={"rounds": {"evaluate": False}},
    )  # fmt: skip
    atomic_write(tmp_path / "run.toml", run_file(settings, write_dataset(work, tmp_path / "data"), RELAY).encode())
    state = tmp_path / "coordinator"
    with contextlib.ExitStack() as stack:
        world, one, _, other = stack.enter_context(two_homes())

        def hocket(within: tuple[str, ...], *words: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / "log").open("ab"))
            command = [*within, sys.executable, "-m", "cli.main", *words]
            process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        coordinator = hocket(world, "coordinator", str(tmp_path / "run.toml"), "--state-dir", str(state))
        deadline = time.monotonic() + LIMIT_S
        while not (state / "ticket.txt").exists():
            assert coordinator.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        workers = [
            hocket(within, "worker", "--ticket-from", str(state / "ticket.txt"), "--state-dir", str(tmp_path / name))
            for within, name in ((one, "one"), (other, "other"))
        ]
        codes = [worker.wait(max(deadline - time.monotonic(), 1.0)) for worker in workers]
        assert codes == [0, 0], (tmp_path / "log").read_text()
    report = json.loads((state / "report.json").read_text())
    assert [[stage["accepted"] for stage in entry["stages"]] for entry in report["rounds"]] == [[1, 1], [1, 1]]
    logs = [read_events(tmp_path / name / "events.jsonl") for name in ("one", "other")]
    passed = [event for log in logs for event in log if event["event"] == "microbatch"]
    assert len(passed) >= 2 * 2 * 4 and all(len({hop["pid"] for hop in event["path"]}) == 2 for event in passed)
    assert not any(event["event"] in ("suspected", "dropped") for log in logs for event in log)
