"""A member on the network of a chain in memory, with all that a worker gives its station; its coordinator cannot be reached."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from node.committer import Committer
from node.context import RoundContext
from node.engine import Engine
from node.peers import AddressBook
from node.session import Session
from node.stage_service import StageService
from node.station import Station, build_local
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.roster import RosterView
from protocol.ticket import Ticket
from swarm.memory import MemoryCarrier

SHA256 = bytes(range(32))


class Standby:
    """A member on a chain's network, with everything that a worker gives its station."""

    def __init__(self, harness: ModuleType, chain: Any, folder: Path) -> None:
        self.chain, self.harness = chain, harness
        self.key = MemberKey.from_seed(b"\x09" * 32)
        self.carrier = MemoryCarrier(chain.network, "peer-standby")
        self.engine = Engine("engine-standby")
        self.service = StageService(self.carrier, self.key, harness.RUN)
        self.events: list[tuple[str, dict[str, Any]]] = []
        ticket = Ticket(harness.RUN, ("127.0.0.1:1",), MemberKey.generate().public, b"", ())
        session = Session(ticket, self.key)
        self.committer = Committer(session, harness.no_openings, folder, self.event, lambda: None)
        self.station = Station(
            build_local(self.context(pb.STANDBY, 1)), self.context(pb.STANDBY, 1), carrier=self.carrier, key=self.key,
            session=session, committer=self.committer, engine=self.engine, service=self.service,
            book=AddressBook(chain.directory, harness.RUN), state_dir=folder,
            event=self.event, poke=lambda: None, wake=lambda: None, report_now=harness.no_report,
        )  # fmt: skip

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))

    def roster(self, role: pb.Role, generation: int, without: str = "") -> RosterView:
        """The chain's roster and this member; `without` a peer that was given up."""
        listed = [entry for entry in self.chain.roster.entries if entry.peer_id != without]
        mine = pb.RosterEntry(
            member_id=self.key.member_id, peer_id=self.carrier.peer_id, stage=1, role=role, generation=generation
        )  # fmt: skip
        return RosterView(pb.Roster(run_id=self.harness.RUN, round=1, entries=[*listed, mine]))

    def context(self, role: pb.Role, generation: int, without: str = "") -> RoundContext:
        return RoundContext(
            self.harness.RUN, 1, self.harness.BASE, self.key.member_id, self.carrier.peer_id, 1, 2, generation,
            self.roster(role, generation, without), self.chain.settings, self.chain.config,
        )  # fmt: skip

    async def close(self) -> None:
        await self.station.close()
        await self.committer.end(0.0)
        await self.carrier.close()
        self.engine.close()
