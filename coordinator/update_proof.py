"""What the bytes of an update alone can show: that no optimizer of ours made it, or that it is not what its member committed to.

Runs in a worker thread on files. Everything that is found here is proof to anybody: the member signed a head that names the file,
and commits that say what must be in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import Code, HocketError
from common.files import OWN_DISK
from coordinator.update_checks import CHUNK_VALUES, measure
from protocol.commitments import TensorsDigest
from protocol.generated import hocket_pb2 as pb
from protocol.tensor_files import TensorInfo

# AdamW with betas 0.9 and 0.95 moves a weight by at most this many learning rates a step, whatever the gradients are: by
# Cauchy-Schwarz |m|/sqrt(v) <= (1 - b1) / sqrt(1 - b2) / sqrt(1 - b1^2 / b2), which is 1.17; the rest is room for rounding.
LR_FACTOR = 1.25
# Below this share of what the learning rates allow a weight has practically not moved; the largest one of a trained stage is
# within a small factor of them.
LEAST_SHARE = 1e-6

HEADER_ALLOWANCE_BYTES = 1 << 16
HEADER_ALLOWANCE_PER_TENSOR_BYTES = 1 << 10


@dataclass(frozen=True)
class Fault:
    """Why an update is refused.

    Args:
        kind: SHAPE, NOT_FINITE, NORM, ZERO, CHAIN.
    """

    kind: str
    reason: str


def size_fault(head: pb.UpdateHead, tensors: Sequence[TensorInfo]) -> str:
    """Why a file of the size that a head says cannot hold an update of these tensors; empty: it can."""
    data_bytes = sum(one.size_bytes for one in tensors)
    most = data_bytes + HEADER_ALLOWANCE_BYTES + HEADER_ALLOWANCE_PER_TENSOR_BYTES * len(tensors)
    return "" if data_bytes < head.size_bytes <= most else f"{head.size_bytes} bytes for a stage of {data_bytes}"


def zeros_digest(tensors: Sequence[TensorInfo]) -> bytes:
    """`tensors_digest` of an update that changes nothing."""
    digest = TensorsDigest()
    empty = np.zeros(CHUNK_VALUES, np.float32)
    for info in sorted(tensors, key=lambda one: one.name):
        digest.begin(info.name, info.dtype, info.shape)
        left = math.prod(info.shape)
        while left:
            digest.add(empty[: min(left, CHUNK_VALUES)])
            left -= min(left, CHUNK_VALUES)
    return digest.digest()


def rates_of(commits: Iterable[pb.StepCommit], link: bytes) -> list[float]:
    """The learning rates of the steps that lead to `link`, and of no others.

    A member may have committed to more: to steps of another stage before it was moved, or to some that a fault undid.
    """
    by_link = {one.link: one for one in commits}
    rates: list[float] = []
    while (one := by_link.pop(link, None)) is not None:
        if one.step:
            rates.append(one.lr)
        link = one.previous
    return rates


def update_fault(
    path: Path, tensors: Sequence[TensorInfo], *, committed: bytes | None, lr_sum: float | None, weight_decay: float,
    base_largest: float,
) -> Fault | None:  # fmt: skip
    """What is wrong with an update's file; None: nothing that its bytes show.

    Args:
        committed: digest of the update in the last commit. lr_sum: of the learning rates of the inner steps that led to it. Both
            None: the member committed to nothing, and nothing was asked of it.
        base_largest: largest magnitude of the base's weights.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE where this machine cannot read it, UPDATE_REFUSED where it is gone: that proves
            nothing.
    """
    try:
        order = sorted(tensors, key=lambda one: one.name)
        found = measure(path, order, Code.UPDATE_REFUSED)
    except HocketError as error:
        if error.code in OWN_DISK or not path.exists():
            raise  # what a round that went on has cleared away proves nothing either
        kind = "NOT_FINITE" if error.code is Code.NOT_FINITE else "SHAPE"
        return Fault(kind, f"H{int(error.code)} {error.detail}".replace(str(path), "the file"))
    if committed is not None and found.digest != committed.hex():
        return Fault("CHAIN", "its bytes are not those of the last commit")
    if lr_sum is None:
        return None
    moved = found.largest
    bound = lr_sum * (LR_FACTOR + weight_decay * (base_largest + LR_FACTOR * lr_sum))
    # The update is a difference of float32 weights, so it is as exact as these are.
    if moved > bound * (1 + 1e-6) + 1e-6 * base_largest:
        return Fault("NORM", f"a weight moved by {moved:.3g}; its learning rates allow {bound:.3g}")
    if lr_sum > 0 and moved < LEAST_SHARE * lr_sum:
        return Fault("ZERO", f"no weight moved by more than {moved:.3g}, with learning rates of {lr_sum:.3g} in sum")
    return None
