"""A worker's stage while it stands by: warm, silent, and at work as soon as it is promoted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

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
        await self.committer.end()
        await self.carrier.close()
        self.engine.close()


def test_a_standby_is_ready_serves_nothing_and_goes_on_with_the_lost_replicas_work(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any) -> None:
        first, lost = chain.at(0)[0], chain.at(1)[0]
        standby = Standby(harness, chain, tmp_path)
        station = standby.station
        await standby.service.start()
        weights = lost.local.weights()
        context = standby.context(pb.STANDBY, 1)
        assert not station.has_place and station.report().ready_base_cid == ""
        await station.adopt(context, weights, SHA256)
        assert station.holds(harness.BASE) and not station.has_place
        station.stand_by(context)
        report = station.report()
        assert (report.ready_base_cid, report.weights_sha256, report.generation) == (harness.BASE, SHA256, 1)
        assert station.serving is None and report.round == 0
        # Nobody calls it: the roster's replicas are the others.
        await chain.work()
        assert len(chain.counted(1)) == len(chain.counted(0)) > 0
        assert not [name for name, _ in standby.events if name != "standby_ready"]

        chain.network.cut_off(lost.peer_id)
        await station.open_round(standby.context(pb.REPLICA, 2, lost.peer_id))
        assert [name for name, _ in standby.events] == ["standby_ready", "promoted", "ready"]
        assert standby.events[1][1] == {"round": 1, "stage": 1, "generation": 2}
        assert not station.standby and not station.holds(harness.BASE)
        loaded = station.local.weights()
        assert all(np.array_equal(loaded[name], value) for name, value in weights.items())
        replaced = replace(first.context, roster=standby.roster(pb.REPLICA, 2, lost.peer_id))
        first.replica.context = replaced
        first.downstream.follow(replaced)
        first.feeder.follow(replaced)
        chain.leases.count += 2
        await chain.work()
        assert station.serving is not None
        await station.serving.replica.settled()
        served = sorted(identifier for identifier, _ in station.serving.replica.ledger.counted())
        assert served == [4, 5, 6, 7, 8, 9, 10, 11]
        assert station.report().frames_done == station.serving.replica.totals.frames > 0
        await standby.close()

    harness.run_chain(harness.Chain(2, 1), body)
