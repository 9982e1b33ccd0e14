"""Which updates of a stage count: what each file holds, its norm and its digest, and the reason for those that are left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from common.errors import Code, HocketError
from common.files import OWN_DISK
from protocol.commitments import TensorsDigest
from protocol.flat_file import FlatFile
from protocol.tensor_files import TensorInfo

CHUNK_VALUES = 1 << 16
LEAST_SHARE = 0.25
# An inner step moves a weight by about its learning rate, so a whole round stays far below this times the weights' own size
# (or times 1, for weights that start near zero). It keeps float32 sums from overflowing; the rule does the rest.
RMS_BOUND = 10.0
# Below this share of the median norm, an update that claims frames did no work.
LEAST_NORM = 1e-3

# Why an update does not count.
NOT_FINITE, SHAPE, NORM, NO_WORK, FEW_FRAMES, COPY = "not_finite", "shape", "norm", "no_work", "few_frames", "copy"


@dataclass(frozen=True)
class Submitted:
    """An acknowledged update, as the aggregation needs it. `frames` are those that its sender says were trained."""

    member: str
    path: Path
    frames: int


@dataclass(frozen=True)
class Measured:
    """A whole file: its L2 norm, in float64, the digest of its tensors in hex, and the largest magnitude in it."""

    norm: float
    digest: str
    largest: float


@dataclass(frozen=True)
class Checked:
    """Updates, parted.

    Args:
        sound: those that count, by member. refused: (member, reason), by member.
        kinds: of the refusals, by member: NOT_FINITE, SHAPE, NORM, NO_WORK, FEW_FRAMES or COPY.
        measured: what could be read, sound or not, by member.
    """

    sound: list[Submitted]
    refused: list[tuple[str, str]]
    kinds: dict[str, str]
    measured: dict[str, Measured]


def measure(path: Path, tensors: Sequence[TensorInfo], code: Code) -> Measured:
    """Read a whole file once.

    Args:
        tensors: all that it must hold, by name.

    Raises:
        HocketError: `code` when it does not hold exactly `tensors`, NOT_FINITE for a NaN or an infinity.
    """
    digest = TensorsDigest()
    squares = largest = 0.0
    with FlatFile(path, tensors, code) as flat:
        room = np.empty(min(CHUNK_VALUES, max(flat.size, 1)), np.float32)
        position = 0
        for info in tensors:
            digest.begin(info.name, info.dtype, info.shape)
            for values in _pieces(info.size_bytes // 4, room):
                flat.read(position, values)
                position += values.size
                digest.add(values)
                exact = values.astype(np.float64)
                square = float(np.dot(exact, exact))
                # One NaN or infinity makes the sum so; float64 has room for the square of any finite float32.
                if not math.isfinite(square):
                    raise HocketError(Code.NOT_FINITE, f"{info.name[:80]!r}")
                squares += square
                largest = max(largest, float(values.max()), -float(values.min()))
    return Measured(math.sqrt(squares), digest.digest().hex(), largest)


def copies(sound: Sequence[Submitted], measured: Mapping[str, Measured]) -> dict[str, tuple[str, str]]:
    """Updates that are an earlier one's, bit for bit: no two members count the same microbatches, so they are one piece of work.

    It counts once, whichever of them did it: that cannot be told from their bytes.

    Args:
        sound: in the order in which they were acknowledged.
    """
    first: dict[str, str] = {}
    found = {}
    for one in sound:
        figures = measured[one.member]
        if figures.norm and first.setdefault(figures.digest, one.member) != one.member:
            found[one.member] = COPY, f"it is the update of {first[figures.digest]}, bit for bit"
    return found


def _pieces(size: int, room: np.ndarray) -> Iterator[np.ndarray]:
    return (room[: min(room.size, size - start)] for start in range(0, size, room.size))


def check_updates(
    submitted: Sequence[Submitted],
    base_norm: float,
    tensors: Sequence[TensorInfo],
    *,
    threads: int = 2,
) -> Checked:
    """Part the updates into those that count and those that do not, with the reason.

    Args:
        submitted: in the order in which they were acknowledged. base_norm: L2 norm of the stage's weights. tensors: by name.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE where this machine cannot read what it has acknowledged.
    """
    order = sorted(submitted, key=lambda one: one.member)

    def read(one: Submitted) -> Measured | tuple[str, str]:
        try:
            return measure(one.path, tensors, Code.UPDATE_REFUSED)
        except HocketError as error:
            if error.code in OWN_DISK:
                raise
            reason = f"H{int(error.code)} {error.detail}".replace(str(one.path), "the file")
            return NOT_FINITE if error.code is Code.NOT_FINITE else SHAPE, reason

    with ThreadPoolExecutor(threads, "update-checks") as pool:
        found = dict(zip(order, pool.map(read, order), strict=True))
    measured = {one.member: figures for one, figures in found.items() if isinstance(figures, Measured)}
    values = sum(math.prod(info.shape) for info in tensors)
    bound = RMS_BOUND * max(base_norm, math.sqrt(values))
    sound: list[Submitted] = []
    refused: dict[str, tuple[str, str]] = {}
    for one, figures in found.items():
        if not isinstance(figures, Measured):
            refused[one.member] = figures
        elif figures.norm > bound:
            refused[one.member] = NORM, f"its norm of {figures.norm:.3g} is above {bound:.3g}"
        elif one.frames == 0:
            refused[one.member] = NO_WORK, "no frames were trained"
        else:
            sound.append(one)
    usual = median(one.frames for one in sound) if sound else 0
    length = median(measured[one.member].norm for one in sound) if sound else 0.0
    for one in list(sound):
        norm = measured[one.member].norm
        if one.frames < LEAST_SHARE * usual:
            refused[one.member] = FEW_FRAMES, f"{one.frames} frames are under a quarter of the median of {usual:g}"
        elif norm < LEAST_NORM * length:
            refused[one.member] = NO_WORK, f"its norm of {norm:.3g} is under a thousandth of the median of {length:.3g}"
    refused |= copies([one for one in submitted if one in sound and one.member not in refused], measured)
    sound = [one for one in sound if one.member not in refused]
    reasons = sorted((member, reason) for member, (_, reason) in refused.items())
    return Checked(sound, reasons, {member: kind for member, (kind, _) in sorted(refused.items())}, measured)
