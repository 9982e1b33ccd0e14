"""Small runs in one process: they learn, two of the same are the same, and refused attackers leave no trace in a version."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.attacks import Crowd, attack_rows, row_of, worst
from common.errors import Code, HocketError
from protocol.tensor_files import read_checked
from simulations.attacks.base import Attack, Bar
from simulations.attacks.forged_work import JointSignFlip
from simulations.attacks.impossible import Huge, Inflated, NotFinite
from simulations.attacks.on_data import ShiftedCodes, SwappedTexts
from simulations.made_up_speech import CODEBOOK_SIZE, small_model, utterance
from simulations.plan import SHIPPED, AttackingWorkers, Plan, load_plan
from simulations.training_swarm import SwarmResult, SwarmSettings, TrainingSwarm
from tts.stage_files import expected_tensors, stage_file_name

SMALL = SwarmSettings(replicas=4, rounds=1, inner_steps=1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def train(folder: Path, settings: SwarmSettings) -> SwarmResult:
    return asyncio.run(TrainingSwarm(settings, folder).run())


def version(folder: Path) -> dict[str, np.ndarray]:
    """All weights of the version of round 1."""
    found: dict[str, np.ndarray] = {}
    for stage in range(2):
        found |= read_checked(folder / f"version-1-{stage_file_name(stage)}", expected_tensors(small_model(), stage, 2))
    return found


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[SwarmResult, dict[str, np.ndarray]]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("honest")
    return train(folder, SMALL), version(folder)


def test_a_small_run_learns_and_is_the_same_every_time(
    honest: tuple[SwarmResult, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    result, weights = honest
    assert result.losses[1] < 0.98 * result.losses[0]
    assert all(len(outcome.accepted) == 4 and not outcome.refused for outcome in result.outcomes[0])
    again = train(tmp_path, SMALL)
    assert again.losses == result.losses
    assert all(np.array_equal(weights[name], value) for name, value in version(tmp_path).items())


@pytest.mark.parametrize("attack", [NotFinite(), Huge(1e30)], ids=["one NaN", "times 1e30"])
def test_impossible_updates_leave_the_version_as_it_is_without_the_attacker(attack: Attack, tmp_path: Path) -> None:
    attacked = train(tmp_path / "attacked", replace(SMALL, attack=attack, attackers=1))
    other = train(tmp_path / "other", replace(SMALL, attack=NotFinite(float("inf"), 1.0), attackers=1))
    for stage, outcome in enumerate(attacked.outcomes[0]):
        assert {member for member, *_ in outcome.refused} == attacked.attackers[stage]
        assert len(outcome.accepted) == 3
    ours, theirs = version(tmp_path / "attacked"), version(tmp_path / "other")
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert attacked.losses == other.losses


def test_a_claim_of_more_work_weighs_nothing(tmp_path: Path) -> None:
    claimed = train(tmp_path / "claimed", replace(SMALL, attack=Inflated(10**9), attackers=1))
    unclaimed = train(tmp_path / "unclaimed", replace(SMALL, attack=Inflated(200), attackers=1))
    ours, theirs = version(tmp_path / "claimed"), version(tmp_path / "unclaimed")
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert claimed.losses == unclaimed.losses


def test_the_mean_is_carried_away_by_what_a_robust_rule_bears(tmp_path: Path) -> None:
    attacked = replace(SMALL, attack=JointSignFlip(10.0), attackers=1)
    borne = train(tmp_path / "borne", attacked)
    carried = train(tmp_path / "carried", replace(attacked, rule="mean"))
    assert borne.losses[1] < borne.losses[0] < carried.losses[1]


def test_poisoned_data_is_still_data() -> None:
    rows = [utterance(1, number) for number in range(4)]
    shifted = ShiftedCodes().poison(rows, CODEBOOK_SIZE)
    for before, after in zip(rows, shifted, strict=True):
        assert ((after.codes.astype(int) - before.codes) % CODEBOOK_SIZE == CODEBOOK_SIZE // 2).all()
        assert after.codes.dtype == before.codes.dtype and np.array_equal(after.phonemes, before.phonemes)
    swapped = SwappedTexts().poison(rows, CODEBOOK_SIZE)
    assert all(np.array_equal(before.codes, after.codes) for before, after in zip(rows, swapped, strict=True))
    assert not any(np.array_equal(before.phonemes, after.phonemes) for before, after in zip(rows, swapped, strict=True))


def test_rows_of_the_table_compare_with_the_same_rule_without_attackers() -> None:
    crowd = Crowd(5, 1)
    label = next(label for label, row in attack_rows().items() if row.attack.bar is Bar.SPREAD)
    rows = [
        row_of("median", label, crowd, [4.0, 2.1], [4.0, 2.0]),
        row_of("median", label, crowd, [4.0, float("nan")], [4.0, 2.0]),
        row_of("mean", label, crowd, [4.0, 9.0], [4.0, 2.0]),
    ]
    assert rows[0]["over_clean"] == pytest.approx(1.05) and not rows[0]["diverged"]
    assert rows[1]["diverged"] and rows[2]["diverged"]
    assert worst(rows[:1], "median", crowd) == pytest.approx(1.05)
    assert json.dumps(rows[0])


def attack_plans() -> list[Path]:
    return sorted(SHIPPED.glob("attack-*.toml"))


def test_there_are_at_most_ten_attack_plans() -> None:
    assert 1 <= len(attack_plans()) <= 10


@pytest.mark.parametrize("path", attack_plans(), ids=lambda path: path.name)
def test_attack_plans_have_one_attacker_of_five_or_two_of_seven_in_each_stage(path: Path) -> None:
    plan = load_plan(Path(path.name))
    table = plan.simulation
    stages, replicas = table.stages or 0, table.replicas or 0
    reads_data = {one.attack for one in plan.attacker} <= {"shifted_codes", "swapped_texts"}
    assert stages == (1 if reads_data else 2) and (table.rounds or 0) >= 3
    workers = sorted(number for one in plan.attacker for number in one.workers)
    share = {5: 1, 7: 2}[replicas] * stages
    assert workers == list(range(stages * replicas - share, stages * replicas))  # the last to come
    assert plan.attackers_of(f"worker-{workers[0]}") is not None and plan.attackers_of("worker-0") is None
    assert plan.without_faults().attacker == ()


def test_a_plan_with_an_attack_that_there_is_not_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[[attacker]]\nworkers = [0]\nattack = "sign_flop"\n', encoding="utf-8")
    with pytest.raises(HocketError, match="no attack 'sign_flop'") as refused:
        load_plan(path)
    assert refused.value.code is Code.FAULT_PLAN_INVALID
    one = AttackingWorkers(workers=(0,), attack="sign_flip")
    assert Plan(attacker=(one,)).attackers_of("worker-0") == one
