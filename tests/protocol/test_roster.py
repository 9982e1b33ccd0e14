"""The roster view: who serves what."""

from __future__ import annotations

import pytest

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.roster import RosterView

ENTRIES = [
    pb.RosterEntry(member_id="carol", peer_id="P3", stage=2, role=pb.REPLICA),
    pb.RosterEntry(member_id="bob", peer_id="P2", stage=0, role=pb.REPLICA),
    pb.RosterEntry(member_id="alice", peer_id="P1", stage=0, role=pb.REPLICA, generation=4),
    pb.RosterEntry(member_id="dave", peer_id="P4", stage=1, role=pb.STANDBY),
]


def test_look_ups() -> None:
    view = RosterView(pb.Roster(run_id="run", round=7, entries=ENTRIES))
    assert (view.run_id, view.round, view.stages) == ("run", 7, [0, 2])
    assert [entry.member_id for entry in view.replicas(0)] == ["alice", "bob"]
    assert view.replicas(1) == [], "a standby serves nothing"
    assert view.replicas(9) == []
    alice = view.by_peer("P1")
    assert alice is not None and alice.generation == 4
    assert view.by_member("alice") == alice
    assert view.by_peer("P9") is None and view.by_member("mallory") is None
    assert {entry.member_id for entry in view.entries} == {"alice", "bob", "carol", "dave"}


def test_what_a_view_returns_does_not_change_the_view() -> None:
    view = RosterView(pb.Roster(entries=ENTRIES))
    view.replicas(0).clear()
    view.entries.clear()
    assert len(view.replicas(0)) == 2 and len(view.entries) == 4


@pytest.mark.parametrize("field", ["member_id", "peer_id"])
def test_a_member_or_peer_listed_twice_is_refused(field: str) -> None:
    twin = pb.RosterEntry(member_id="erin", peer_id="P5", stage=1, role=pb.REPLICA)
    setattr(twin, field, getattr(ENTRIES[0], field))
    with pytest.raises(HocketError) as caught:
        RosterView(pb.Roster(entries=[*ENTRIES, twin]))
    assert caught.value.code is Code.PEER_REFUSED


def test_an_empty_roster_has_no_stages() -> None:
    assert RosterView(pb.Roster()).stages == []
