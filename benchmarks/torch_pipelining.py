"""One row of the pipeline benchmark: the same model trained by torch.distributed.pipelining over gloo. One process a stage.

    python -m benchmarks.torch_pipelining '{"workload": {}, "threads": 1, "rank": 0, "world": 4, "store": F, "schedule": "1f1b"}'

Every process makes the microbatches itself, so only hidden states and gradients cross between them. The last stage's process
prints one JSON line {"seconds": [of each inner step], "losses": [...]}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.workload import Workload, inner_step
from tts.batch import Side, TextBatch, hidden_shape
from tts.dropout import PassContext
from tts.optimizer import StageOptimizer
from tts.reference import InnerSettings, take_gradients
from tts.schedule import lr_at
from tts.stages import Stage, build_stage

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
NAMES = ("phonemes", "word_starts", "n_phonemes", "durations", "codes", "n_frames", "speaker", "language")


class _AddLocalObjective(torch.autograd.Function):
    """Passes hidden states through and gives a stage's own loss its gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, objective: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones((), dtype=gradient.dtype)


class PipelinedStage(nn.Module):
    """A stage as torch.distributed.pipelining calls it: what comes from the stage before first, the microbatch by keyword."""

    def __init__(self, stage: Stage, seed: int) -> None:
        super().__init__()
        self.stage = stage
        self.seed = seed
        self.codes_ce: list[tuple[float, int]] = []

    def forward(self, incoming: Tensor, *, identity: Tensor, **tensors: Tensor) -> Tensor:
        ctx = PassContext(self.seed, int(identity[0]), train=True)
        spec = self.stage.spec
        if spec.is_first:
            hidden, local = self.stage.first(TextBatch(**tensors), ctx)
            sent: Tensor = _AddLocalObjective.apply(hidden, local.objective)
            return sent
        side = Side(**{name: tensors[name] for name in ("codes", "n_frames", "speaker", "language")})
        if not spec.is_last:
            return self.stage.middle(incoming, side, ctx)
        sums = self.stage.last(incoming, side, ctx)
        self.codes_ce.append((float(sums.ce.detach().sum()), int(sums.count.sum())))
        return sums.objective.reshape(1)


def main() -> None:
    """Take part in training as one stage, and time every inner step."""
    order = json.loads(sys.argv[1])
    work, rank, world = Workload(**order["workload"]), int(order["rank"]), int(order["world"])
    torch.set_num_threads(int(order["threads"]))
    dist.init_process_group("gloo", init_method=f"file://{order['store']}", rank=rank, world_size=world)
    config, settings = work.config(), InnerSettings(seed=work.seed)
    module = PipelinedStage(build_stage(config, rank, world, seed=work.seed), work.seed)
    optimizer = StageOptimizer(module.stage, settings.weight_decay, settings.clip_norm)
    steps: list[dict[str, Any]] = []
    for step in range(work.steps):
        microbatches = inner_step(work, step)
        whole: dict[str, Any] = {name: torch.cat([getattr(batch, name) for _, batch in microbatches]) for name in NAMES}
        whole["identity"] = torch.tensor([identity for identity, batch in microbatches for _ in range(len(batch.n_frames))])
        steps.append(whole)
    hidden = torch.empty(hidden_shape(config, inner_step(work, 0)[0][1].side()), requires_grad=True)
    outgoing = torch.empty(1, requires_grad=True) if rank == world - 1 else hidden
    incoming = inner_step(work, 0)[0][1].phonemes if rank == 0 else hidden
    stage = PipelineStage(module, rank, world, torch.device("cpu"), input_args=(incoming,), output_args=(outgoing,))
    schedule = SCHEDULES[order["schedule"]](
        stage, n_microbatches=work.microbatches, loss_fn=lambda output, _target: output.sum(), scale_grads=False
    )
    seconds, losses, frames_done = [], [], 0
    for whole in steps:
        started = time.perf_counter()
        lr = lr_at(frames_done, settings.total_frames, settings.warmup_frames, settings.peak_lr, settings.floor)
        module.codes_ce.clear()
        if rank == 0:
            schedule.step(whole["phonemes"], **whole)
        elif rank == world - 1:
            schedule.step(target=torch.zeros(work.microbatches), **whole)
        else:
            schedule.step(**whole)
        optimizer.step(take_gradients(module.stage), work.frames_per_step, lr)
        frames_done += work.frames_per_step
        seconds.append(time.perf_counter() - started)
        losses.append(sum(ce for ce, _ in module.codes_ce) / max(1, sum(count for _, count in module.codes_ce)))
    dist.barrier()
    if rank == world - 1:
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
