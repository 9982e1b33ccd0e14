"""A whole run on one machine, from tokenised speech to a report: what `hocket simulate` and `hocket demo` do."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError, error_of_line
from common.files import atomic_write
from common.log import read_events
from common.stop import stop_signals
from protocol.ticket import Ticket
from simulations.attack_report import ATTACK_LOG, AttackFacts
from simulations.child import Child, bare_environment
from simulations.cluster import START_GRACE_S, Cluster
from simulations.following import unfinished, watch
from simulations.links import Links
from simulations.nursery import Nursery
from simulations.plan import Plan
from simulations.progress import Show
from simulations.recoveries import OpenSpans
from simulations.report import build_report

logger = logging.getLogger(__name__)

POLL_S = 0.1


@dataclass(frozen=True)
class SimulationSettings:
    """What a simulated run is.

    Args:
        data: folder made by `hocket tokenize`; None: `corpus` is tokenised first, and without one the shipped corpus.
        clips: of the corpus that are tokenised, the first so many; 0: all.
        standbys: workers that are kept ready beside the replicas.
        idle: started workers that wait for a ticket, for those that a plan lets join.
        recycle_every: rounds after which a worker starts its compute engine anew; 0: only after a fault.
        frames_per_inner_step: of each stage-0 replica.
        warm_up_steps: inner steps in which the learning rate rises.
        one_by_one: start each worker once the one before it has a stage, so that of the first `stages` workers each serves
            another stage, and so on: which one is drawn. A fault plan that names them all, with the stage, means one process.
        poll_s: how often the coordinator's status is looked at.
        time_limit_s: after it the run is given up: its report is written and says so, and the command ends with an error.
        extra: further lines of the run file as {section: {key: value}}.
    """

    stages: int = 3
    replicas: int = 2
    standbys: int = 0
    idle: int = 0
    recycle_every: int = 0
    rounds: int = 3
    inner_steps: int = 4
    preset: str = "test"
    seed: int = 0
    plan: Plan = field(default_factory=Plan)
    data: Path | None = None
    corpus: Path | None = None
    language: str = "en-US"
    clips: int = 0
    codec: str = "hocket-16k"
    codebooks: int = 4
    wire: str = "fp32"
    frames_per_inner_step: int = 600
    microbatches_per_inner_step: int = 4
    inner_lr: float = 4e-3
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    warm_up_steps: int = 4
    threads: int = 1
    one_by_one: bool = False
    poll_s: float = 0.1
    time_limit_s: float = 1800.0
    name: str = "simulation"
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """How many the run begins with."""
        return self.stages * self.replicas + self.standbys


def settings_of(plan: Plan, **typed: Any) -> SimulationSettings:
    """The settings for a plan: what was typed, else what the plan says, else the defaults.

    Args:
        typed: fields of `SimulationSettings`; None where nothing was typed.
    """
    planned = plan.simulation.model_dump(exclude_none=True)
    given = {name: value for name, value in typed.items() if value is not None}
    return SimulationSettings(**{**planned, **given, "plan": plan, "extra": plan.run_file})


def toml_text(tables: dict[str, dict[str, Any]]) -> str:
    """TOML of plain tables of strings, numbers, booleans and lists of those."""
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def run_file(settings: SimulationSettings, manifest: Path, host: str = "") -> str:
    """The run file of a simulation.

    Args:
        host: on which the coordinator listens; empty: on this machine's own loopback.
    """
    tables: dict[str, dict[str, Any]] = {
        "run": {"id": f"{settings.name}-{settings.seed}", "seed": settings.seed},
        "model": {"preset": settings.preset, "stages": settings.stages},
        "data": {"manifest": str(manifest)},
        "rounds": {
            "count": settings.rounds,
            "frames_per_inner_step": settings.frames_per_inner_step,
            "microbatches_per_inner_step": settings.microbatches_per_inner_step,
            "inner_steps": settings.inner_steps,
            "inner_lr": settings.inner_lr,
            "warmup_frames": settings.warm_up_steps * settings.frames_per_inner_step * settings.replicas,
            "outer_lr": settings.outer_lr,
            "outer_momentum": settings.outer_momentum,
            "replicas_wanted": settings.replicas,
        },
        "aggregation": {"tolerate": 1},
        "checkpoint": {"keep": settings.rounds + 1},
        "previews": {"every": 0},
        "network": {"wire": settings.wire},
    }
    if not settings.plan.attacker:
        # The machine is for what the run is about: audits are for plans with something to be found, or that ask for them.
        tables["audit"] = {"rate": 0.0}
    if settings.standbys:
        tables["membership"] = {"standbys": settings.standbys}
    if host:
        tables["network"]["listen"] = f"{host}:0"
    for section, values in settings.extra.items():
        tables.setdefault(section, {}).update(values)
    return toml_text(tables)


async def run_module(module: str, arguments: list[str], log_path: Path) -> str:
    """Run `python -m MODULE ARGUMENTS` as a child process; returns its standard output, its log goes to `log_path`.

    Raises:
        HocketError: the one with which it ended, or CHILD_FAILED with its last line.
    """
    with log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode != 0:
        last = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] or ["its log is empty"]
        own = error_of_line(last[0])
        if own is not None:
            raise own
        raise HocketError(Code.CHILD_FAILED, f"{module} ended with {process.returncode}, see {log_path}: {last[0]}")
    return output.decode()


async def prepare_data(settings: SimulationSettings, out: Path, show: Show) -> Path:
    """The folder of the tokenised data, made when it was not given."""
    if settings.data is not None:
        return settings.data.resolve()
    from tokenizer.corpus import default_corpus

    corpus = settings.corpus.resolve() if settings.corpus is not None else default_corpus()
    data = out / "data"
    arguments = ["tokenize", str(corpus), "--language", settings.language, "--codec", settings.codec, "--out", str(data)]
    arguments += ["--codebooks", str(settings.codebooks), "--key", str(out / "maker.key"), "--json"]
    arguments += ["--first", str(settings.clips)] if settings.clips else []
    show.note(f"tokenising {corpus}")
    started = time.monotonic()
    facts = json.loads(await run_module("cli.main", arguments, out / "tokenize.log"))
    show.note(
        f"tokenised {facts['clips']} clips ({facts['minutes']:.1f} minutes) into {facts['shards']} shards, "
        f"{facts['heldout_clips']} held out, in {time.monotonic() - started:.1f} s"
    )
    return data


@dataclass
class FinishedRun:
    """A run that reached its end while its coordinator is still up."""

    cluster: Cluster
    ticket: str
    status: dict[str, Any]
    report: dict[str, Any]


async def start_workers(cluster: Cluster, ticket: str, settings: SimulationSettings) -> None:
    """Start the run's workers, all at once or one after the other.

    Raises:
        HocketError: CHILD_FAILED when a worker gets no stage in time.
    """
    wanted = settings.workers
    if not settings.one_by_one and not settings.plan.attacker:
        await asyncio.gather(*(cluster.start_worker(ticket) for _ in range(wanted)))
        return
    for _ in range(wanted):
        child = await cluster.start_worker(ticket)
        attacks = settings.plan.attackers_of(child.name)
        if attacks is not None and attacks.operator:
            continue  # goes by another name, and may be kept out
        deadline = time.monotonic() + START_GRACE_S
        while child.name not in placed(await cluster.status(ticket)):
            if time.monotonic() > deadline or not child.running:
                raise HocketError(Code.CHILD_FAILED, f"{child.name} got no stage, see {child.log_path}: {child.last_lines()}")
            await asyncio.sleep(POLL_S)


def placed(status: Mapping[str, Any]) -> set[str]:
    """Names of the workers that serve a stage or stand by for one; the clusters here name themselves as operators."""
    entries = [entry for stage in status["stages"] for entry in [*stage["replicas"], *stage["standbys"]]]
    return {str(entry["operator"]) for entry in entries if entry.get("alive", True)}


def worker_logs(workers: list[Child]) -> dict[str, list[dict[str, Any]]]:
    """Event logs of the workers by process name."""
    return {worker.name: read_events(worker.state_dir / "events.jsonl") for worker in workers}


def attack_facts(cluster: Cluster) -> dict[str, AttackFacts]:
    """What the attackers among the workers did, by process name."""
    return {
        worker.name: AttackFacts(one.attack, one.parameters, read_events(worker.state_dir / ATTACK_LOG))
        for worker in cluster.workers
        if (one := cluster.plan.attackers_of(worker.name)) is not None
    }


def read_manifests(coordinator_state: Path, rounds: list[dict[str, Any]], coordinator_key: bytes) -> dict[int, dict[str, Any]]:
    """Verified bodies of the version manifests of the finished rounds, from the coordinator's block store, by round."""
    from protocol.manifest import open_document
    from swarm.blocks import BlockStore

    store = BlockStore(coordinator_state / "blocks")
    return {
        int(entry["round"]): open_document(store.read_file(entry["cid"]), signer=coordinator_key)
        for entry in rounds
        if entry.get("cid")
    }


def run_to_the_end(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """`asyncio.run` in which SIGTERM and SIGHUP end the work as Ctrl-C does: every process that was started is ended first.

    Raises:
        KeyboardInterrupt: after any of these signals.
    """

    async def guarded() -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


async def _nursery(settings: SimulationSettings, out: Path, stack: AsyncExitStack) -> Nursery | None:
    """What forks the workers of a plan of attackers: they are many, and start at once.

    In other runs each loads what it needs by itself, as a volunteer's does: their memory and their starts are measured.
    """
    if not settings.plan.attacker or settings.plan.cuts:
        return None
    temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hocket-")))
    nursery = Nursery(out / "nest.log", bare_environment(temporary))
    await nursery.start()
    stack.push_async_callback(nursery.close)
    return nursery


async def run_simulation(
    settings: SimulationSettings,
    out: Path,
    show: Show,
    *,
    after: Callable[[FinishedRun], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Run a cluster to its end and write `out/report.json`.

    Args:
        after: called while the coordinator is still up, workers too; it may add to the report. Not for a run that did not end.

    Returns: the report.

    Raises:
        HocketError: CHILD_FAILED, after the report was written, when the run did not end within its time limit.
    """
    out = out.resolve()
    started = time.monotonic()
    run_toml = out / "run.toml"
    async with AsyncExitStack() as stack:
        nursery = await _nursery(settings, out, stack)     # it loads what it needs while the corpus is tokenised
        data = await prepare_data(settings, out, show)
        stack.enter_context(show)
        links = await stack.enter_async_context(await Links.create()) if settings.plan.cuts else None
        atomic_write(run_toml, run_file(settings, data, links.hub if links is not None else "").encode())
        cluster = Cluster(
            out, settings.plan, threads=settings.threads, idle=settings.idle, links=links,
            recycle_every=settings.recycle_every, nursery=nursery,
        )  # fmt: skip
        await stack.enter_async_context(cluster)
        if settings.idle or settings.plan.attacker:  # who joins one after the other should not load one after the other
            await cluster.prepare(settings.workers + settings.idle, show.note)
        ticket = await cluster.start_coordinator(run_toml)
        await start_workers(cluster, ticket, settings)
        show.note(f"started a coordinator and {len(cluster.workers)} workers; logs are in {out}")
        spans = OpenSpans()
        status, progress = await watch(cluster, ticket, settings, show, spans)
        coordinator = cluster.coordinator
        assert coordinator is not None
        memory = {
            child.name: {
                "own": child.usage.own_bytes,
                "children": child.usage.children_bytes,
                "total": child.usage.total_bytes,
            }
            for child in [coordinator, *cluster.workers]
        }
        report = build_report(
            status=status,
            logs=worker_logs(cluster.workers),
            manifests=read_manifests(coordinator.state_dir, status["rounds"], Ticket.decode(ticket).coordinator_key),
            faults=cluster.faults,
            coordinator_restarts=cluster.coordinator_restarts,
            memory=memory,
            unexpected_ends=cluster.unexpected_ends(),
            missed_steps=progress.missed,
            config={"run_toml": run_toml.read_text(encoding="utf-8"), "workers": settings.workers},
            spans=spans,
            attacks=attack_facts(cluster),
            unfinished=unfinished(status, settings),
        )
        if after is not None and report["unfinished"] is None:
            await after(FinishedRun(cluster, ticket, status, report))
        write_report(out, report, started)  # ending many processes takes its time, and may be broken off
    write_report(out, report, started)
    if report["unfinished"] is not None:
        raise HocketError(Code.CHILD_FAILED, f"{report['unfinished']}; report and logs are in {out}")
    return report


def write_report(out: Path, report: dict[str, Any], started: float) -> None:
    """Write a report, with the seconds since `started` by the monotonic clock."""
    report["seconds"] = time.monotonic() - started
    atomic_write(out / "report.json", (json.dumps(report, indent=2, sort_keys=True) + "\n").encode())
