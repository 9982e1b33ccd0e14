"""The referee and the replay of a step: honest work passes, each lie is named, and files that do not fit are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened_work import CONFIG, LR, SEED, STAGES, Work, about, commits, honest, pass_opening

from protocol.calibration import shipped_calibration
from protocol.generated import hocket_pb2 as pb
from protocol.openings import opening_tensors, read_step
from protocol.tensors import encode, write_tensors
from tts.referee import Referee
from tts.replay_step import MOMENT_BOUND, replay_step
from tts.stage_files import stage_file_name, write_stage
from tts.stages import build_stage

LIMITS = shipped_calibration().row_for("cpu-x86_64-float32", "cpu-aarch64-float32", "fp32").step


def referee() -> Referee:
    return Referee(CONFIG, STAGES, shipped_calibration())


def write_bases(folder: Path) -> None:
    for index in range(STAGES):
        write_stage(folder / stage_file_name(index), build_stage(CONFIG, index, STAGES, seed=1))


def pass_job(folder: Path, work: Work, wire: str = "fp32", identifier: int = 10, **changed: np.ndarray) -> dict[str, Any]:
    """A job about the prover's output, changed, and a witness's honest one."""
    write_bases(folder)
    write_tensors(folder / "input", pass_opening(work, identifier, "input", wire))
    write_tensors(folder / "prover", pass_opening(work, identifier, "output", wire, **changed))
    write_tensors(folder / "witness", pass_opening(work, identifier, "output", wire))
    index = work.stage.spec.index
    return {
        "id": "a1", "kind": "pass", "stage": index, "base": str(folder / stage_file_name(index)), "wire": wire, "seed": SEED,
        "microbatch_id": identifier, "input": str(folder / "input"),
        "outputs": {"prover": str(folder / "prover"), "witness": str(folder / "witness")}, "challenge": "07" * 32,
    }  # fmt: skip


def step_job(folder: Path, work: Work, step: int = 2) -> dict[str, Any]:
    write_bases(folder)
    write_tensors(folder / "step", work.opening(step))
    chain, index = commits(work), work.stage.spec.index
    return {
        "id": "a2", "kind": "step", "stage": index, "base": str(folder / stage_file_name(index)), "wire": "fp32", "seed": SEED,
        "opening": str(folder / "step"), "weight_decay": 0.01, "clip_norm": 1.0,
        "commit": chain[step].SerializeToString().hex(), "previous": chain[step - 1].SerializeToString().hex(),
    }  # fmt: skip


@pytest.mark.parametrize("wire", ["fp32", "int8"])
@pytest.mark.parametrize("stage", range(STAGES))
def test_honest_passes_are_cleared(tmp_path: Path, wire: str, stage: int) -> None:
    work = honest(wire)[stage]
    job = pass_job(tmp_path, work, wire) | {"prover": "prover", "commit": commits(work, wire)[1].SerializeToString().hex()}
    verdicts = referee().judge(job)["verdicts"]
    assert verdicts["prover"]["ok"] and verdicts["witness"]["ok"], verdicts


LIES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "scaled": ("hidden", lambda x: np.float32(0.99) * x),
    "one token": ("hidden", lambda x: np.where(np.arange(x.shape[1])[:, None] == 5, 0, x).astype(np.float32)),
    "zero": ("hidden", np.zeros_like),
    "gradient flipped": ("grad", lambda x: -x),
    "gradient noise": ("grad", lambda x: x * (1 + 0.05 * np.random.default_rng(3).standard_normal(x.shape).astype(np.float32))),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_told_from_an_honest_witness(tmp_path: Path, lie: str) -> None:
    work = honest()[1]
    name, change = LIES[lie]
    verdicts = referee().judge(pass_job(tmp_path, work, **{name: change(getattr(work.outputs[10], name))}))["verdicts"]
    assert not verdicts["prover"]["ok"] and verdicts["prover"]["reason"].startswith(f"{name}:"), verdicts["prover"]
    assert verdicts["witness"]["ok"]


def test_a_witness_says_nothing_about_what_travels_along(tmp_path: Path) -> None:
    """Its file holds plain arrays of what it has computed; a prover's, what it has sent on, and that is compared."""
    work = honest()[1]
    job = pass_job(tmp_path, work)
    given, output = work.inputs[10], work.outputs[10]
    assert output.hidden is not None and output.grad is not None
    one = about(work.stage, {10: given})
    plain = opening_tensors(one, {"output": {"hidden": output.hidden}, "gradient_out": {"grad": output.grad}})
    write_tensors(tmp_path / "witness", plain)
    assert referee().judge(job)["verdicts"]["witness"]["ok"]
    arrays = given.side.arrays()
    other = {name: encode(name, array, "fp32") for name, array in arrays.items()}
    other |= {"language": encode("language", arrays["language"] + 1, "fp32"), "hidden": encode("hidden", output.hidden, "fp32")}
    sent = opening_tensors(one, {"output": list(other.values()), "gradient_out": [encode("grad", output.grad, "fp32")]})
    write_tensors(tmp_path / "prover", sent)
    verdict = referee().judge(job)["verdicts"]["prover"]
    assert not verdict["ok"] and verdict["reason"].startswith("language:")


def test_losses_of_the_last_stage_are_compared(tmp_path: Path) -> None:
    work = honest()[2]
    ce = work.outputs[10].ce
    assert ce is not None
    verdict = referee().judge(pass_job(tmp_path, work, ce=ce * 0.9))["verdicts"]["prover"]
    assert not verdict["ok"] and verdict["reason"].startswith("ce:")
    verdict = referee().judge(pass_job(tmp_path, work, count=np.array([1, 1, 1])))["verdicts"]["prover"]
    assert not verdict["ok"] and verdict["reason"].startswith("count:")


def test_what_was_not_committed_to_is_no_opening(tmp_path: Path) -> None:
    work = honest()[1]
    hidden = work.outputs[10].hidden
    assert hidden is not None
    committed = {"prover": "prover", "commit": commits(work)[1].SerializeToString().hex()}
    verdict = referee().judge(pass_job(tmp_path, work, hidden=hidden + np.float32(1e-7)) | committed)["verdicts"]["prover"]
    assert not verdict["ok"] and "committed" in verdict["reason"]
    job = pass_job(tmp_path, work) | committed
    write_tensors(tmp_path / "input", pass_opening(work, 11, "input"))
    assert referee().judge(job)["fault"] == "opening"


def test_a_gradient_may_go_back_in_the_encoding_that_its_receiver_asked_for(tmp_path: Path) -> None:
    work = honest()[1]
    job = pass_job(tmp_path, work)
    tensors = pass_opening(work, 10, "output")
    coarse = pass_opening(work, 10, "output", "int8")
    about = json.loads(tensors["about"].tobytes())
    about["heads"]["gradient_out"] = json.loads(coarse["about"].tobytes())["heads"]["gradient_out"]
    tensors["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    tensors["gradient_out.grad"] = coarse["gradient_out.grad"]
    write_tensors(tmp_path / "prover", tensors)
    assert referee().judge(job)["verdicts"]["prover"]["ok"]
    write_tensors(tmp_path / "prover", coarse)  # hidden states are sent on as the run says
    verdict = referee().judge(job)["verdicts"]["prover"]
    assert verdict["ok"] is False and "int8" in verdict["reason"]


def test_a_device_class_that_was_never_measured_is_no_way_out(tmp_path: Path) -> None:
    work = honest()[1]
    hidden = work.outputs[10].hidden
    assert hidden is not None
    job = pass_job(tmp_path, work, hidden=hidden * np.float32(1.002)) | {"classes": {"prover": "abacus", "witness": "abacus"}}
    verdicts = referee().judge(job)["verdicts"]
    assert not verdicts["prover"]["ok"] and verdicts["witness"]["ok"]
    # Half the precision was measured, and has limits that are wide enough for this.
    assert referee().judge(job | {"classes": {"prover": "cpu-x86_64-bfloat16"}})["verdicts"]["prover"]["ok"]


def test_files_that_do_not_fit_are_their_makers_fault(tmp_path: Path) -> None:
    work = honest()[1]
    job = pass_job(tmp_path, work)
    whole = (tmp_path / "input").read_bytes()
    other = pass_opening(honest()[0], 10, "input")  # of another stage
    without = {name: value for name, value in pass_opening(work, 10, "input").items() if not name.startswith("gradient_in")}
    for content in (b"", whole[:-1], whole[:100] + b"\xff" * 8 + whole[108:], b"\xff" * 64):
        (tmp_path / "input").write_bytes(content)
        assert referee().judge(job)["fault"] == "opening"
    for tensors in (other, without):
        write_tensors(tmp_path / "input", tensors)
        assert referee().judge(job)["fault"] == "opening"


def test_what_the_coordinator_gets_wrong_is_its_own_fault(tmp_path: Path) -> None:
    job = pass_job(tmp_path, honest()[1])
    for change in ({"base": str(tmp_path / stage_file_name(2))}, {"kind": "other"}, {"stage": 9}, {"commit": "zz"}):
        assert referee().judge(job | change)["fault"] == "run", change


def test_a_job_that_takes_too_long_is_broken_off(tmp_path: Path) -> None:
    assert referee().judge(pass_job(tmp_path, honest()[1]) | {"limit_s": 1e-3})["fault"] == "time"


# ---- a step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stage", range(STAGES))
def test_honest_steps_are_cleared(stage: int, threads: int) -> None:
    work = honest()[stage]
    torch.set_num_threads(threads)
    for step in (1, 2):  # the first from an optimizer without moments
        verdict = replay_step(read_step(work.opening(step)), work.stage, work.settings[step - 1], LIMITS)
        assert verdict.ok, verdict.reason
        assert max(verdict.statistics[name] for name in ("first_tensor", "second_tensor")) < LIMITS.tensor / 20


def forged(work: Work, **changes: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    """The state after step 2 with some kinds of tensors changed."""
    state = {}
    for name, value in work.states[2].items():
        kind = "weights" if name.startswith("weights.") else name.rsplit(".", 1)[1]
        state[name] = changes.get(kind, np.asarray)(value)
    return state


def _one_value(share: float) -> Callable[[np.ndarray], np.ndarray]:
    """Change one value of a tensor by a share of the tensor's root mean square."""

    def change(value: np.ndarray) -> np.ndarray:
        changed = value.copy().reshape(-1)
        changed[changed.size // 2] += share * np.sqrt(np.square(value).mean())
        return changed.reshape(value.shape)

    return change


STEP_LIES: dict[str, tuple[str, dict[str, Callable[[np.ndarray], np.ndarray]]]] = {
    "weights scaled": ("weights", {"weights": lambda x: x * np.float32(1.0001)}),
    "one weight moved": ("weights", {"weights": _one_value(1e-3)}),
    "gradients flipped": ("moments", {"exp_avg": lambda x: -x}),
    "gradients scaled": ("moments", {"exp_avg": lambda x: x * np.float32(0.99)}),
    "second moment made small": ("moments", {"exp_avg_sq": lambda x: x * np.float32(0.9)}),
    "one second moment made zero": ("moments", {"exp_avg_sq": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 3, 0, x)}),
    "one first moment made large": ("moments", {"exp_avg": _one_value(1.0)}),
    "the step counter": ("moments", {"step": lambda x: x + np.float32(5)}),
    "not a number": ("input", {"weights": lambda x: x * np.float32(np.nan)}),
    "a negative second moment": ("input", {"exp_avg_sq": lambda x: -x}),
    "another type": ("input", {"weights": lambda x: x.astype(np.float64)}),
}


@pytest.mark.parametrize("lie", STEP_LIES)
def test_a_step_that_was_not_taken_like_that_is_found_out(lie: str) -> None:
    work = honest()[1]
    kind, changes = STEP_LIES[lie]
    after = forged(work, **changes)
    if lie != "another type":
        after = {name: value.astype(np.float32) for name, value in after.items()}
    verdict = replay_step(read_step(work.opening(2, after=after)), work.stage, work.settings[1], LIMITS)
    assert not verdict.ok and verdict.reason.startswith(kind), verdict.reason


def test_a_whole_step_that_was_made_up_is_found_out() -> None:
    """Consistent in itself: moments and weights follow AdamW, but from gradients of the other sign."""
    work = honest()[1]
    before, after = work.states[1], dict(work.states[2])
    for name in [name for name in after if name.endswith(".exp_avg")]:
        parameter = name.removeprefix("moments.").removesuffix(".exp_avg")
        after[name] = (2 * np.float32(0.9) * before[name] - after[name]).astype(np.float32)
        first, second = after[name].astype(np.float64), after[f"moments.{parameter}.exp_avg_sq"].astype(np.float64)
        step = float(after[f"moments.{parameter}.step"])
        moved = LR / (1 - 0.9**step) * first / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
        old = before[f"weights.{parameter}"].astype(np.float64)
        after[f"weights.{parameter}"] = (old * (1 - LR * (0.01 if old.ndim > 1 else 0)) - moved).astype(np.float32)
    verdict = replay_step(read_step(work.opening(2, after=after)), work.stage, work.settings[1], LIMITS)
    assert not verdict.ok and verdict.reason.startswith("moments") and verdict.statistics["weights"] <= 1


def test_a_step_that_was_not_taken_at_all_is_found_out() -> None:
    work = honest()[1]
    after = {name: value + np.float32(1) if name.endswith(".step") else value for name, value in work.states[1].items()}
    verdict = replay_step(read_step(work.opening(2, after=after)), work.stage, work.settings[1], LIMITS)
    assert not verdict.ok


def test_first_moments_are_bounded_by_second_ones() -> None:
    """The bound holds for any gradients, and gradients that come near to it are those it was derived from."""
    draw = np.random.default_rng(0)
    ratios = []
    for sequence in [*(draw.standard_normal((40, 200)) * draw.exponential(size=(40, 200)) ** 4), 0.9 ** np.arange(200.0)[::-1]]:
        first = second = 0.0
        for gradient in sequence:
            first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
            ratios.append(abs(first) / np.sqrt(second))
    growing = [(0.9 / 0.95) ** (200 - number) for number in range(200)]
    first = second = 0.0
    for gradient in growing:
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
    assert max(ratios) <= MOMENT_BOUND * (1 + 1e-12)
    assert first / np.sqrt(second) > 0.999 * MOMENT_BOUND


def test_an_opened_step_is_held_against_its_commits(tmp_path: Path) -> None:
    work = honest()[1]
    job = step_job(tmp_path, work)
    found = referee().judge(job)
    assert found["ok"], found
    chain = commits(work)
    for change in (
        {"previous": chain[0].SerializeToString().hex()},
        {"commit": _changed(chain[2], update_digest=bytes(32))},
        {"commit": _changed(chain[2], moments_digest=bytes(32))},
        {"commit": _changed(chain[2], lr=2 * LR)},
        {"previous": _changed(chain[1], update_digest=bytes(32))},
        {"commit": _without_record(chain[2])},
    ):
        assert referee().judge(job | change)["fault"] == "opening"
    after = dict(work.states[2])
    name = next(name for name in after if name.startswith("weights."))
    after[name] = np.nextafter(after[name], np.float32(1))  # the last bit
    write_tensors(tmp_path / "step", work.opening(2, after=after))
    assert "committed" in referee().judge(job)["error"]


def _changed(commit: pb.StepCommit, **fields: Any) -> str:
    changed = pb.StepCommit()
    changed.CopyFrom(commit)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed.SerializeToString().hex()


def _without_record(commit: pb.StepCommit) -> str:
    changed = pb.StepCommit()
    changed.CopyFrom(commit)
    del changed.records[0]
    return changed.SerializeToString().hex()


def test_the_child_prints_a_line_a_job(tmp_path: Path) -> None:
    work = honest()[1]
    jobs = [pass_job(tmp_path, work), step_job(tmp_path, work), {"id": "odd", "kind": "pass"}]
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    (tmp_path / "jobs.json").write_text(json.dumps({"config": str(tmp_path / "config.json"), "stages": STAGES, "jobs": jobs}))
    command = [sys.executable, "-m", "tts.referee", "--jobs", str(tmp_path / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["id"] for line in lines] == ["a1", "a2", "odd"]
    assert lines[0]["verdicts"]["prover"]["ok"] and lines[1]["ok"] and lines[2]["fault"] == "run"
    done = subprocess.run([*command[:-1], str(tmp_path / "none.json")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode and done.stderr.splitlines()[-1].startswith("H506")
