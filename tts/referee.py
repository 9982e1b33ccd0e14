"""The coordinator's own recomputation of what members have opened: `python -m tts.referee --jobs FILE`.

A child process, so that the coordinator, whose child is `tts.referee_child`, needs no torch. It prints one JSON object a job,
each as soon as the job is done. It trusts nothing of a member's: an opening is held against the model and the digests committed
to before it is computed with.

FILE is JSON: {"config": path of the model's configuration, "stages": N, "calibration": path or "", "jobs": [...]}. A job of kind

* `pass`: {"id", "kind", "stage", "base": path, "wire", "seed", "microbatch_id", "input": path of a PASS_INPUT, "outputs":
  {member: path of a PASS_OUTPUT or WITNESS}, "classes": {member: device class}, "challenge": hex}, and, to check what the
  prover has committed to, "prover": member and "commit": hex of its StepCommit.
  Answered by {"id", "verdicts": {member: {"ok", "reason", "statistics"}}}.
* `step`: {"id", "kind", "stage", "base", "wire", "seed", "opening": path of a STEP, "classes": {"prover": device class},
  "weight_decay", "clip_norm", "commit", "previous"}. Answered by {"id", "ok", "reason", "statistics"}.

A job that comes to nothing is answered by {"id", "error": line, "fault": who is to blame: "opening" (its maker), "time" (nobody)
or "run" (the coordinator's own files)}.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import Code, HocketError
from common.files import disk_errors
from protocol.calibration import Calibration, Row, device_class, read_calibration, shipped_calibration
from protocol.generated import hocket_pb2 as pb
from protocol.opening_checks import compare_outputs, gradient_wire, odd_encoding, pass_misfit, step_misfit, wanted_groups
from protocol.openings import OpenedPass, OpenedStep, read_pass, read_step
from protocol.tensor_files import read_checked, read_tensors
from tts.batch import own_tensor
from tts.config import ModelConfig, StageSpec
from tts.replay import GRADIENT, PassInput, over_wire, replay_pass
from tts.replay_step import StepSettings, replay_step
from tts.stage_files import expected_tensors
from tts.stages import Stage, build_stage

LIMIT_S = 600.0
OWN_CLASS = device_class()
MOST_WORDS = 1000  # characters of a reason, which may name what a member's file holds


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PassJob(_Part):
    id: str
    kind: Literal["pass"]
    stage: int
    base: Path
    wire: str
    seed: int
    microbatch_id: int
    input: Path
    outputs: dict[str, Path]
    classes: dict[str, str] = {}
    challenge: str = ""
    prover: str = ""
    commit: str = ""
    limit_s: float = LIMIT_S


class StepJob(_Part):
    id: str
    kind: Literal["step"]
    stage: int
    base: Path
    wire: str
    seed: int
    opening: Path
    weight_decay: float
    clip_norm: float
    commit: str
    previous: str
    classes: dict[str, str] = {}
    limit_s: float = LIMIT_S


class Jobs(_Part):
    config: Path
    stages: int
    device: str = "cpu"
    calibration: str = ""
    jobs: list[dict[str, Any]] = Field(max_length=10_000)


class _OpeningFault(HocketError):
    """What is wrong lies with whoever made the opening."""


class _TookTooLong(Exception):
    pass


class Referee:
    """Recomputes passes and steps of one model.

    Args:
        config, stages: of the run. table: of tolerances.
    """

    def __init__(self, config: ModelConfig, stages: int, table: Calibration) -> None:
        self._config = config
        self._stages = stages
        self._table = table
        self._built: tuple[int, Stage] | None = None

    def judge(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Do one job; its answer is JSON."""
        name = str(job.get("id", ""))
        try:
            one: PassJob | StepJob = PassJob.model_validate(job) if job.get("kind") == "pass" else StepJob.model_validate(job)
            with _limited(one.limit_s):
                found = self.judge_pass(one) if isinstance(one, PassJob) else self.judge_step(one)
        except _OpeningFault as error:
            return {"id": name, "error": error.line()[:MOST_WORDS], "fault": "opening"}
        except _TookTooLong:
            return {"id": name, "error": f"the job took more than {one.limit_s:g} s", "fault": "time"}
        except (HocketError, ValidationError) as error:
            line = error.line() if isinstance(error, HocketError) else " ".join(str(error).split())
            return {"id": name, "error": line[:MOST_WORDS], "fault": "run"}
        return {"id": name, **found}

    def judge_pass(self, job: PassJob) -> dict[str, Any]:
        stage = self._stage(job.stage)
        base = self._base(job.base, job.stage)
        opened = _opened(job.input, read_pass)
        commit = _commit(job.commit) if job.commit else None
        spec = stage.spec
        with _blamed():
            if commit is not None:
                _refuse(self._misfit(opened, commit, job.microbatch_id, spec, pb.PASS_INPUT))
            grad = opened.gradient_in.arrays.get(GRADIENT)
            if grad is None and not spec.is_last:
                _refuse("the gradient that came back is missing")
            inputs = PassInput.from_arrays(opened.input.arrays, grad, self._config, spec)
            weights = {name: own_tensor(value) for name, value in base.items()}
            output = replay_pass(stage, weights, inputs, job.seed, job.microbatch_id, wire=job.wire, grad_wire="fp32")
        ours = output.arrays() | ({} if spec.is_last else inputs.side.arrays())
        verdicts: dict[str, Any] = {}
        for member, path in job.outputs.items():
            verdicts[member] = self._judge_output(job, member, path, ours, commit if member == job.prover else None, spec)
        return {"verdicts": verdicts}

    def _judge_output(
        self,
        job: PassJob,
        member: str,
        path: Path,
        ours: Mapping[str, np.ndarray],
        commit: pb.StepCommit | None,
        spec: StageSpec,
    ) -> dict[str, Any]:
        """Compare what a member says came out with what came out here, as it would have travelled."""
        try:
            theirs = _opened(path, read_pass)
            with _blamed():
                _refuse(odd_encoding(theirs.about, job.wire))
                if commit is not None:
                    _refuse(self._misfit(theirs, commit, job.microbatch_id, spec, pb.PASS_OUTPUT))
        except _OpeningFault as error:
            return _words(False, f"opening: {error.line()}", {})
        back = gradient_wire(theirs.about, job.wire)
        device_class = job.classes.get(member, OWN_CLASS)
        row, grad_row = self._row(device_class, job.wire), self._row(device_class, back)
        travelled = {name: over_wire(array, back) if name == GRADIENT else array for name, array in ours.items()}
        challenge = bytes.fromhex(job.challenge) or job.id.encode()
        given = theirs.output.arrays | theirs.gradient_out.arrays
        found = compare_outputs(travelled, given, challenge, row, grad_row)
        return _words(found.ok, found.reason, found.statistics)

    @staticmethod
    def _misfit(
        opened: OpenedPass, commit: pb.StepCommit, identifier: int, spec: StageSpec, kind: pb.OpeningKind
    ) -> str:
        for record in commit.records:
            if record.id == identifier and record.frames:  # those without frames were not counted
                return pass_misfit(opened, record, wanted_groups(is_first=spec.is_first, is_last=spec.is_last, kind=kind))
        raise HocketError(Code.INPUT_INVALID, f"the commit has no microbatch {identifier}")

    def judge_step(self, job: StepJob) -> dict[str, Any]:
        stage = self._stage(job.stage)
        base = self._base(job.base, job.stage)
        commit, previous = _commit(job.commit), _commit(job.previous)
        opened: OpenedStep = _opened(job.opening, read_step)
        with _blamed():
            _refuse(step_misfit(opened, base, previous, commit, is_last=stage.spec.is_last))
        row = self._row(job.classes.get("prover", OWN_CLASS), job.wire)
        settings = StepSettings(job.seed, job.weight_decay, job.clip_norm, commit.frames, commit.lr)
        found = replay_step(opened, stage, settings, row.step)
        return _words(found.ok, found.reason, found.statistics)

    def _row(self, theirs: str, wire: str) -> Row:
        return self._table.row_between(OWN_CLASS, theirs, wire)

    def _stage(self, index: int) -> Stage:
        """The computation of a stage; the last one is kept, as jobs of one stage mostly come together."""
        if self._built is None or self._built[0] != index:
            self._built = (index, build_stage(self._config, index, self._stages))
        return self._built[1]

    def _base(self, path: Path, index: int) -> dict[str, np.ndarray]:
        return read_checked(path, expected_tensors(self._config, index, self._stages), mapped=True)


def _opened(path: Path, read: Callable[[Mapping[str, np.ndarray]], Any]) -> Any:
    """Read a member's file: nothing larger than the file is allocated for it. STATE_UNREADABLE where this machine cannot."""
    with disk_errors(path), path.open("rb"):
        pass
    with _blamed():
        return read(read_tensors(path, code=Code.OPENING_INVALID, mapped=True))


@contextmanager
def _blamed() -> Iterator[None]:
    """What a member's file does not fit is its maker's fault."""
    try:
        yield
    except _OpeningFault:
        raise
    except HocketError as error:
        raise _OpeningFault(error.code, error.detail) from error


def _refuse(reason: str) -> None:
    if reason:
        raise _OpeningFault(Code.OPENING_INVALID, reason)


def _commit(text: str) -> pb.StepCommit:
    try:
        return pb.StepCommit.FromString(bytes.fromhex(text))
    except (DecodeError, ValueError) as error:
        raise HocketError(Code.INPUT_INVALID, "a commit that cannot be read") from error


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Break off after `seconds`. Only between two operations of torch, which are short beside it."""

    def late(number: int, frame: FrameType | None) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _words(ok: bool, reason: str, statistics: Mapping[str, float]) -> dict[str, Any]:
    return {"ok": ok, "reason": reason[:MOST_WORDS], "statistics": dict(statistics)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tts.referee", description="Recompute what members have opened.")
    parser.add_argument("--jobs", type=Path, required=True, help="what to do, JSON")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    try:
        try:
            jobs = Jobs.model_validate_json(options.jobs.read_bytes())
            config = ModelConfig.from_json(jobs.config.read_bytes())
        except (OSError, ValidationError) as error:
            raise HocketError(Code.INPUT_INVALID, f"{options.jobs}: {error}") from error
        table = read_calibration(Path(jobs.calibration)) if jobs.calibration else shipped_calibration()
        referee = Referee(config, jobs.stages, table)
    except HocketError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    for job in jobs.jobs:
        print(json.dumps(referee.judge(job)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
