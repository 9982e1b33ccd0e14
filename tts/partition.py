"""The cut of a model into stages: equal in cost, or fitted to the memory of unequal cards. Pure; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import Code, HocketError
from tts.config import NOMINAL_FRAMES, NOMINAL_FRAMES_PER_PHONEME, ModelConfig, StageSpec
from tts.footprint import Load, stage_footprint


@dataclass(frozen=True)
class Costs:
    """Multiply-adds of one frame in the forward pass, by part."""

    front: float
    block: float
    heads: float


def costs(config: ModelConfig) -> Costs:
    """What the parts of a model cost, relative to each other."""
    d, text, mult = config.d_model, config.text_dim, config.conv_mult
    block = 4 * d * d + 3 * d * config.ffn_dim + NOMINAL_FRAMES * d
    per_phoneme = config.text_layers * (2 * mult * text * text + config.conv_kernel * text) + 4 * text * config.duration_dim
    frames = config.frame_layers * (2 * mult * d * d + config.conv_kernel * d) + d * (text / NOMINAL_FRAMES_PER_PHONEME + 3)
    front = per_phoneme / NOMINAL_FRAMES_PER_PHONEME + frames + config.n_codebooks * d
    return Costs(front=front, block=block, heads=d * config.n_codebooks * (config.codebook_size + 1))


def max_stages(config: ModelConfig) -> int:
    """Most stages a model can be cut into: the first and the last may do without a decoder block, the others may not."""
    return config.n_layers + 2


def partition(config: ModelConfig, n: int) -> list[StageSpec]:
    """Cut a model into `n` contiguous stages: at its own `cuts` if they are as many, else with the dearest as cheap as can be.

    Raises:
        HocketError: STAGES_INVALID outside 1 .. n_layers + 2.
    """
    limit = max_stages(config)
    if not 1 <= n <= limit:
        raise HocketError(Code.STAGES_INVALID, f"{n} stages for {config.n_layers} layers", remedy=f"use 1 to {limit} stages")
    if config.cuts is not None and len(config.cuts) == n:
        return _specs(config.cuts)
    found = _best_cuts(config, [None] * n, Load())
    assert found is not None, "without budgets every number of stages within the limit has a cut"
    return _specs(found)


def partition_to_fit(config: ModelConfig, budgets: Sequence[int], load: Load | None = None) -> list[StageSpec]:
    """Cut a model into as many stages as there are budgets, none of which takes more memory than its own.

    Among the cuts that fit the dearest stage is as cheap as can be, as in `partition`: a larger card is given more only where
    a smaller one cannot hold its share. `ModelConfig.cuts` takes the result to every process: `cuts_of`.

    Args:
        budgets: bytes for the model of each stage: weights, base, gradients, moments, and activations in flight.
        load: what is in flight.

    Raises:
        HocketError: STAGES_INVALID when no cut fits, with what the whole model takes; or outside 1 .. n_layers + 2 stages.
    """
    load, n = load or Load(), len(budgets)
    limit = max_stages(config)
    if not 1 <= n <= limit:
        raise HocketError(Code.STAGES_INVALID, f"{n} budgets for {config.n_layers} layers", remedy=f"use 1 to {limit} stages")
    found = _best_cuts(config, list(budgets), load)
    if found is None:
        equal = partition(config.model_copy(update={"cuts": None}), n)
        wanted = [-(-stage_footprint(config, spec, load).memory_bytes // 2**20) for spec in equal]
        detail = f"no cut fits {', '.join(str(budget // 2**20) for budget in budgets)} MiB; an equal one takes {wanted} MiB"
        raise HocketError(Code.STAGES_INVALID, detail, remedy="use more stages, larger cards, or fewer microbatches in flight")
    return _specs(found)


def cuts_of(specs: Sequence[StageSpec]) -> tuple[int, ...]:
    """The `ModelConfig.cuts` of a cut."""
    return tuple(spec.last_layer for spec in specs)


def _specs(cuts: Sequence[int]) -> list[StageSpec]:
    n = len(cuts)
    return [StageSpec(index=i, n_stages=n, first_layer=cuts[i - 1] if i else 0, last_layer=cuts[i]) for i in range(n)]


def _best_cuts(config: ModelConfig, budgets: Sequence[int | None], load: Load) -> tuple[int, ...] | None:
    """Where the stages' blocks end; None when no cut fits the budgets.

    Among equally good cuts the one with the smaller sum of squared costs wins, then the one whose earlier stages are shorter;
    so every process finds the same cut.
    """
    layers, cost, n = config.n_layers, costs(config), len(budgets)

    def stage_cost(index: int, blocks: int) -> float:
        return blocks * cost.block + (cost.front if index == 0 else 0.0) + (cost.heads if index == n - 1 else 0.0)

    def fits(index: int, blocks: int) -> bool:
        budget = budgets[index]
        spec = StageSpec(index=index, n_stages=n, first_layer=0, last_layer=blocks)
        return budget is None or stage_footprint(config, spec, load).memory_bytes <= budget

    # best[used] = (dearest stage, sum of squares, cuts) of the stages so far when they hold `used` blocks.
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for index in range(n):
        least = 0 if index in (0, n - 1) else 1
        fitting = [blocks for blocks in range(least, layers + 1) if fits(index, blocks)]
        following: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for used, (dearest, squares, cuts) in best.items():
            for blocks in fitting:
                total = used + blocks
                if total > layers:
                    break
                here = stage_cost(index, blocks)
                option = (max(dearest, here), squares + here * here, (*cuts, total))
                if total not in following or option < following[total]:
                    following[total] = option
        best = following
    return best[layers][2] if layers in best else None
