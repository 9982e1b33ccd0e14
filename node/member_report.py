"""What a worker says about itself in its reports to the coordinator."""

from __future__ import annotations

import os
from collections.abc import Sequence

from node.feeder import FeederTotals
from node.session import Session
from node.stage_service import Serving
from node.wire import TRAIN_STEP_PROTOCOL, Losses
from protocol.generated import hocket_pb2 as pb
from swarm.block_service import BLOCKS_PROTOCOL
from swarm.carrier import Carrier


def tell_traffic(report: pb.MemberReport, carrier: Carrier, session: Session) -> None:
    """Which process this is, and what it has sent since it started."""
    traffic = carrier.traffic
    report.bytes_sent_activations = traffic.requests[TRAIN_STEP_PROTOCOL]
    report.bytes_sent_gradients = traffic.answers[TRAIN_STEP_PROTOCOL]
    report.bytes_sent_blocks = traffic.answers[BLOCKS_PROTOCOL] + traffic.requests[BLOCKS_PROTOCOL]
    report.bytes_sent_updates = session.bytes_sent_updates
    report.pid = os.getpid()


def tell_round(
    report: pb.MemberReport, serving: Serving, leases: FeederTotals, resumed: Sequence[int], heldout: Losses | None
) -> None:
    """What has been done in the round that is served.

    Args:
        leases: finished ones. resumed: earlier generations whose work is in these numbers.
        heldout: sums of the base on the held-out set, once it was evaluated.
    """
    replica = serving.replica
    report.round = serving.context.round
    report.frames_done = replica.totals.frames
    report.inner_steps = replica.totals.inner_steps
    report.duplicates = replica.ledger.duplicates
    report.dropped = replica.ledger.dropped
    report.in_flight = replica.in_flight
    if serving.context.is_last:
        report.losses.extend(replica.totals.losses.codebooks())
    if serving.context.is_first:
        report.auxiliary.extend(replica.totals.losses.auxiliaries())
    report.resumed_generations.extend(resumed)
    report.leases_done.extend(leases.leases)
    report.oddities.extend(serving.edges.oddities)
    if heldout is not None:
        report.heldout.extend(heldout.codebooks())
    if serving.downstream is not None:
        stats = serving.downstream.stats
        report.reroutes, report.longest_wait_s = stats.reroutes, stats.longest_wait_s
        report.suspects.extend(sorted(stats.suspects))
