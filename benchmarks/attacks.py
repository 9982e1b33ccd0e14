"""What attackers do to the training, rule by rule: held-out loss of small runs with false replicas beside the same run without.

Each run is a `simulations.training_swarm` over the in-memory carrier: 2 stages of 5 replicas of which 1 attacks, or of 7 of which
2 do, trained until the loss hardly falls any more. Attackers know all honest updates. Runs differ in nothing but the rule and the
attack, so a row is a comparison of two runs of the same rule, with and without attackers.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.result import BenchResult, machine_facts
from common.errors import Code, HocketError
from simulations.attacks.base import Attack, Bar
from simulations.attacks.catalogue import update_variants
from simulations.attacks.inside_spread import LittleIsEnough
from simulations.attacks.on_data import ShiftedCodes, SwappedTexts

SLEEPS_UNTIL = 4


@dataclass(frozen=True)
class Crowd:
    """Replicas of each stage, and how many of them attack; the rule is told to stand as many."""

    replicas: int
    attackers: int

    @property
    def label(self) -> str:
        return f"{self.attackers} of {self.replicas}"


CROWDS = (Crowd(5, 1), Crowd(7, 2))


@dataclass(frozen=True)
class Aggregation:
    """A rule and what updates go through before it."""

    rule: str
    prepare: str = "none"

    @property
    def label(self) -> str:
        return self.rule if self.prepare == "none" else f"{self.prepare} + {self.rule}"


AGGREGATIONS = (
    Aggregation("centred_clipping"),
    Aggregation("trimmed_mean"),
    Aggregation("trimmed_mean", "mixing"),
    Aggregation("median"),
    Aggregation("geometric_median"),
    Aggregation("multi_krum"),
    Aggregation("mean"),
)
LEFT_OUT = (
    "A1 sign flip x1000",
    "A3 inner product 0.1",
    "A3 inner product 100",
    "A4 noise x0.1",
    "A14 all infinite",
    "A15 times 1e30",
)
"""Variants that a rule treats as it does one that is in the table."""


def aggregations_named(text: str | None) -> tuple[Aggregation, ...]:
    """The aggregations of a list such as `median,bucketing+centred_clipping`; all without one.

    Raises:
        HocketError: INPUT_INVALID for one that there is not.
    """
    if not text:
        return AGGREGATIONS
    known = {one.label.replace(" ", ""): one for one in AGGREGATIONS}
    chosen = []
    for name in (part.strip() for part in text.split(",")):
        if name not in known:
            raise HocketError(Code.INPUT_INVALID, f"no rule {name!r}; known: {', '.join(known)}")
        chosen.append(known[name])
    return tuple(chosen)


@dataclass(frozen=True)
class AttacksBench:
    """What is measured.

    Args:
        aggregations: the rules. attacks: labels of `attack_rows`; empty: all.
        crowds: replicas and attackers of a stage; attacks that do not hide inside the spread have the first one alone.
        rounds, inner_steps: of each small run.
        processes: small runs at a time.
    """

    aggregations: tuple[Aggregation, ...] = AGGREGATIONS
    attacks: tuple[str, ...] = ()
    crowds: tuple[Crowd, ...] = CROWDS
    rounds: int = 8
    inner_steps: int = 5
    seed: int = 0
    processes: int = 2


@dataclass(frozen=True)
class AttackRow:
    """An attack as a row of the table; `first_round` is when it begins."""

    attack: Attack
    first_round: int = 1


def attack_rows() -> dict[str, AttackRow]:
    """The attacks whose effect on training is measured, by label."""
    rows = {label: AttackRow(attack) for label, attack in update_variants().items() if label not in LEFT_OUT}
    rows["A9 shifted codes"] = AttackRow(ShiftedCodes())
    rows["A9 swapped texts"] = AttackRow(SwappedTexts())
    rows[f"A23 sleeper, from round {SLEEPS_UNTIL}"] = AttackRow(LittleIsEnough(1.5), SLEEPS_UNTIL)
    return dict(sorted(rows.items(), key=lambda item: (int(item[0].split()[0][1:]), item[0])))


@dataclass(frozen=True)
class _Job:
    """One small run; `label` empty: nobody attacks."""

    aggregation: Aggregation
    label: str
    crowd: Crowd
    bench: AttacksBench


def _jobs(bench: AttacksBench) -> Iterator[_Job]:
    rows = attack_rows()
    for aggregation in bench.aggregations:
        for crowd in bench.crowds:
            yield _Job(aggregation, "", crowd, bench)
        for label in bench.attacks or tuple(rows):
            # What is found and thrown out need not be borne in the larger crowd.
            spread = rows[label].attack.bar is Bar.SPREAD
            for crowd in bench.crowds if spread else bench.crowds[:1]:
                yield _Job(aggregation, label, crowd, bench)


def _run(job: _Job) -> list[float]:
    """Held-out losses of one small run, by version. Runs in a process of its own."""
    from node.engine import set_threads
    from simulations.training_swarm import SwarmSettings, TrainingSwarm

    set_threads(1)
    bench = job.bench
    settings = SwarmSettings(
        replicas=job.crowd.replicas, tolerate=job.crowd.attackers, rounds=bench.rounds, inner_steps=bench.inner_steps,
        seed=bench.seed, rule=job.aggregation.rule, prepare=job.aggregation.prepare,
    )  # fmt: skip
    if job.label:
        row = attack_rows()[job.label]
        settings = replace(settings, attack=row.attack, attackers=job.crowd.attackers, first_round=row.first_round)
    with tempfile.TemporaryDirectory(prefix="hocket-attacks-") as folder:
        return asyncio.run(TrainingSwarm(settings, Path(folder)).run()).losses


def measure(bench: AttacksBench, *, say: Callable[[str], None]) -> BenchResult:
    """Run every small run and compare each with that of the same rule without attackers.

    Args:
        say: told of each finished run.

    Raises:
        HocketError: INPUT_INVALID for an attack that there is not.
    """
    unknown = sorted(set(bench.attacks) - set(attack_rows()))
    if unknown:
        raise HocketError(Code.INPUT_INVALID, f"no attack {unknown[0]!r}; known: {', '.join(attack_rows())}")
    jobs = list(_jobs(bench))
    cores = sorted(os.sched_getaffinity(0))
    result = BenchResult("attacks", machine_facts(cores))
    clean: dict[tuple[Aggregation, Crowd], list[float]] = {}
    # A fresh interpreter each: torch's threads do not survive a fork.
    with ProcessPoolExecutor(bench.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, (job, losses) in enumerate(zip(jobs, pool.map(_run, jobs), strict=True), start=1):
            if not job.label:
                clean[job.aggregation, job.crowd] = losses
            row = row_of(job.aggregation.label, job.label, job.crowd, losses, clean[job.aggregation, job.crowd])
            result.rows.append(row)
            say(f"{number}/{len(jobs)} {row['row']}: held out {losses[-1]:.4f}, {row['over_clean']:.3f} of clean")
    for aggregation in bench.aggregations:
        for crowd in bench.crowds:
            name = f"{aggregation.label}: worst of the spread over clean, {crowd.label}"
            result.ratios[name] = worst(result.rows, aggregation.label, crowd)
    return result


def row_of(rule: str, label: str, crowd: Crowd, losses: Sequence[float], clean: Sequence[float]) -> dict[str, Any]:
    """One row of the table.

    Args:
        losses: of the run with attackers, that of the first weights first. clean: of the same rule's run without.
    """
    bar = attack_rows()[label].attack.bar if label else None
    final = losses[-1] if math.isfinite(losses[-1]) else math.inf
    return {
        "row": f"{rule} | {label or 'nobody attacks'} | {crowd.label if label else f'0 of {crowd.replicas}'}",
        "rule": rule,
        "attack": label,
        "bar": str(bar) if bar is not None else "",
        "replicas": crowd.replicas,
        "attackers": crowd.attackers if label else 0,
        "heldout_losses": list(losses),
        "heldout_loss": final,
        "over_clean": final / clean[-1],
        "diverged": not final < losses[0],
    }


def worst(rows: Sequence[dict[str, Any]], rule: str, crowd: Crowd) -> float:
    """The largest loss over clean of a rule's rows in which attackers hide inside the spread; NaN when there is none."""
    inside = [
        float(row["over_clean"])
        for row in rows
        if row["rule"] == rule and row["bar"] == Bar.SPREAD and row["replicas"] == crowd.replicas
    ]
    return max(inside, default=math.nan)
