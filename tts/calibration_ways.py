"""Honest ways to compute a pass, for `hocket calibrate`: what a machine is free to choose, by device and dtype.

Threads, kernels, memory layout, how the batch is cut and padded, and another kind of processor: all of it changes the order in
which is added, and nothing else. A dtype is a class of its own, as it changes results by orders of magnitude more. A device is
an argument: what is measured on a GPU is what is measured here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tts.batch import Side, TextBatch
from tts.calibration_cases import Arrays, Made, Work
from tts.replay import PassInput

DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "tf32", "bfloat16")}
"""What passes of a float32 model can be computed in, by kind of device, the finest first."""
AS_IT_COMES = "as it comes"
Way = Callable[[Work], Made]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def precision(device: str, dtype: str) -> Iterator[None]:
    """Compute float32 tensors on `device` in `dtype`: one of DTYPES, or `float16`."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    half = torch.autocast(device, getattr(torch, dtype)) if dtype in ("bfloat16", "float16") else nullcontext()
    try:
        with half:
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _plain_kernels() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a setting for GPUs that comes along
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def ways(dtype: str, device: str = "cpu") -> dict[str, Way]:
    """Honest ways to compute a pass on `device` in one of its DTYPES, by name."""

    def under(context: Callable[[], AbstractContextManager[object]]) -> Way:
        def run(work: Work) -> Made:
            with precision(device, dtype), context():
                return work.run(_on(work.weights, device))

        return run

    def other_layout(work: Work) -> Made:
        turned = {name: value.T.contiguous().T if value.dim() == 2 else value for name, value in work.weights.items()}
        with precision(device, dtype):
            return work.run(_on(turned, device))

    def row_by_row(work: Work) -> Made:
        with precision(device, dtype):
            return _row_by_row(work, device)

    found = {
        AS_IT_COMES: under(nullcontext),
        "attention by definition": under(lambda: sdpa_kernel(SDPBackend.MATH)),
        "weights laid out otherwise": other_layout,
        "one utterance at a time": row_by_row,
    }
    if device == "cpu":
        found |= {"two threads": under(lambda: threads(2)), "plain kernels": under(_plain_kernels)}
    return found


def _on(weights: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in weights.items()}


def _row_by_row(work: Work, device: str) -> Made:
    """Each utterance in a batch of its own, without padding; nothing for passes whose masks span the batch."""
    if not work.calm:
        return {}, {}
    weights = _on(work.weights, device)
    runs = [work.run(weights, _row(work.inputs, row)) for row in range(len(work.inputs.side.n_frames))]
    parts = [arrays for arrays, _ in runs]
    gradients = {name: torch.stack([each[name] for _, each in runs]).sum(0) for name in work.gradients}
    joined: Arrays = {}
    for name, whole in work.ours.items():
        if name in ("ce", "count"):
            joined[name] = np.sum([part[name] for part in parts], axis=0)
            continue
        # What lies behind an utterance's end is no result; it stands there as it does in ours.
        joined[name] = whole.copy()
        for row, part in enumerate(parts):
            joined[name][row, : part[name].shape[1]] = part[name][0]
    return joined, gradients


def _row(inputs: PassInput, row: int) -> PassInput:
    frames = int(inputs.side.n_frames[row])
    steps = frames + inputs.side.codes.shape[1]

    def cut(part: Side | TextBatch) -> dict[str, Tensor]:
        own = {one.name: getattr(part, one.name)[row : row + 1] for one in fields(part)}
        own["codes"] = own["codes"][:, :, :frames].contiguous()
        for name in ("phonemes", "word_starts", "durations"):
            if name in own:
                own[name] = own[name][:, : int(own["n_phonemes"][0])].contiguous()
        return own

    def states(array: np.ndarray | None) -> np.ndarray | None:
        return array[row : row + 1, :steps] if array is not None else None

    batch = TextBatch(**cut(inputs.batch)) if inputs.batch is not None else None
    return PassInput(Side(**cut(inputs.side)), batch, states(inputs.hidden), states(inputs.grad))
