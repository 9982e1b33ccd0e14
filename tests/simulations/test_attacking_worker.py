"""An attacker's pieces do what its attack says, only from its round on, and leave the rest as an honest worker does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.log import EventLog, read_events
from node.local_sgd import LocalStage
from protocol.agreement import compare
from protocol.calibration import shipped_calibration
from protocol.generated import hocket_pb2 as pb
from simulations.attack_report import AttackFacts, attack_lines, attackers, marked
from simulations.attacking import Attacker, FalseStage
from simulations.attacks.base import Attack
from simulations.attacks.forged_work import ConstantDirection, Copycat, SignFlip
from simulations.attacks.on_passes import FalsePass
from simulations.attacks.on_submission import Delayed, InflatedClaim, OtherBase, OtherShapes, Sent
from simulations.attacks.on_verification import Equivocation, FalseBlocks, LyingWitness
from simulations.made_up_speech import small_model, utterance
from tts.batch import TextBatch, collate
from tts.stage_files import weights_of
from tts.stages import build_stage

CLASS = "cpu-x86_64-float32"


def attacker(attack: Attack, folder: Path, *, first_round: int = 1) -> Attacker:
    return Attacker(attack, first_round, EventLog(folder / "attack.jsonl"), folder)


def microbatch() -> TextBatch:
    return collate([utterance(1, number) for number in range(3)], small_model())


def first_stage(one: Attacker | None = None) -> LocalStage:
    """An honest first stage, or that of an attacker."""
    torch.set_num_threads(1)
    stage = build_stage(small_model(), 0, 2, seed=3)
    if one is None:
        local = LocalStage(stage, ordered=True, weight_decay=0.01, clip_norm=1.0)
    else:
        local = FalseStage(one, stage, ordered=True, weight_decay=0.01, clip_norm=1.0)
    local.adopt(weights_of(stage))
    return local


def trained(local: LocalStage) -> dict[str, np.ndarray]:
    """The update after one step on one microbatch."""
    batch = microbatch()
    kept = local.forward(1, batch, None, batch.side(), 5)
    assert kept.hidden is not None
    local.backward(kept, np.full_like(kept.hidden, 0.01), counts=True)
    local.step(batch.frames, 0.01)
    return local.pseudo_gradient()


def test_a_false_step_moves_the_weights_to_where_the_forgery_says_and_not_before_its_round(tmp_path: Path) -> None:
    honest = trained(first_stage())
    one = attacker(SignFlip(1.0), tmp_path, first_round=2)
    false = first_stage(one)
    one.see(pb.RunView(round=1))
    before = trained(false)
    assert all(np.array_equal(before[name], honest[name]) for name in honest)
    one.see(pb.RunView(round=2))
    twin = first_stage(one)
    flipped = trained(twin)
    for name in honest:
        np.testing.assert_allclose(flipped[name], -honest[name], atol=1e-6)
    assert [event["round"] for event in read_events(tmp_path / "attack.jsonl")] == [2]


def test_a_copycat_sends_on_what_the_last_round_has_come_to(tmp_path: Path) -> None:
    one = attacker(Copycat(0.0), tmp_path)
    one.see(pb.RunView(round=2))
    local = first_stage(one)
    version = {name: value + np.float32(0.5) for name, value in local.weights().items()}
    local.adopt(version)
    update = trained(local)
    for value in update.values():
        np.testing.assert_allclose(value, -0.5, atol=1e-5)


@pytest.mark.parametrize(
    "attack",
    [
        FalsePass(how="zero"), FalsePass(how="sign"), FalsePass(how="scale", size=0.9), FalsePass(how="scale", size=1.05),
        FalsePass(how="noise", size=0.03), FalsePass(how="noise", size=0.3), FalsePass(how="tokens"), FalsePass(how="top"),
    ],
    ids=lambda attack: f"{attack.how} {attack.size}",
)  # fmt: skip
def test_each_false_pass_is_outside_the_tolerance_and_the_honest_one_is_inside(attack: FalsePass, tmp_path: Path) -> None:
    one = attacker(attack, tmp_path)
    one.see(pb.RunView(round=1))
    batch = microbatch()
    honest = first_stage().forward(1, batch, None, batch.side(), 5).hidden
    again = first_stage().forward(1, batch, None, batch.side(), 5).hidden
    false = first_stage(one).forward(1, batch, None, batch.side(), 5).hidden
    assert honest is not None and again is not None and false is not None
    limits = shipped_calibration().row_for(CLASS, CLASS, "fp32").hidden.limits()
    assert compare(honest, again, b"seed", limits).ok
    assert not compare(honest, false, b"seed", limits).ok


def test_false_submissions_contradict_what_was_signed() -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(4, np.float32)}
    older = Sent(pb.UpdateHead(round=1, base_cid="old", frames=5), {name: value + 1 for name, value in tensors.items()})
    now = Sent(pb.UpdateHead(round=2, base_cid="new", frames=5), tensors)
    assert Delayed().change(now, []) is now
    assert Delayed().change(now, [older]).tensors is older.tensors
    assert OtherBase().change(now, [older]).head.base_cid == "old" and now.head.base_cid == "new"
    assert InflatedClaim(10).change(now, []).head.frames == 10
    shapes = {
        how: {name: (value.shape, value.dtype.name) for name, value in OtherShapes(how).change(now, []).tensors.items()}
        for how in ("transposed", "missing", "extra", "float64", "scalar")
    }
    assert shapes["transposed"]["a"] == ((3, 2), "float32") and "a" not in shapes["missing"] and len(shapes["extra"]) == 3
    assert shapes["float64"]["a"] == ((2, 3), "float64") and shapes["scalar"]["a"] == ((), "float32")


def test_false_commitments_witnesses_and_blocks_differ_from_what_is_true() -> None:
    middle = pb.MicrobatchRecord(id=1, output=b"o" * 32, gradient_in=b"i" * 32, gradient_out=b"g" * 32)
    last = pb.MicrobatchRecord(id=1, input=b"h" * 32, output=b"o" * 32, gradient_out=b"g" * 32)
    assert Equivocation().record(middle).output != middle.output and Equivocation().record(last).input != last.input
    answer: dict[str, np.ndarray] = {"about": np.arange(3, dtype=np.uint8), "output.hidden": np.ones(3, np.float32)}
    assert not LyingWitness(lazy=True).answer(answer)["output.hidden"].any()
    assert np.array_equal(LyingWitness().answer(answer)["about"], answer["about"])
    served = FalseBlocks().served(b"abc")
    assert served[:2] == b"ab" and len(served) == 3 and served != b"abc" and FalseBlocks().served(b"") == b""


def test_the_report_tells_what_became_of_each_attacker_and_counts_the_honest_who_were_shut_out() -> None:
    quarantined = [
        {"identity": "m1", "round": 2, "ruled_round": 4, "kind": "STEP", "evidence_cid": "b1", "stage": 0, "reason": ""},
        {"identity": "m9", "round": 3, "ruled_round": 3, "kind": "PASS", "evidence_cid": "b2", "stage": 1, "reason": ""},
    ]
    logs: dict[str, list[dict[str, Any]]] = {
        "worker-1": [{"event": "started", "member_id": "m1"}, {"event": "ready", "stage": 0, "round": 1}],
        "worker-2": [
            {"event": "started", "member_id": "m2"}, {"event": "ready", "stage": 1, "round": 1},
            {"event": "update_refused", "round": 3, "stage": 1, "sha256": "", "reason": "REPLAY"},
        ],
    }  # fmt: skip
    attacked = [{"event": "attacked", "round": 2, "attack": "sign_flip", "what": "inner step"}]
    facts = {
        "worker-1": AttackFacts("sign_flip", {"scale": 10.0}, attacked),
        "worker-2": AttackFacts("inflated_claim", {}, attacked),
    }
    manifests = {
        1: {"accepted": [{"member": "m1"}, {"member": "m2"}], "refused": []},
        2: {"accepted": [{"member": "m2"}], "refused": [{"member": "m1", "reason": "quarantined"}]},
    }
    found = attackers(facts, logs, quarantined, manifests)
    assert [(one["identity"], one["stage"], one["first_round"], one["quarantined_round"]) for one in found] == [
        ("m1", 0, 2, 4), ("m2", 1, 2, None),
    ]  # fmt: skip
    assert found[0]["accepted"] == [] and found[1]["accepted"] == [2]
    assert found[1]["refused"] == [{"round": 3, "reason": "REPLAY"}]
    entries, honest = marked(quarantined, found)
    assert honest == 1 and [entry["attack"] for entry in entries] == ["sign_flip", None]
    lines = attack_lines({"attackers": found, "quarantined": entries, "honest_quarantined": honest})
    assert "quarantined in round 4: STEP of round 2" in lines[0] and lines[-1] == "1 honest members were quarantined"


def test_a_constant_direction_is_the_same_in_every_round(tmp_path: Path) -> None:
    one = attacker(ConstantDirection(1.0), tmp_path)
    one.see(pb.RunView(round=1))
    first = trained(first_stage(one))
    one.see(pb.RunView(round=2))
    second = trained(first_stage(one))
    for name in first:
        np.testing.assert_allclose(first[name], second[name], atol=1e-6)
