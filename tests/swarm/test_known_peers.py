"""The memory of peers met: bounded, whole, and nothing to be afraid of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.carrier import PeerAddress
from swarm.known_peers import MAX_ADDRESSES, MAX_FILE_BYTES, MAX_PEERS, KnownPeers

numbers = st.integers(0, 99)


def peer(number: int, *ports: int) -> PeerAddress:
    return PeerAddress(f"Q{number}", tuple(f"/ip4/127.0.0.1/tcp/{port}/p2p/Q{number}" for port in ports or (1,)))


@given(st.lists(st.lists(st.tuples(numbers, numbers), max_size=30), max_size=12))
def test_those_met_last_come_first_and_the_rest_is_bounded(meetings: list[list[tuple[int, int]]]) -> None:
    known = KnownPeers(Path("/nowhere/peers.json"))
    last: dict[str, tuple[int, str]] = {}
    for when, meeting in enumerate(meetings):
        met = [peer(number, port) for number, port in meeting]
        known.met(met)
        for one in met:
            last[one.peer_id] = (when, one.multiaddrs[0])
    newest = known.newest()
    assert len(newest) == min(MAX_PEERS, len(last))
    times = [last[one.peer_id][0] for one in newest]
    assert times == sorted(times, reverse=True)
    for one in newest:
        assert len(one.multiaddrs) <= MAX_ADDRESSES
        assert last[one.peer_id][1] == one.multiaddrs[0]


def test_what_is_saved_is_read_again_and_saved_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "state" / "peers.json"
    known = KnownPeers(path)
    known.save()
    assert not path.exists()
    known.met([peer(1, 10, 11), peer(2)])
    known.met([peer(3), PeerAddress("Q4", ("/ip4/127.0.0.1/tcp/1/p2p/Q5", "nonsense")), PeerAddress("Q6")])
    known.save()
    again = KnownPeers(path)
    assert again.newest() == known.newest() == [peer(3), peer(1, 10, 11), peer(2)]
    assert again.newest(1) == [peer(3)]
    path.unlink()
    again.met([peer(3)])
    again.save()
    assert not path.exists()
    again.met([peer(1, 12)])
    again.save()
    assert KnownPeers(path).newest() == [peer(1, 12, 10, 11), peer(3), peer(2)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"{" * 100_000,
        b" " * (MAX_FILE_BYTES + 1),
        json.dumps({"peers": [{"multiaddrs": ["/ip4/127.0.0.1/tcp/1"]}]}).encode(),
        json.dumps({"peers": [{"multiaddrs": ["/ip4/1.1.1.1/tcp/1/p2p/A", "/ip4/1.1.1.1/tcp/1/p2p/B"]}]}).encode(),
        json.dumps({"peers": [{"multiaddrs": ["/" + "x" * 300 + "/p2p/A"]}]}).encode(),
        json.dumps({"peers": [{"multiaddrs": []}]}).encode(),
        json.dumps({"peers": [{"multiaddrs": [f"/ip4/1.1.1.1/tcp/{n}/p2p/A" for n in range(MAX_ADDRESSES + 1)]}]}).encode(),
        json.dumps({"peers": [{"multiaddrs": ["/ip4/1.1.1.1/tcp/1/p2p/A"]}] * (MAX_PEERS + 1)}).encode(),
        json.dumps({"peers": [{"multiaddrs": [7]}]}).encode(),
        json.dumps({"peers": [], "more": 1}).encode(),
    ],
)
def test_a_file_that_is_not_ours_is_begun_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(content)
    known = KnownPeers(path)
    assert known.newest() == []
    assert "begun anew" in caplog.text
    known.met([peer(1)])
    known.save()
    assert KnownPeers(path).newest() == [peer(1)]


def test_a_file_that_cannot_be_read_or_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "peers.json").mkdir()
    known = KnownPeers(tmp_path / "peers.json")
    known.met([peer(1)])
    known.save()
    assert "not remembered" in caplog.text
