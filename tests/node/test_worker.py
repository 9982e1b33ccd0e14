"""The worker's own process: its state directory and its first contact."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from common.lock import locked
from node.peers import AddressBook
from node.worker import default_listen, run_worker
from protocol.identity import MemberKey, PeerKey
from protocol.ticket import Ticket
from swarm.carrier import PeerAddress
from swarm.memory import MemoryCarrier, MemoryNetwork
from swarm.records import make_record, wall_clock_ms


def test_a_state_directory_serves_one_worker_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "state"):
        with pytest.raises(HocketError) as caught, locked(tmp_path / "state"):
            pass
        assert caught.value.code is Code.STATE_LOCKED
    with locked(tmp_path / "state"):
        pass


@pytest.mark.parametrize(("addresses", "host"), [
    (("127.0.0.1:7700",), "127.0.0.1"), (("localhost:7700", "[::1]:7700"), "127.0.0.1"), (("192.0.2.7:7700",), "0.0.0.0"),
    (("127.0.0.1:7700", "train.example.org:7700"), "0.0.0.0"),
])  # fmt: skip
def test_a_worker_listens_where_members_of_its_run_can_reach_it(addresses: tuple[str, ...], host: str) -> None:
    ticket = Ticket("r", addresses, MemberKey.generate().public, b"\x01" * 32, ())
    assert default_listen(ticket) == (f"/ip4/{host}/tcp/0",)


def test_a_state_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HocketError) as caught, locked(tmp_path / "file" / "state"):
        pass
    assert caught.value.code is Code.STATE_UNREADABLE


def test_a_damaged_ticket_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(HocketError) as caught:
        run_worker("hocket1:nonsense", tmp_path / "state")
    assert caught.value.code is Code.TICKET_INVALID
    assert not (tmp_path / "state").exists()


def test_the_address_book_looks_up_who_it_does_not_know_and_keeps_what_it_knew() -> None:
    async def main() -> None:
        carrier = MemoryCarrier(MemoryNetwork(), "peer-a")
        directory, key = carrier.dht, MemberKey.generate()
        book = AddressBook(directory, "run")
        assert book.address("peer-a") == PeerAddress("peer-a")
        now = wall_clock_ms()
        record = make_record(
            key,
            run_id="run",
            stage=1,
            peer_id="peer-a",
            multiaddrs=carrier.multiaddrs,
            version_cid="cid",
            throughput=3.0,
            now_ms=now,
        )
        await directory.announce(record, "run", 1, "peer-a", now + 60_000)
        await book.refresh(0)
        assert book.address("peer-a") == PeerAddress("peer-a")
        found = await book.learn(1, ["peer-a", "peer-b"], within_s=20.0)
        assert found == [PeerAddress("peer-a", carrier.multiaddrs), PeerAddress("peer-b")]
        assert found == await book.learn(1, ["peer-a", "peer-b"], within_s=0.0), "not looked up again at once"
        await book.refresh(2)
        assert book.address("peer-a").multiaddrs == carrier.multiaddrs
        await carrier.close()

    asyncio.run(main())


def test_a_gateway_that_is_none_is_said_before_anything_is_started(tmp_path: Path) -> None:
    ticket = Ticket("run", ("127.0.0.1:1",), MemberKey.generate().public, b"\x07" * 32, ("/ip4/127.0.0.1/tcp/1/p2p/x",))
    with pytest.raises(HocketError) as caught:
        run_worker(ticket, tmp_path / "state", gateways=["ftp://gateway"])
    assert caught.value.code in (Code.OPTION_INVALID, Code.EXTRA_MISSING)
    assert not (tmp_path / "state" / "peer.key").exists()


def test_a_worker_that_finds_no_bootstrap_peer_can_be_told_to_stop(tmp_path: Path) -> None:
    nobody = PeerKey.load_or_create(tmp_path / "nobody.key").peer_id
    ticket = Ticket("run", ("127.0.0.1:1",), MemberKey.generate().public, b"\x07" * 32, (f"/ip4/127.0.0.1/tcp/1/p2p/{nobody}",))
    command = [sys.executable, "-m", "cli.main", "worker", ticket.encode(), "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "attempt 1" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(30) == 0
    assert "attempt 3" not in rest and "Traceback" not in rest
    assert not (tmp_path / "state" / "sockets").exists()
