"""A read-only view of the coordinator's roster: who serves which stage in a round."""

from __future__ import annotations

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb


class RosterView:
    """Look-ups in one roster. The message must not be changed while the view is in use.

    Args:
        roster: as received in a signed view.

    Raises:
        HocketError: PEER_REFUSED when a member or a peer id is listed twice, so that "who is this" has two answers.
    """

    def __init__(self, roster: pb.Roster) -> None:
        self.run_id: str = roster.run_id
        self.round: int = roster.round
        self._replicas: dict[int, list[pb.RosterEntry]] = {}
        self._by_peer: dict[str, pb.RosterEntry] = {}
        self._by_member: dict[str, pb.RosterEntry] = {}
        for entry in roster.entries:
            if entry.peer_id in self._by_peer or entry.member_id in self._by_member:
                raise HocketError(Code.PEER_REFUSED, f"the roster lists member {entry.member_id[:12]} or its peer twice")
            self._by_peer[entry.peer_id] = entry
            self._by_member[entry.member_id] = entry
            if entry.role == pb.REPLICA:
                self._replicas.setdefault(entry.stage, []).append(entry)
        for replicas in self._replicas.values():
            replicas.sort(key=lambda entry: entry.member_id)

    @property
    def stages(self) -> list[int]:
        """The stages that have at least one replica, rising."""
        return sorted(self._replicas)

    @property
    def entries(self) -> list[pb.RosterEntry]:
        """All entries, replicas and standbys, in the roster's order."""
        return list(self._by_member.values())

    def replicas(self, stage: int) -> list[pb.RosterEntry]:
        """The replicas of a stage, by member id; empty when it has none."""
        return list(self._replicas.get(stage, ()))

    def by_peer(self, peer_id: str) -> pb.RosterEntry | None:
        """The entry of a libp2p peer, if it is on the roster."""
        return self._by_peer.get(peer_id)

    def by_member(self, member_id: str) -> pb.RosterEntry | None:
        """The entry of a member, if it is on the roster."""
        return self._by_member.get(member_id)
