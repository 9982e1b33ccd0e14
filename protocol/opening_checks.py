"""What openings are held against before anything is recomputed: the digests that were committed to, and each other.

Each check gives the reason why an opening does not do, or "" when it does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.errors import Code, HocketError
from protocol.agreement import Agreement, compare, compare_sums
from protocol.calibration import Row
from protocol.commitments import MOMENTS, WEIGHTS, state_digests
from protocol.generated import hocket_pb2 as pb
from protocol.openings import About, OpenedPass, OpenedStep

SIDE = ("codes", "n_frames", "speaker", "language")


def odd_encoding(about: About, wire: str) -> str:
    """Whether hidden states were sent on in the run's encoding: a coarser one would widen what passes for agreement.

    What came in is in its sender's encoding, and a gradient goes back in the one that its receiver asked for: neither is the
    opener's choice.
    """
    for head in about.heads.get("output", ()):
        wanted = "raw" if wire == "fp32" or head.name in SIDE else wire
        if head.encoding != wanted:
            return f"{head.name} was sent on as {head.encoding} in a run of {wire}"
    return ""


def gradient_wire(about: About, wire: str) -> str:
    """The encoding in which a gradient went back; `wire` where none did."""
    for head in about.heads.get("gradient_out", ()):
        if head.name == "grad":
            return "fp32" if head.encoding == "raw" else head.encoding
    return wire


def pass_misfit(opened: OpenedPass, record: pb.MicrobatchRecord, groups: Mapping[str, bool]) -> str:
    """Whether the groups of an opened pass are those that its maker committed to.

    Args:
        groups: names among `input`, `gradient_in`, `output`, `gradient_out` that must be in the file: True, or must not: False.
    """
    if opened.microbatch.id != record.id or opened.microbatch.frames != record.frames:
        return f"it is of microbatch {opened.microbatch.id} with {opened.microbatch.frames} frames, not of {record.id}"
    for name, wanted in groups.items():
        found, committed = getattr(opened, name).digest, getattr(record, name)
        if not wanted:
            if found:
                return f"{name} is more than it may hold"
        elif found != committed:
            return f"{name} is not what was committed to" if found else f"{name} is missing"
    return ""


def step_misfit(
    opened: OpenedStep, base: Mapping[str, np.ndarray], previous: pb.StepCommit, commit: pb.StepCommit, *, is_last: bool
) -> str:
    """Whether an opened step is the one between two commits that follow each other.

    Args:
        base: weights of the round's version. is_last: whether the stage is the last one, to which nothing comes back.
    """
    if commit.step != previous.step + 1 or commit.previous != previous.link:
        return f"commit {commit.step} does not follow commit {previous.step}"
    about = opened.about
    told = (about.round, about.stage, about.generation, about.step, about.frames, about.lr)
    if told != (commit.round, commit.stage, commit.generation, commit.step, commit.frames, commit.lr):
        return f"it says it is of round, stage, generation, step, frames and rate {told}"
    for when, state, one in (("before", opened.before, previous), ("after", opened.after, commit)):
        reason = state_misfit(state, base, one)
        if reason:
            return f"{when}: {reason}"
    counted = {record.id: record for record in commit.records if record.frames}
    if set(counted) != set(opened.passes):
        return f"microbatches {sorted(set(counted) ^ set(opened.passes))[:3]} are missing or too many"
    groups = {"input": True, "gradient_in": not is_last, "output": False, "gradient_out": False}
    for identifier, record in counted.items():
        reason = pass_misfit(opened.passes[identifier], record, groups)
        if reason:
            return f"microbatch {identifier}: {reason}"
    return ""


def state_misfit(state: Mapping[str, np.ndarray], base: Mapping[str, np.ndarray], commit: pb.StepCommit) -> str:
    """Whether weights and moments are those of a commit, bit by bit."""
    weights = {name.removeprefix(WEIGHTS): value for name, value in state.items() if name.startswith(WEIGHTS)}
    if not all(name.startswith((WEIGHTS, MOMENTS)) for name in state) or set(weights) != set(base):
        return "its tensors are not those of the stage"
    for name, value in weights.items():
        if value.dtype != np.float32 or value.shape != base[name].shape:
            return f"{name} is {value.dtype} {value.shape}, not float32 {base[name].shape}"
    update, moments = state_digests(base, state)
    if update != commit.update_digest:
        return "the weights are not those that were committed to"
    if moments != commit.moments_digest:
        return "the optimizer's state is not the one that was committed to"
    return ""


def compare_passes(
    ours: OpenedPass, theirs: OpenedPass, seed: bytes, row: Row, grad_row: Row | None = None
) -> Agreement:
    """Compare what came out of a pass with what is to be trusted, of the same microbatch and stage.

    Args:
        ours: that is trusted. theirs: that is in question. Each has the groups `output` and `gradient_out`.
        seed: of the projections, drawn after both were committed to. row: of the two device classes and the run's encoding.
        grad_row: of the encoding in which the gradient went back, where it is another.
    """
    return compare_outputs(
        ours.output.arrays | ours.gradient_out.arrays, theirs.output.arrays | theirs.gradient_out.arrays, seed, row, grad_row
    )


def compare_outputs(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], seed: bytes, row: Row, grad_row: Row | None = None
) -> Agreement:
    """As `compare_passes`, of the arrays by name.

    Args:
        ours: `hidden`, or `ce` and `count`; `grad` unless of stage 0; and what travels along.
        theirs: the same. What travels along is compared where both have it: a witness has nothing to say about it.
    """
    wanted = {name: array for name, array in ours.items() if name not in SIDE or name in theirs}
    missing, surplus = sorted(set(wanted) - set(theirs)), sorted(set(theirs) - set(ours) - set(SIDE))
    if missing or surplus:
        return Agreement(False, f"shape: tensors missing: {missing[:3]}, surplus: {surplus[:3]}")
    statistics: dict[str, float] = {}
    for name, own in wanted.items():
        if name in SIDE or name == "count":
            # Counts are exact on every machine, and what travels along is passed on unchanged.
            if theirs[name].shape != own.shape or not np.array_equal(theirs[name], own):
                return Agreement(False, f"{name}: it differs", statistics)
            continue
        if name == "ce":
            found = compare_sums(own, theirs[name], row.loss)
        else:
            limits = row.hidden if name == "hidden" else (grad_row or row).grad
            found = compare(own, theirs[name], seed + name.encode(), limits.limits())
        statistics |= {f"{name}.{key}": value for key, value in found.statistics.items()}
        if not found.ok:
            return Agreement(False, f"{name}: {found.reason}", statistics)
    return Agreement(True, "within the limits", statistics)


def wanted_groups(*, is_first: bool, is_last: bool, kind: pb.OpeningKind) -> dict[str, bool]:
    """Which groups an opening of a kind must hold in a stage, and which it must not.

    Raises:
        HocketError: OPENING_INVALID for a kind that is no opening of a single pass.
    """
    if kind == pb.PASS_INPUT:
        return {"input": True, "gradient_in": not is_last, "output": False, "gradient_out": False}
    if kind in (pb.PASS_OUTPUT, pb.WITNESS):
        return {"input": False, "gradient_in": False, "output": True, "gradient_out": not is_first}
    raise HocketError(Code.OPENING_INVALID, f"kind {kind} is not of a single pass")
