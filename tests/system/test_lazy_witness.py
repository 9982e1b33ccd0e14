"""A witness that computes nothing meets passes whose answer is known, and is shut out with evidence: real processes.

The referee has to rule and the witness to be asked while the round lasts, so that its rounds are long for a test.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from event_logs import refused_moments

from benchmarks.cluster_row import write_dataset
from benchmarks.workload import Workload
from common.faults import NO_FAULTS
from coordinator.evidence_check import Outcome
from coordinator.journal import Journal
from simulations.audit_check import find_evidence, verify_evidence
from simulations.plan import AttackingWorkers, Plan
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, run_simulation, run_to_the_end

pytestmark = [pytest.mark.soak, pytest.mark.timeout(200)]

INNER_STEPS = 24


def test_a_lazy_witness_meets_canaries_and_is_shut_out_and_nobody_else(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    lazy = AttackingWorkers(workers=(3,), attack="lying_witness", parameters={"lazy": True})
    work = Workload("test", 4, 2, 16)
    settings = SimulationSettings(
        stages=2, replicas=2, rounds=2, inner_steps=INNER_STEPS, frames_per_inner_step=work.frames_per_step,
        plan=Plan(attacker=(lazy,)), one_by_one=True, time_limit_s=150.0, data=write_dataset(work, tmp_path / "data"),
        extra={"rounds": {"evaluate": False}, "audit": {"rate": 1.0, "canaries": 1.0}},
    )  # fmt: skip
    report = run_to_the_end(run_simulation(settings, out, Quiet()))
    ((found,), honest) = report["quarantined"], report["honest_quarantined"]
    assert (found["kind"], found["attack"], honest) == ("WITNESS", "lying_witness", 0)
    kept = Journal(next(out.rglob("journal.sqlite")), NO_FAULTS)
    try:
        events = list(kept.events())
    finally:
        kept.close()
    told = [(event.kind, event.data) for event in events]
    asked = {data["id"] for kind, data in told if kind == "audit_asked" and data["witness"] == found["identity"]}
    assert asked
    for one in asked:
        order = [kind for kind, data in told if data.get("id") == one]
        assert order.index("audit_verified") < order.index("audit_asked"), "its answer was known before it was asked"
    state = out / "coordinator"
    (tmp_path / "scratch").mkdir()
    checks = verify_evidence(find_evidence(found["evidence_cid"], state, None), state, tmp_path / "scratch")
    assert {check.outcome for check in checks} == {Outcome.HOLDS}, checks
    assert refused_moments(out) == []
