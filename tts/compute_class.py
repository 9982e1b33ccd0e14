"""What this process computes in: the device class that a worker tells, read from how torch is set, not from a wish.

A network trains in float32. Several switches make torch take "float32" less literally and keep the name: TensorFloat-32 on GPUs,
bfloat16 products in oneDNN, autocast. Each changes a result by orders of magnitude more than another order of adding does, so
each is a dtype of its own here.
"""

from __future__ import annotations

import os

import torch

from protocol.calibration import TRAINING_DTYPE, device_class

_ONEDNN_MODES = {"BF16": "bfloat16", "F16": "float16", "TF32": "tf32", "ANY": "any"}
_MATMUL = {"high": "tf32", "medium": "bfloat16"}


def compute_dtype(device: str = "cpu") -> str:
    """The coarsest arithmetic that torch may use for float32 tensors on a device.

    Args:
        device: `cpu` or `cuda`, torch's name of its kind.
    """
    if torch.is_autocast_enabled(device):
        return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    if device == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    if device == "cpu":
        for name in ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"):
            if (mode := os.environ.get(name, "").upper()) in _ONEDNN_MODES:
                return _ONEDNN_MODES[mode]
    return _MATMUL.get(torch.get_float32_matmul_precision(), TRAINING_DTYPE)


def compute_class(device: str = "cpu") -> str:
    """The device class of this process: `cpu-x86_64-float32`, `cuda-sm90-tf32`."""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return device_class(compute_dtype(device), device, f"sm{major}{minor}")
    return device_class(compute_dtype(device), device)
