"""The outer optimizer, the checks of updates, and the making of a stage's next weights from files."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from coordinator.aggregate import StageOutcome, aggregate_stage
from coordinator.assembly import frames_of
from coordinator.outer import nesterov
from coordinator.run import Update
from coordinator.stage_writer import StageWriter
from coordinator.update_checks import Submitted, check_updates, measure
from protocol.commitments import tensors_digest
from protocol.tensor_files import TensorInfo, file_parts, info_of, read_tensors, write_tensors

GOLDEN = json.loads((Path(__file__).parent / "golden" / "aggregation.json").read_text())

# ---- outer optimizer -----------------------------------------------------------------------------------------------------


def test_golden_outer_steps() -> None:
    for case in GOLDEN["outer"]:
        weights: np.ndarray = np.array(case["weights"], np.float32)
        momentum: np.ndarray | None = None
        for gradient, expected in zip(case["gradients"], case["after"], strict=True):
            weights, momentum = nesterov(weights, np.array(gradient, np.float32), momentum, lr=case["lr"], mu=case["mu"])
            np.testing.assert_array_equal(weights, np.array(expected, np.float32))
        assert (momentum is None) == (case["mu"] == 0)


def test_outer_steps_agree_with_torch_sgd() -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    start = draw.standard_normal(100).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    weights, momentum = start, None
    for _ in range(5):
        gradient = draw.standard_normal(100).astype(np.float32)
        weights, momentum = nesterov(weights, gradient, momentum, lr=0.7, mu=0.9)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_averaging_is_the_outer_step_of_one_without_momentum() -> None:
    base = np.array([1.0, 2.0, -4.0], np.float32)
    trained = np.array([0.5, 2.5, -4.0], np.float32)
    weights, momentum = nesterov(base, base - trained, None, lr=1.0, mu=0.0)
    np.testing.assert_array_equal(weights, trained)
    assert momentum is None


# ---- files ---------------------------------------------------------------------------------------------------------------

SHAPES = {"b.weight": (7, 300), "a.bias": (5,), "c.scalar": (), "d.empty": (0, 4)}


def draw_tensors(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: np.asarray(draw.standard_normal(shape) * scale, np.float32) for name, shape in SHAPES.items()}


TENSORS = info_of(draw_tensors(0))


def put(folder: Path, name: str, tensors: dict[str, np.ndarray], frames: int = 100) -> Submitted:
    path = folder / f"{name}.safetensors"
    write_tensors(path, tensors)
    return Submitted(name, path, frames)


def run(
    folder: Path, base: Path, momentum: Path | None, submitted: list[Submitted], name: str = "new", **changes: object
) -> StageOutcome:
    options: dict[str, object] = {"rule": "trimmed_mean", "tolerate": 1, "outer_lr": 0.7, "outer_momentum": 0.9, **changes}
    return aggregate_stage(
        base, momentum, submitted, TENSORS, new_weights=folder / f"{name}.safetensors",
        new_momentum=folder / f"{name}.momentum.safetensors", **options,  # type: ignore[arg-type]
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text("abc.", min_size=1, max_size=3), st.lists(st.integers(0, 3), max_size=3)), max_size=5,
                unique_by=lambda pair: pair[0]))  # fmt: skip
def test_a_stage_written_piece_by_piece_has_the_bytes_of_one_written_whole(shapes: list[tuple[str, list[int]]]) -> None:
    import tempfile

    tensors = {name: np.arange(math.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        with StageWriter(path, info_of(tensors)) as writer:
            for name in sorted(tensors):
                flat = tensors[name].reshape(-1)
                writer.write(flat[:2])
                writer.write(flat[2:])
            digest = writer.finish()
        expected = b"".join(bytes(part) for part in file_parts(tensors))
        assert path.read_bytes() == expected and digest == hashlib.sha256(expected).hexdigest()
        assert writer.size_bytes == len(expected)


def test_an_unfinished_stage_file_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="missing"), StageWriter(path, TENSORS) as writer:
        writer.write(np.zeros(3, np.float32))
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_two_rounds_with_momentum(tmp_path: Path) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path
    names = ["m1", "m2", "m3", "m4"]
    drawn = {name: draw_tensors(seed, 0.01) for seed, name in enumerate(names, 10)}
    submitted = [put(tmp_path, name, drawn[name]) for name in names]
    # The order in which updates came does not matter.
    one = run(tmp_path, base, None, submitted, "v1")
    other = run(tmp_path, base, None, submitted[::-1], "v1-again")
    assert one.sha256 == other.sha256 and one.accepted == names and one.plan.f == 1
    usual = np.median(list(one.norms.values()))
    assert all(math.isclose(one.clips[member], min(1.0, usual / one.norms[member])) for member in names)
    assert one.digests == {member: tensors_digest(drawn[member]).hex() for member in names}
    assert set(one.outcomes.values()) == {"accepted"}
    two = run(tmp_path, tmp_path / "v1.safetensors", tmp_path / "v1.momentum.safetensors", submitted, "v2")
    weights = read_tensors(tmp_path / "v2.safetensors")
    assert two.sha256 == hashlib.sha256((tmp_path / "v2.safetensors").read_bytes()).hexdigest()
    for name, start in draw_tensors(0).items():
        stacked = np.sort(np.stack([drawn[member][name] * np.float32(one.clips[member]) for member in names]), axis=0)
        gradient = (stacked[1] + stacked[2]) / np.float32(2)
        after, momentum = nesterov(start, gradient, None, lr=0.7, mu=0.9)
        after, momentum = nesterov(after, gradient, momentum, lr=0.7, mu=0.9)
        np.testing.assert_array_equal(weights[name], after)
        np.testing.assert_array_equal(read_tensors(tmp_path / "v2.momentum.safetensors")[name], momentum)


def test_without_a_usable_update_a_stage_stays(tmp_path: Path) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path
    outcome = run(tmp_path, base, None, [put(tmp_path, "lazy", draw_tensors(1, 0.0), frames=0)])
    assert outcome.accepted == [] and outcome.plan.n == 0
    assert outcome.refused == [("lazy", "no frames were trained")]
    assert not (tmp_path / "new.safetensors").exists()


def damaged(kind: str) -> dict[str, np.ndarray]:
    tensors = draw_tensors(5, 0.01)
    if kind == "nan":
        tensors["b.weight"][3, 7] = np.nan
    elif kind == "infinite":
        tensors["a.bias"][:] = -np.inf
    elif kind == "zero":
        tensors = {name: np.zeros_like(array) for name, array in tensors.items()}
    elif kind == "free ride":
        tensors = {name: array * np.float32(1e-4) for name, array in tensors.items()}
    elif kind == "huge":
        tensors["b.weight"] *= np.float32(1e30)
    elif kind == "overflowing":
        tensors["b.weight"][:] = np.float32(3e38)
    elif kind == "missing":
        del tensors["a.bias"]
    elif kind == "surplus":
        tensors["e"] = np.zeros(1, np.float32)
    elif kind == "transposed":
        tensors["b.weight"] = np.ascontiguousarray(tensors["b.weight"].T)
    elif kind == "double":
        tensors["a.bias"] = tensors["a.bias"].astype(np.float64)
    return tensors


KINDS = {
    "nan": "not_finite", "infinite": "not_finite", "huge": "norm", "overflowing": "norm", "zero": "no_work",
    "free ride": "no_work", "missing": "shape", "surplus": "shape", "transposed": "shape", "double": "shape", "cut": "shape",
    "no header": "shape",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_update_changes_nothing_and_is_named(tmp_path: Path, kind: str) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path
    good = [put(tmp_path, f"good{index}", draw_tensors(index, 0.01)) for index in range(3)]
    bad = put(tmp_path, "bad", damaged(kind))
    if kind == "cut":
        bad.path.write_bytes(bad.path.read_bytes()[:-1])
    elif kind == "no header":
        bad.path.write_bytes(b"\xff" * 64)
    without = run(tmp_path, base, None, good, "without")
    outcome = run(tmp_path, base, None, [bad, *good], "with")
    assert outcome.sha256 == without.sha256
    ((member, reason),) = outcome.refused
    assert member == "bad" and reason and str(tmp_path) not in reason
    assert outcome.kinds == {"bad": KINDS[kind]} and outcome.outcomes["bad"] == "refused"


def test_an_update_that_comes_twice_under_two_names_counts_once(tmp_path: Path) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path
    good = [put(tmp_path, f"good{index}", draw_tensors(index, 0.01)) for index in range(4)]
    copy = put(tmp_path, "copy", draw_tensors(2, 0.01))
    without = run(tmp_path, base, None, good, "without")
    late, early = run(tmp_path, base, None, [*good, copy], "late"), run(tmp_path, base, None, [copy, *good], "early")
    assert late.sha256 == early.sha256 == without.sha256
    assert late.refused == [("copy", "it is the update of good2, bit for bit")] and late.kinds == {"copy": "copy"}
    assert early.kinds == {"good2": "copy"}, "whose work it is cannot be told"
    still = [put(tmp_path, f"still{index}", {name: value * 0 for name, value in draw_tensors(1).items()}) for index in range(2)]
    assert run(tmp_path, base, None, still, "still").refused == [], "two that could not move are no copies"


def test_a_claim_of_frames_beyond_the_round_has_no_effect(tmp_path: Path) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path

    def submitted(claims: tuple[int, int]) -> list[Submitted]:
        updates = [Update(f"m{index}", 0, 1, "", 0, claim, 5, [], 0, 0, "") for index, claim in enumerate(claims)]
        frames = [frames_of(one, {"frames": 900}) for one in updates]
        return [put(tmp_path, f"m{index}", draw_tensors(index, 0.01), count) for index, count in enumerate(frames)]

    honest = run(tmp_path, base, None, submitted((500, 400)), "honest")
    assert run(tmp_path, base, None, submitted((10**9, 400)), "inflated").sha256 == honest.sha256
    assert honest.accepted == ["m0", "m1"]
    # Where the count of the round is not known, a claim stands as it is.
    assert frames_of(Update("m", 0, 1, "", 0, 70, 5, [], 0, 0, ""), {}) == 70


def test_what_hardly_went_in_is_called_trimmed(tmp_path: Path) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path
    common = draw_tensors(1, 0.01)
    good = [
        put(tmp_path, f"good{index}", {name: common[name] + array for name, array in draw_tensors(index, 0.002).items()})
        for index in range(10, 14)
    ]  # fmt: skip
    lie = put(tmp_path, "lie", {name: np.float32(-3) * array for name, array in common.items()})
    for rule in ("centred_clipping", "trimmed_mean", "median", "geometric_median", "multi_krum"):
        outcome = run(tmp_path, base, None, [*good, lie], rule, rule=rule)
        assert outcome.outcomes["lie"] == "trimmed" and outcome.trimmed_shares["lie"] > 0.5, rule
        assert [outcome.outcomes[one.member] for one in good] == ["accepted"] * 4, rule


def test_few_frames_are_left_out_with_the_reason(tmp_path: Path) -> None:
    submitted = [put(tmp_path, name, draw_tensors(number, 0.01), frames) for number, (name, frames) in
                 enumerate((("a", 1000), ("b", 800), ("c", 199), ("d", 200), ("e", 0)))]  # fmt: skip
    checked = check_updates(submitted, 1.0, TENSORS)
    # The median of those that trained at all (1000, 800, 200, 199) is 500.
    assert [one.member for one in checked.sound] == ["a", "b", "c", "d"] and [member for member, _ in checked.refused] == ["e"]
    assert set(checked.measured) == set("abcde")
    submitted[2] = Submitted("c", submitted[2].path, 124)
    checked = check_updates(submitted, 1.0, TENSORS)
    assert [one.member for one in checked.sound] == ["a", "b", "d"]
    assert "under a quarter of the median" in dict(checked.refused)["c"]


def test_norms_are_float64(tmp_path: Path) -> None:
    tensors = draw_tensors(3)
    tensors["b.weight"][:] = np.float32(1e25)
    path = put(tmp_path, "x", tensors).path
    exact = math.sqrt(math.fsum(float(value) ** 2 for array in tensors.values() for value in array.reshape(-1)))
    assert math.isclose(measure(path, TENSORS, Code.UPDATE_REFUSED).norm, exact, rel_tol=1e-12)


def test_a_damaged_base_is_our_own_fault(tmp_path: Path) -> None:
    tensors = draw_tensors(0)
    tensors["a.bias"][0] = np.nan
    base = put(tmp_path, "base", tensors).path
    with pytest.raises(HocketError) as caught:
        run(tmp_path, base, None, [put(tmp_path, "a", draw_tensors(1))])
    assert caught.value.code is Code.NOT_FINITE


MEASURE = """
import sys
from pathlib import Path
from coordinator.aggregate import aggregate_stage
from coordinator.update_checks import Submitted
from protocol.tensor_files import TensorInfo
from simulations.usage import peak_bytes
folder = Path(sys.argv[1])
tensors = [TensorInfo(f"t{index:02}", "float32", (1 << 19,)) for index in range(24)]
before = peak_bytes()
updates = [Submitted(f"u{index}", folder / f"u{index}.safetensors", 10) for index in range(3)]
aggregate_stage(folder / "base.safetensors", None, updates, tensors, rule="trimmed_mean", tolerate=1, outer_lr=.7,
                outer_momentum=.9, new_weights=folder / "new.safetensors", new_momentum=folder / "momentum.safetensors")
print((peak_bytes() - before) >> 10)
"""


def test_memory_is_some_tensors_not_whole_files(tmp_path: Path) -> None:
    infos = [TensorInfo(f"t{index:02}", "float32", (1 << 19,)) for index in range(24)]
    for seed, name in enumerate(("base", "u0", "u1", "u2")):
        draw = np.random.default_rng(seed)
        with StageWriter(tmp_path / f"{name}.safetensors", infos) as writer:
            for _ in infos:
                writer.write(draw.random(1 << 19, np.float32))
            writer.finish()
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    grown_kib = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # Four files of 48 MiB are read and two written; some chunks of each are in memory.
    assert grown_kib < 20 * 1024


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    base = put(tmp_path, "base", draw_tensors(0)).path
    update = put(tmp_path, "a", draw_tensors(1, 0.01))
    (tmp_path / "new.safetensors.part").symlink_to("/dev/full")
    with pytest.raises(HocketError) as caught:
        run(tmp_path, base, None, [update])
    assert caught.value.code is Code.DISK_FULL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "base.safetensors"]
    assert run(tmp_path, base, None, [update]).accepted == ["a"]
