"""A worker tells the dtype that torch computes in, whatever it is called."""

from __future__ import annotations

import pytest
import torch

from protocol.calibration import class_refusal
from tts.compute_class import compute_class, compute_dtype


def test_a_worker_that_is_left_alone_computes_in_float32() -> None:
    assert compute_dtype() == "float32"
    assert class_refusal(compute_class()) == ""


@pytest.mark.parametrize(("setting", "dtype"), [("high", "tf32"), ("medium", "bfloat16")])
def test_looser_products_are_another_dtype(setting: str, dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        assert compute_dtype() == dtype
        assert dtype in class_refusal(compute_class())
    finally:
        torch.set_float32_matmul_precision(before)


def test_autocast_is_seen() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_class().endswith("-bfloat16")


def test_what_the_environment_tells_onednn_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "strict")
    assert compute_dtype() == "float32"
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "bf16")
    assert compute_dtype() == "bfloat16"


def test_tensorfloat_is_a_dtype_of_its_own_on_a_gpu() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert compute_dtype("cuda") == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = False
        assert compute_dtype("cuda") == "float32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
