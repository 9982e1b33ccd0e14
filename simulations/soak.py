"""`hocket soak`: a small cluster that runs for hours while a worker is moved now and then; what each process holds must be flat.

In each stage one replica stays for good; of the others the one that came last is ended in every tenth round, stage by stage,
and a new one joins in its place. So everything that stays sees members come and go for as long as the soak lasts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.files import atomic_write
from protocol.ticket import Ticket
from simulations.actions import Action, seen_in
from simulations.cluster import Cluster
from simulations.flatness import BOUNDS, judge
from simulations.plots import draw_curves
from simulations.progress import Show
from simulations.report import acked_updates_lost
from simulations.simulate import SimulationSettings, prepare_data, read_manifests, run_file, start_workers, worker_logs
from simulations.usage import descendants, holding, start_ticks

logger = logging.getLogger(__name__)

MANY_ROUNDS = 1_000_000
"""More than any soak has time for: the clock ends it."""

WARM_UP_S = 300.0
"""In which a process that has just come opens connections and fills its caches; a soak that is hardly longer cannot tell."""


@dataclass(frozen=True)
class SoakSettings:
    """Args: hours: to run. move_every: rounds. sample_every_s: between two looks at the processes."""

    hours: float = 2.0
    move_every: int = 10
    sample_every_s: float = 10.0
    poll_s: float = 0.5
    cluster: SimulationSettings = field(default_factory=lambda: soak_cluster(MANY_ROUNDS))


def soak_cluster(rounds: int) -> SimulationSettings:
    """Three stages of two replicas and short rounds."""
    more: dict[str, dict[str, Any]] = {"rounds": {"evaluate": False, "total_frames": 2_000_000_000}, "checkpoint": {"keep": 4}}
    return SimulationSettings(name="soak", stages=3, replicas=2, rounds=rounds, inner_steps=4, idle=1, extra=more)


class MoveProgress:
    """Decides who is moved, and when. Pure: the status comes in.

    Args:
        every: rounds between two moves.
    """

    def __init__(self, every: int, stages: int) -> None:
        self._every = every
        self._stages = stages
        self._moved_in = 0
        self._next_stage = 0

    def due(self, status: Mapping[str, Any]) -> list[Action]:
        """In an open round of the right number: the replica of the next stage that came last goes, and another worker comes.

        A stage in which not two replicas are ready waits for its next turn; one always stays.
        """
        current = int(status.get("round", 0))
        if status.get("phase") != "OPEN" or current % self._every or current == self._moved_in:
            return []
        ready = [one for one in seen_in(status) if one.role == "replica" and one.ready]
        for _ in range(self._stages):
            stage = self._next_stage
            self._next_stage = (self._next_stage + 1) % self._stages
            of_it = [one for one in ready if one.stage == stage]
            if len(of_it) > 1:
                self._moved_in = current
                why = f"round {current}: the replica of stage {stage} that came last goes, another comes"
                return [Action.against(of_it[-1], "kill", current, why), Action("join", current, why, stage=stage)]
        return []


@dataclass(frozen=True)
class Sample:
    """What one process held at one moment.

    Args:
        at: seconds since the soak began.
        process: of the cluster, and below it the program: `worker-2` or `worker-2/p2pd`.
        born: start time in clock ticks, with which a pid names one process for good.
    """

    at: float
    process: str
    pid: int
    born: int
    memory_bytes: int
    threads: int
    descriptors: int
    sockets: int


def take_samples(cluster: Cluster, at: float) -> list[Sample]:
    """Look at every process that takes part in a cluster's run and at those that they started."""
    found = []
    for child in [*([cluster.coordinator] if cluster.coordinator else []), *cluster.workers]:
        if not child.running:
            continue
        for pid in (child.pid, *descendants(child.pid)):
            born, held = start_ticks(pid), holding(pid)
            if born is None or held is None:
                continue
            name = child.name if pid == child.pid else f"{child.name}/{held.name}"
            found.append(Sample(at, name, pid, born, held.memory_bytes, held.threads, held.descriptors, held.sockets))
    return found


def by_process(samples: list[Sample]) -> dict[str, list[Sample]]:
    """The samples of each process, oldest first; where several had a name, the number tells them apart."""
    found: dict[str, list[Sample]] = {}
    names: dict[tuple[int, int], str] = {}
    for one in samples:
        key = (one.pid, one.born)
        if key not in names:
            names[key] = one.process if one.process not in found else f"{one.process}#{one.pid}"
        found.setdefault(names[key], []).append(one)
    return found


def verdicts(samples: list[Sample], *, lived_share: float = 0.5, warm_up_s: float = 0.0) -> list[dict[str, Any]]:
    """Whether what each process held was flat, of those that lived for at least that share of the time.

    Returns: one entry for each process and quantity, those that are not flat first.
    """
    if not samples:
        return []
    span_s = samples[-1].at - samples[0].at
    found = []
    for process, own in by_process(samples).items():
        if own[-1].at - own[0].at < lived_share * span_s:
            continue
        for quantity, bound in BOUNDS.items():
            verdict = judge([(one.at, float(getattr(one, quantity))) for one in own], bound, warm_up_s=warm_up_s)
            if verdict is not None:
                found.append({"process": process, "quantity": quantity, **asdict(verdict)})
    return sorted(found, key=lambda one: (one["flat"], one["process"], one["quantity"]))


def draw_samples(out: Path, samples: list[Sample]) -> list[Path]:
    """A picture for each quantity, one curve a process."""
    paths = []
    for quantity in BOUNDS:
        scale = 2**20 if quantity == "memory_bytes" else 1
        curves = {
            process: [(one.at / 3600.0, getattr(one, quantity) / scale) for one in own]
            for process, own in by_process(samples).items()
        }
        path = out / f"{quantity.removesuffix('_bytes')}.png"
        draw_curves(path, curves, title=f"{quantity.removesuffix('_bytes')} of each process", x="hours",
                    y="MiB (PSS)" if scale > 1 else "number")  # fmt: skip
        paths.append(path)
    return paths


async def run_soak(settings: SoakSettings, out: Path, show: Show) -> dict[str, Any]:
    """Run the soak into `out`: samples.jsonl as it goes, then pictures and `soak.json`, which is returned.

    Raises:
        HocketError: CHILD_FAILED when the coordinator ended, and as `run_simulation`.
    """
    out = out.resolve()
    data = await prepare_data(settings.cluster, out, show)
    run_toml = out / "run.toml"
    atomic_write(run_toml, run_file(settings.cluster, data).encode())
    samples: list[Sample] = []
    moves = MoveProgress(settings.move_every, settings.cluster.stages)
    unexpected: list[str] = []
    with show:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(Cluster(out, idle=settings.cluster.idle, threads=settings.cluster.threads))
            log = stack.enter_context((out / "samples.jsonl").open("a", encoding="utf-8"))
            ticket = await cluster.start_coordinator(run_toml)
            await start_workers(cluster, ticket, settings.cluster)
            began = time.monotonic()
            status: dict[str, Any] = {"rounds": []}
            manifests: dict[int, dict[str, Any]] = {}
            key = Ticket.decode(ticket).coordinator_key
            next_sample = began
            while (now := time.monotonic()) < began + 3600.0 * settings.hours:
                await cluster.supervise(status)
                if (found := await cluster.status_if_up(ticket)) is None:
                    await asyncio.sleep(settings.poll_s)
                    continue
                status = found
                for action in moves.due(status):
                    await cluster.act(action, ticket)
                if now >= next_sample:
                    taken = take_samples(cluster, now - began)
                    samples += taken
                    log.writelines(json.dumps(asdict(one)) + "\n" for one in taken)
                    log.flush()
                    next_sample = now + settings.sample_every_s
                for line in cluster.unexpected_ends():
                    if line not in unexpected:
                        unexpected.append(line)
                        show.note(line)
                finished = [entry for entry in status["rounds"] if int(entry["round"]) not in manifests]
                manifests |= read_manifests(cluster.coordinator_state, finished, key)
                show.status(status)
                await asyncio.sleep(settings.poll_s)
            lost = acked_updates_lost(worker_logs(cluster.workers), manifests)
    judged = verdicts(samples, warm_up_s=WARM_UP_S)
    report = {
        "hours": settings.hours,
        "rounds": len(status["rounds"]),
        "moves": len(cluster.faults),
        "workers_started": len(cluster.workers),
        "flat": bool(judged) and all(one["flat"] for one in judged),
        "verdicts": judged,
        "acked_updates_lost": len(lost),
        "unexpected_ends": unexpected,
        "pictures": [str(path) for path in draw_samples(out, samples)],
    }
    atomic_write(out / "soak.json", (json.dumps(report, indent=2, sort_keys=True) + "\n").encode())
    return report


def soak_lines(report: Mapping[str, Any]) -> list[str]:
    """A soak's report for people."""
    lines = [
        f"{report['rounds']} rounds in {report['hours']:g} h, {report['moves']} workers moved: "
        + ("everything was flat" if report["flat"] else "not everything was flat" if report["verdicts"] else "too short to tell"),
        f"{report['acked_updates_lost']} acknowledged updates were lost",
    ]
    for one in report["verdicts"]:
        mark = "flat" if one["flat"] else "GROWS"
        where = f"{mark:>5}  {one['process']:<24} {one['quantity']:<13}"
        lines.append(f"{where} {one['first']:.4g} -> {one['last']:.4g}: {one['reason']}")
    return [*lines, *report["unexpected_ends"]]
