"""Watches a run from outside, to its end, and carries out its fault plan on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from common.errors import Code, HocketError
from simulations.cluster import Cluster
from simulations.plan import Plan, PlanProgress
from simulations.progress import Show
from simulations.recoveries import OpenSpans

SAMPLE_EVERY_S = 2.0


class Watched(Protocol):
    """What has to be known of a run to watch it; see `simulations.simulate.SimulationSettings`."""

    @property
    def plan(self) -> Plan: ...

    @property
    def poll_s(self) -> float: ...

    @property
    def time_limit_s(self) -> float: ...


async def follow(
    cluster: Cluster, ticket: str, settings: Watched, show: Show
) -> tuple[dict[str, Any], PlanProgress]:
    """As `watch`; CHILD_FAILED when the run did not come to its end within its time limit."""
    status, progress = await watch(cluster, ticket, settings, show)
    if (why := unfinished(status, settings)) is not None:
        raise HocketError(Code.CHILD_FAILED, f"{why}; logs are in {cluster.out}")
    return status, progress


async def watch(
    cluster: Cluster, ticket: str, settings: Watched, show: Show, spans: OpenSpans | None = None
) -> tuple[dict[str, Any], PlanProgress]:
    """Watch the run to its end, and until its last version was listened to; carry out the fault plan on the way.

    Args:
        spans: told when rounds are open.

    Returns: the last status, which is not FINISHED when the time limit has passed, and what became of the plan.

    Raises:
        HocketError: CHILD_FAILED when the coordinator ended by itself, or was not heard of before the time limit passed.
    """
    progress = PlanProgress(settings.plan)
    deadline = time.monotonic() + settings.time_limit_s
    next_sample = 0.0
    status: dict[str, Any] = {}
    reported: set[str] = set()
    while time.monotonic() < deadline:
        await cluster.supervise(status)
        if (found := await cluster.status_if_up(ticket)) is None:
            await asyncio.sleep(settings.poll_s)
            continue
        status = found
        if spans is not None:
            spans.look(str(status["phase"]), time.time())
        for action in progress.due(status, time.monotonic()):
            await cluster.act(action, ticket)
            show.note(f"{action.kind} stage {action.stage} pid {action.pid}: {action.reason}")
        for line in cluster.unexpected_ends():
            if line not in reported:
                reported.add(line)
                show.note(line)
        if time.monotonic() >= next_sample:
            cluster.sample_usage()
            next_sample = time.monotonic() + SAMPLE_EVERY_S
        show.status(status)
        if status["phase"] == "FINISHED" and status.get("listening") is None:
            cluster.sample_usage()
            return status, progress
        await asyncio.sleep(settings.poll_s)
    if status.get("phase") == "FINISHED":
        show.note(f"the time limit has passed; the version of round {status['listening']} was not listened to")
    elif not status:
        raise HocketError(
            Code.CHILD_FAILED, f"nothing was heard of the run within {settings.time_limit_s:.0f} s; logs are in {cluster.out}"
        )
    return status, progress


def unfinished(status: Mapping[str, Any], settings: Watched) -> str | None:
    """Why a run whose last status this is has not come to its end; None: it has."""
    if status["phase"] == "FINISHED":
        return None
    return (
        f"the run did not end within {settings.time_limit_s:.0f} s: round {status.get('round')}, {status['phase']}, "
        f"{status.get('reason')}"
    )
