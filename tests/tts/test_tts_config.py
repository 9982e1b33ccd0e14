from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tts.config import PRESETS, ModelConfig, StageSpec, preset
from tts.partition import costs, max_stages, partition


def fitted(name: str, **changes: object) -> ModelConfig:
    return preset(name, n_codebooks=4, codebook_size=256, n_phonemes=60, **changes)


def dearest(config: ModelConfig, specs: list[StageSpec]) -> float:
    cost = costs(config)
    return max(len(s.layers) * cost.block + (cost.front if s.is_first else 0) + (cost.heads if s.is_last else 0) for s in specs)


@given(st.integers(1, 9), st.integers(1, 11), st.sampled_from(["test", "demo"]))
def test_a_cut_is_contiguous_whole_and_the_best_there_is(layers: int, n: int, name: str) -> None:
    config = fitted(name, n_layers=layers)
    if n > max_stages(config):
        with pytest.raises(HocketError) as caught:
            partition(config, n)
        assert caught.value.code is Code.STAGES_INVALID
        return
    specs = partition(config, n)
    assert [s.index for s in specs] == list(range(n)) and {s.n_stages for s in specs} == {n}
    assert [layer for s in specs for layer in s.layers] == list(range(layers))
    assert all(len(s.layers) > 0 for s in specs[1:-1])
    assert specs[0].is_first and specs[-1].is_last and sum(s.is_first for s in specs) == sum(s.is_last for s in specs) == 1

    def all_cuts(start: int, index: int) -> list[list[int]]:
        if index == n - 1:
            return [[layers]] if layers - start >= 0 and (n == 1 or layers >= start) else []
        least = 0 if index == 0 else 1
        return [[stop, *rest] for stop in range(start + least, layers + 1) for rest in all_cuts(stop, index + 1)]

    best = min(dearest(config, [StageSpec(i, n, a, b) for i, (a, b) in enumerate(pairwise([0, *cut]))]) for cut in all_cuts(0, 0))
    assert dearest(config, specs) == pytest.approx(best)


@pytest.mark.parametrize("name", ["test", "demo"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_small_presets_can_be_cut(name: str, n: int) -> None:
    assert len(partition(fitted(name), n)) == n


@pytest.mark.parametrize("n", [0, -1, 8])
def test_an_impossible_cut_is_refused_with_the_range(n: int) -> None:
    with pytest.raises(HocketError) as caught:
        partition(fitted("demo"), n)
    assert caught.value.code is Code.STAGES_INVALID and "1 to 7" in caught.value.line()


@pytest.mark.parametrize(
    ("name", "millions"),
    [("test", (0.1, 0.3)), ("demo", (3, 4)), ("base", (270, 330)), ("large", (900, 1200)), ("xl", (2800, 3300))],
)
def test_presets_have_the_sizes_they_promise(name: str, millions: tuple[float, float]) -> None:
    from tts.stage_files import expected_tensors

    config = preset(name, n_codebooks=8, codebook_size=1024, n_phonemes=100) if name in ("base", "large", "xl") else fitted(name)
    count = sum(info.size_bytes // 4 for info in expected_tensors(config, 0, 1)) / 1e6
    assert millions[0] <= count <= millions[1], count
    assert name in PRESETS


def test_configurations_survive_json_and_refuse_what_does_not_fit() -> None:
    config = fitted("demo", codebook_weights=(4.0, 2.0, 1.0, 1.0))
    assert ModelConfig.from_json(config.to_json()) == config
    assert sum(config.weights) == pytest.approx(1) and config.weights[0] == 0.5
    for text in (
        "{",
        "[]",
        "{}",
        config.to_json().replace('"n_heads":3', '"n_heads":5'),
        config.to_json().replace('"d_model":', '"width":'),
        config.to_json().replace('"n_layers":5', '"n_layers":1e9'),
    ):
        with pytest.raises(HocketError) as caught:
            ModelConfig.from_json(text)
        assert caught.value.code is Code.MODEL_CONFIG_INVALID
    with pytest.raises(HocketError) as caught:
        fitted("huge")
    assert "demo" in caught.value.line()
    with pytest.raises(HocketError):
        fitted("demo", codebook_weights=(1.0,))


def test_the_configuration_and_the_schedule_need_no_torch() -> None:
    code = "import sys, tts.config, tts.schedule, tts.durations; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
