"""Honest work of every stage of a small model, in the files in which replicas open it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from made_up_utterances import make, small_config

from protocol.commitments import ChainStart, link_of, tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.openings import About, Group, MicrobatchAbout, group_digest, opening_tensors
from protocol.tensors import encode
from tts.batch import collate
from tts.config import ModelConfig
from tts.optimizer import StageOptimizer
from tts.replay import PassInput, PassOutput, replay_pass
from tts.replay_step import StepSettings, step_tensors
from tts.stages import Stage, build_stages

CONFIG: ModelConfig = small_config()
STAGES = 3
SEED = 5
LR = 1e-3


@dataclass(frozen=True)
class Work:
    """Two inner steps of one stage.

    Args:
        inputs, outputs: by microbatch id, of the first step. states: before the first step, after it, after the second.
        later: inputs of the second step. settings: of the steps.
    """

    stage: Stage
    inputs: dict[int, PassInput]
    outputs: dict[int, PassOutput]
    later: dict[int, PassInput]
    states: tuple[dict[str, np.ndarray], ...]
    settings: tuple[StepSettings, ...]

    def opening(self, step: int, wire: str = "fp32", **replaced: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors of the opening of step 1 or 2; `before` and `after` may be replaced."""
        inputs = self.inputs if step == 1 else self.later
        before, after = replaced.get("before", self.states[step - 1]), replaced.get("after", self.states[step])
        groups: dict[str, Group] = {}
        for identifier, one in inputs.items():
            groups |= {f"mb.{identifier}.{name}": group for name, group in input_groups(one, wire).items()}
        plain = {f"before.{name}": value for name, value in before.items()}
        plain |= {f"after.{name}": value for name, value in after.items()}
        return opening_tensors(about(self.stage, inputs, wire, step), groups, plain)


def input_groups(given: PassInput, wire: str) -> dict[str, Group]:
    """What a pass starts from, as it travelled."""
    groups: dict[str, Group] = {}
    if given.batch is not None:
        groups["input"] = given.batch.arrays()
    else:
        assert given.hidden is not None
        side = [encode(name, array, "fp32") for name, array in given.side.arrays().items()]
        groups["input"] = [encode("hidden", given.hidden, wire), *side]
    if given.grad is not None:
        groups["gradient_in"] = [encode("grad", given.grad, wire)]
    return groups


def output_groups(given: PassInput, output: PassOutput, wire: str) -> dict[str, Group]:
    """What a pass ends in, as it travels."""
    groups: dict[str, Group] = {}
    if output.hidden is None:
        groups["output"] = {name: array for name, array in output.arrays().items() if name != "grad"}
    else:
        side = [encode(name, array, "fp32") for name, array in given.side.arrays().items()]
        groups["output"] = [encode("hidden", output.hidden, wire), *side]
    if output.grad is not None:
        groups["gradient_out"] = [encode("grad", output.grad, wire)]
    return groups


def about(stage: Stage, inputs: Mapping[int, PassInput], wire: str = "fp32", step: int = 1) -> About:
    frames = sum(one.frames for one in inputs.values())
    return About(
        run_id="run", round=3, base_cid="base", member_id="prover", stage=stage.spec.index, stages=STAGES, generation=1,
        step=step, seed=SEED, frames=frames, lr=LR, weight_decay=0.01, clip_norm=1.0,
        microbatches=tuple(
            MicrobatchAbout(id=identifier, frames=one.frames, inner_step_frames=frames, wire=wire)
            for identifier, one in inputs.items()
        ),
    )  # fmt: skip


@cache
def honest(wire: str = "fp32") -> tuple[Work, ...]:
    """Two inner steps of two microbatches each, by every stage."""
    stages = build_stages(CONFIG, STAGES, seed=1)
    optimizers = [StageOptimizer(stage, 0.01, 1.0) for stage in stages]
    states = [[step_tensors(stage, {})] for stage in stages]
    done = []
    for step in (1, 2):
        ran = [_microbatch(stages, 10 * step + number, wire) for number in range(2)]
        done.append(ran)
        for index, (stage, optimizer) in enumerate(zip(stages, optimizers, strict=True)):
            total: dict[str, torch.Tensor] = {}
            for _, outputs in ran:
                gradients = outputs[index].gradients
                assert gradients is not None
                total = {name: total[name] + value if total else value.clone() for name, value in gradients.items()}
            optimizer.step(total, sum(inputs[index].frames for inputs, _ in ran), LR)
            states[index].append(step_tensors(stage, optimizer.state()))
    works = []
    for index, stage in enumerate(stages):
        by_step = [{10 * step + n: done[step - 1][n][0][index] for n in range(2)} for step in (1, 2)]
        settings = tuple(StepSettings(SEED, 0.01, 1.0, sum(one.frames for one in ran.values()), LR) for ran in by_step)
        outputs = {10 + n: done[0][n][1][index] for n in range(2)}
        works.append(Work(stage, by_step[0], outputs, by_step[1], tuple(states[index]), settings))
    return tuple(works)


def _microbatch(stages: list[Stage], identifier: int, wire: str) -> tuple[list[PassInput], list[PassOutput]]:
    batch = collate(make(3, seed=identifier, config=CONFIG), CONFIG)
    weights = [{name: value.detach() for name, value in stage.named_parameters()} for stage in stages]
    inputs = [PassInput(batch.side(), batch)]
    for stage, own in zip(stages[:-1], weights, strict=False):
        out = replay_pass(stage, own, inputs[-1], SEED, identifier, wire=wire)
        inputs.append(PassInput(batch.side(), None, out.hidden))
    outputs: list[PassOutput] = []
    for index in reversed(range(len(stages))):
        given = inputs[index]
        inputs[index] = PassInput(given.side, given.batch, given.hidden, outputs[0].grad if outputs else None)
        outputs.insert(0, replay_pass(stages[index], weights[index], inputs[index], SEED, identifier, wire=wire))
    return inputs, outputs


def pass_opening(work: Work, identifier: int, part: str, wire: str = "fp32", **changed: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of the PASS_INPUT (`part` is "input") or PASS_OUTPUT ("output") of a microbatch of the first step.

    Args:
        changed: arrays of the output that are sent instead of the honest ones.
    """
    given, output = work.inputs[identifier], work.outputs[identifier]
    groups = input_groups(given, wire) if part == "input" else output_groups(given, replace(output, **changed), wire)
    frames = sum(one.frames for one in work.inputs.values())
    one = about(work.stage, {identifier: given}, wire).model_copy(update={"frames": frames})
    return opening_tensors(one, groups)


def commits(work: Work, wire: str = "fp32", *, member: str = "prover", base_cid: str = "base") -> tuple[pb.StepCommit, ...]:
    """The commits of a replica that did this work: steps 0, 1 and 2, with a record of every microbatch."""
    base = base_of(work)
    start = ChainStart("run", 3, work.stage.spec.index, member, 1, base_cid)
    made: list[pb.StepCommit] = []
    for step, state in enumerate(work.states):
        weights = {name.removeprefix("weights."): value for name, value in state.items() if name.startswith("weights.")}
        moments = {name: value for name, value in state.items() if name.startswith("moments.")}
        inputs = (dict[int, PassInput](), work.inputs, work.later)[step]
        commit = pb.StepCommit(
            round=3, generation=1, stage=work.stage.spec.index, step=step, previous=made[-1].link if made else b"",
            update_digest=tensors_digest({name: base[name] - value for name, value in weights.items()}),
            moments_digest=tensors_digest(moments),
            records=[_record(work, identifier, one, wire) for identifier, one in inputs.items()],
            frames=sum(one.frames for one in inputs.values()), lr=LR if step else 0.0,
        )  # fmt: skip
        commit.link = link_of(commit, start)
        made.append(commit)
    return tuple(made)


def _record(work: Work, identifier: int, given: PassInput, wire: str) -> pb.MicrobatchRecord:
    record = pb.MicrobatchRecord(id=identifier, frames=given.frames, sender="sender")
    groups = dict(input_groups(given, wire))
    if identifier in work.outputs:
        groups |= output_groups(given, work.outputs[identifier], wire)
    for name, group in groups.items():
        setattr(record, name, group_digest(group))
    return record


def base_of(work: Work) -> dict[str, np.ndarray]:
    """Weights of the version that the round began with."""
    state = work.states[0]
    return {name.removeprefix("weights."): value for name, value in state.items() if name.startswith("weights.")}
