"""The benchmarks of aggregation: their arithmetic, and small runs of our own rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.aggregation import check_agreement, ratios_of
from benchmarks.aggregation_row import path_of, run, tensors_of, write_updates
from benchmarks.estimation import Cell, cells_of, rows_of
from benchmarks.estimation import ratios_of as estimation_ratios
from benchmarks.estimation_rules import error_of, our_rules
from common.errors import Code, HocketError
from protocol.flat_file import FlatFile


def test_our_rows_read_the_files_and_follow_the_definitions(tmp_path: Path) -> None:
    write_updates(tmp_path, 5, 100_003)
    rows = np.empty((5, 100_003), np.float32)
    for index, row in enumerate(rows):
        with FlatFile(path_of(tmp_path, index), tensors_of(100_003), Code.UPDATE_REFUSED) as flat:
            flat.read(0, row)
    ordered = np.sort(rows, axis=0)
    expected = {"median": ordered[2], "trimmed_mean": ordered[1:4].mean(axis=0)}
    for rule, values in expected.items():
        answer = run({"rule": rule, "n": 5, "values": 100_003, "folder": str(tmp_path)})
        np.testing.assert_allclose(answer["sample"], values[:: 100_003 // 1000], rtol=1e-5, atol=1e-6)
        assert answer["seconds"] > 0
    assert run({"rule": "pass", "n": 5, "values": 100_003, "folder": str(tmp_path)})["seconds"] > 0


def test_ratios_and_agreement() -> None:
    rows = [
        {"rule": rule, "n": 16, "values": 10, "seconds": seconds, "grown_mib": grown}
        for rule, seconds, grown in (("pass", 1.0, 1), ("median", 2.0, 5), ("trimmed_mean", 4.0, 5),
                                     ("flower_median", 30.0, 100), ("flower_trimmed", 20.0, 100))
    ]  # fmt: skip
    assert ratios_of(rows, 16, 10) == {
        "median_vs_flower": 15.0, "trimmed_vs_flower": 5.0, "memory_vs_flower": 0.05, "median_time_over_pass": 2.0,
    }  # fmt: skip
    assert ratios_of(rows, 8, 10) == {}
    check_agreement({"median": [{"sample": [1.0, 2.0]}], "flower_median": [{"sample": [1.0, 2.0 + 1e-8]}]})
    with pytest.raises(HocketError, match="the same work"):
        check_agreement({"median": [{"sample": [1.0, 2.0]}], "flower_median": [{"sample": [1.0, 2.1]}]})


def test_cells_count_attackers_in_whole_numbers() -> None:
    cells = cells_of((5, 16), (1.0,), 10, 1)
    assert [(cell.n, cell.f) for cell in cells] == [(5, 0), (5, 1), (16, 0), (16, 1), (16, 3), (16, 4)]


def test_the_worst_attack_counts_and_flowers_best_rule_is_the_mark() -> None:
    cell = Cell(5, 1, 1.0, 10, 2)
    found = {
        "none": {"ours": [[0.1, 1.0], [0.1, 1.0]], "flower_a": [[0.0, 1.0]] * 2, "flower_b": [[0.0, 1.0]] * 2},
        "bad": {"ours": [[0.2, 0.9], [0.4, 0.7]], "flower_a": [[0.5, 0.5]] * 2, "flower_b": [[float("inf"), -1.0]] * 2},
    }
    rows = rows_of(cell, found)
    assert (rows[0]["worst_error"], rows[0]["attack"], rows[0]["least_cosine"]) == (pytest.approx(0.3), "bad", pytest.approx(0.8))
    ratios = estimation_ratios(rows, "ours")
    assert ratios["worst_error_vs_flower_best"] == pytest.approx(0.6) and ratios["finite_share"] == 1.0
    assert estimation_ratios(rows, "flower_b")["finite_share"] == 0.0


def test_errors_of_rules() -> None:
    draw = np.random.default_rng(0)
    updates = np.asarray(draw.standard_normal(50) + 0.1 * draw.standard_normal((5, 50)), np.float32)
    mean = updates.mean(axis=0, dtype=np.float64)
    for name, rule in our_rules().items():
        error, cosine = error_of(rule, updates, np.ones(5), 1, b"s", mean)
        assert error < 0.2 and cosine > 0.98, name
    assert error_of(lambda *_: np.full(50, np.nan), updates, np.ones(5), 1, b"", mean) == (float("inf"), -1.0)
