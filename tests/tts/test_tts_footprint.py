"""What a stage takes is predicted from sizes alone, and what was predicted is what is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import made_up_utterances
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up_utterances import make

from common.errors import Code, HocketError
from tts.config import PRESETS, ModelConfig, StageSpec, preset
from tts.dropout import PassContext
from tts.footprint import Load, parameters_of, stage_footprint
from tts.partition import cuts_of, partition, partition_to_fit
from tts.stages import build_stage, collate

FITTED: dict[str, Any] = {"n_codebooks": 4, "codebook_size": 256, "n_phonemes": 75}
MIB = 2**20


def kept_bytes(config: ModelConfig, spec: StageSpec, utterances: list[Any]) -> int:
    """What autograd keeps of one microbatch's forward pass, storages counted once, weights left out."""
    stage = build_stage(config, spec.index, spec.n_stages)
    batch, ctx = collate(utterances, config), PassContext(1, 1, train=True)
    steps = batch.codes.shape[2] + config.n_codebooks
    hidden = torch.randn(len(utterances), steps, config.d_model).requires_grad_()
    storages: dict[int, tuple[int, torch.Tensor]] = {}  # the tensors are held, or their addresses would be used again

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if spec.n_stages == 1:
            stage.whole(batch, ctx)
        elif spec.is_first:
            stage.first(batch, ctx)
        elif spec.is_last:
            stage.last(hidden, batch.side(), ctx)
        else:
            stage.middle(hidden, batch.side(), ctx)
    weights = {parameter.data_ptr() for parameter in stage.parameters()}
    return sum(size for address, (size, _) in storages.items() if address not in weights)


@pytest.mark.parametrize("name", ["test", "demo"])
@pytest.mark.parametrize("n", [1, 3])
def test_parameters_are_exact_and_activations_within_a_tenth(name: str, n: int) -> None:
    config = preset(name, **FITTED)
    utterances = make(4, config=config)
    load = Load(utterances=4, frames=max(utterance.n_frames for utterance in utterances), in_flight=1)
    for spec in partition(config, n):
        footprint = stage_footprint(config, spec, load)
        assert footprint.parameters == sum(p.numel() for p in build_stage(config, spec.index, n).parameters())
        assert footprint.activation_bytes == pytest.approx(kept_bytes(config, spec, utterances), rel=0.1)


MEASURE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from made_up_utterances import make
from tts.config import preset
from tts.dropout import PassContext
from tts.footprint import Load, stage_footprint
from tts.partition import partition
from tts.stages import build_stage, collate

def now():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch.set_num_threads(1)
config = preset("demo", n_codebooks=4, codebook_size=256, n_phonemes=75, d_model=512, n_heads=8, n_layers=7)
spec = partition(config, 3)[1]
utterances = make(4, config=config)
load = Load(4, max(u.n_frames for u in utterances), 6)
small = torch.nn.Linear(8, 8)  # all libraries are loaded before the first look
first = torch.optim.AdamW(small.parameters())
small(torch.randn(2, 8)).sum().backward()
first.step()
before = now()
stage = build_stage(config, 1, 3)
base = {name: p.detach().clone() for name, p in stage.named_parameters()}
optimizer = torch.optim.AdamW(stage.parameters())
batch = collate(utterances, config)
steps = batch.codes.shape[2] + config.n_codebooks
for turn in range(2):
    graphs = []
    for number in range(load.in_flight):
        hidden = torch.randn(4, steps, config.d_model, requires_grad=True)
        graphs.append(stage.middle(hidden, batch.side(), PassContext(1, number, True)))
    top = now()
    for graph in graphs:
        graph.backward(torch.ones_like(graph))
    graphs.clear()
    optimizer.step()
print(top - before, stage_footprint(config, spec, load).memory_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_predicted_memory_is_within_a_fifth_of_a_process_that_trains() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(Path(made_up_utterances.__file__).parent)],
        capture_output=True, text=True, check=True, timeout=100,
    )
    measured, predicted = (int(number) for number in ran.stdout.split())
    assert measured > 100 * MIB
    assert predicted == pytest.approx(measured, rel=0.2)


@given(st.lists(st.integers(2, 200), min_size=1, max_size=6))
def test_no_stage_exceeds_its_budget_or_the_refusal_says_what_it_takes(mib: list[int]) -> None:
    config = preset("demo", **FITTED)
    budgets = [size * MIB for size in mib]
    try:
        specs = partition_to_fit(config, budgets)
    except HocketError as error:
        assert error.code is Code.STAGES_INVALID and "MiB" in error.detail
        return
    assert [spec.index for spec in specs] == list(range(len(budgets))) and specs[-1].last_layer == config.n_layers
    for spec, budget in zip(specs, budgets, strict=True):
        assert stage_footprint(config, spec).memory_bytes <= budget


def test_unequal_cards_get_unequal_slices_and_room_to_spare_changes_nothing() -> None:
    config = preset("base", **FITTED)
    load = Load(utterances=4, frames=256, in_flight=2)
    block = stage_footprint(config, StageSpec(1, 4, 0, 1), load).memory_bytes
    small, large = 3 * block + 1, 40 * block
    fitted = partition_to_fit(config, [large, small, small, large], load)
    assert [len(spec.layers) for spec in fitted][1:3] == [3, 3]
    assert sum(len(spec.layers) for spec in fitted) == config.n_layers
    assert partition_to_fit(config, [large] * 4, load) == partition(config, 4)


def test_cuts_travel_with_the_configuration() -> None:
    config = preset("demo", **FITTED)
    fitted = ModelConfig.from_json(config.model_copy(update={"cuts": (0, 4, 5)}).to_json())
    assert cuts_of(partition(fitted, 3)) == (0, 4, 5) and cuts_of(partition(config, 3)) != (0, 4, 5)
    assert partition(fitted, 2) == partition(config, 2), "a cut into another number of stages is the equal one"
    assert [spec.first_layer for spec in partition(fitted, 3)] == [0, 0, 4]


@pytest.mark.parametrize("cuts", [(), (5, 4, 5), (1, 1, 5), (1, 2, 4), (2, 7, 5)])
def test_cuts_that_are_none_are_refused(cuts: tuple[int, ...]) -> None:
    values = preset("demo", **FITTED).model_dump(mode="json")
    with pytest.raises(HocketError) as caught:
        ModelConfig.from_dict({**values, "cuts": list(cuts)})
    assert caught.value.code is Code.MODEL_CONFIG_INVALID


def test_presets_grow_in_every_respect() -> None:
    rows = []
    for name in PRESETS:
        config = preset(name, **FITTED)
        (spec,) = partition(config, 1)
        footprint = stage_footprint(config, spec)
        assert footprint.parameters == parameters_of(config, spec)
        rows.append((footprint.parameters, footprint.flops_per_frame, footprint.memory_bytes))
    assert rows == sorted(rows)
