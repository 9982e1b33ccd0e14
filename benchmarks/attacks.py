"""What attackers do to the training, rule by rule: held-out loss of small runs with false replicas beside the same run without.

Each run is a `simulations.training_swarm`: 2 stages of 10 replicas over the in-memory carrier, of which none, 2 or 3 attack in
each stage. Attackers know all honest updates. Runs differ in nothing but the rule and the attack, so a row is a comparison of
two runs of the same rule.
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

SHARE_FOR_LOSS = 0.2
SHARE_FOR_DIVERGENCE = 0.3
LOSS_BAR = 1.05
SLEEPS_UNTIL = 3


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


def shares_named(text: str) -> tuple[float, ...]:
    """The shares of a list such as `0.2,0.3`.

    Raises:
        HocketError: INPUT_INVALID for what is no share below one half.
    """
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise HocketError(Code.INPUT_INVALID, f"{text!r} is no list of shares") from error
    if not all(0.0 < share < 0.5 for share in shares):
        raise HocketError(Code.INPUT_INVALID, f"{text!r}: a share of attackers lies between 0 and 0.5")
    return shares


@dataclass(frozen=True)
class AttacksBench:
    """What is measured.

    Args:
        aggregations: the rules. attacks: labels of `attack_rows`; empty: all.
        shares: of a stage's replicas that attack; those that do not hide inside the spread have the first one alone.
        replicas, rounds, inner_steps: of each small run. tolerate: what the aggregation is told to stand.
        processes: small runs at a time.
    """

    aggregations: tuple[Aggregation, ...] = AGGREGATIONS
    attacks: tuple[str, ...] = ()
    shares: tuple[float, ...] = (SHARE_FOR_LOSS, SHARE_FOR_DIVERGENCE)
    replicas: int = 10
    rounds: int = 5
    inner_steps: int = 2
    tolerate: int = 3
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
    attackers: int
    bench: AttacksBench


def _jobs(bench: AttacksBench) -> Iterator[_Job]:
    rows = attack_rows()
    for aggregation in bench.aggregations:
        yield _Job(aggregation, "", 0, bench)
        for label in bench.attacks or tuple(rows):
            # What is found and thrown out need not be borne at the larger share.
            spread = rows[label].attack.bar is Bar.SPREAD
            for share in bench.shares if spread else bench.shares[:1]:
                yield _Job(aggregation, label, math.floor(share * bench.replicas + 1e-9), bench)


def _run(job: _Job) -> list[float]:
    """Held-out losses of one small run, by version. Runs in a process of its own."""
    from node.engine import set_threads
    from simulations.training_swarm import SwarmSettings, TrainingSwarm

    set_threads(1)
    bench = job.bench
    settings = SwarmSettings(
        replicas=bench.replicas, rounds=bench.rounds, inner_steps=bench.inner_steps, tolerate=bench.tolerate, seed=bench.seed,
        rule=job.aggregation.rule, prepare=job.aggregation.prepare,
    )  # fmt: skip
    if job.label:
        row = attack_rows()[job.label]
        settings = replace(settings, attack=row.attack, attackers=job.attackers, first_round=row.first_round)
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
    clean: dict[Aggregation, list[float]] = {}
    # A fresh interpreter each: torch's threads do not survive a fork.
    with ProcessPoolExecutor(bench.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, (job, losses) in enumerate(zip(jobs, pool.map(_run, jobs), strict=True), start=1):
            if not job.label:
                clean[job.aggregation] = losses
            row = row_of(job.aggregation.label, job.label, job.attackers / bench.replicas, losses, clean[job.aggregation])
            result.rows.append(row)
            say(f"{number}/{len(jobs)} {row['row']}: held out {losses[-1]:.4f}, {row['over_clean']:.3f} of clean")
    for aggregation in bench.aggregations:
        result.ratios[f"{aggregation.label}: worst of the spread at 20 % over clean"] = worst(result.rows, aggregation.label)
    return result


def row_of(rule: str, label: str, share: float, losses: Sequence[float], clean: Sequence[float]) -> dict[str, Any]:
    """One row of the table.

    Args:
        losses: of the run with attackers, that of the first weights first. clean: of the same rule's run without.
    """
    bar = attack_rows()[label].attack.bar if label else None
    final = losses[-1] if math.isfinite(losses[-1]) else math.inf
    return {
        "row": f"{rule} | {label or 'nobody attacks'}" + (f" | {share:.0%}" if label else ""),
        "rule": rule,
        "attack": label,
        "bar": str(bar) if bar is not None else "",
        "share": share,
        "heldout_losses": list(losses),
        "heldout_loss": final,
        "over_clean": final / clean[-1],
        "diverged": not final < losses[0],
    }


def worst(rows: Sequence[dict[str, Any]], rule: str) -> float:
    """The largest loss over clean of a rule's rows that hide inside the spread, at the share where the bar is."""
    inside = [
        float(row["over_clean"])
        for row in rows
        if row["rule"] == rule and row["bar"] == Bar.SPREAD and math.isclose(row["share"], SHARE_FOR_LOSS)
    ]
    return max(inside, default=math.nan)
