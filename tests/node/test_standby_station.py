"""A worker's stage while it stands by: warm, silent, and at work as soon as it is promoted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from standby_member import SHA256, Standby

from protocol.generated import hocket_pb2 as pb


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
