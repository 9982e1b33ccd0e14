"""Whether two computations of the same thing agree: floats are compared within measured tolerances, never by their bytes.

Two honest machines add in another order, so their results differ in the last bits, and the difference grows with depth. What
is told apart here is that difference and any other. Four statistics look at it from four sides, since each alone has a blind one:
a cosine does not see scale, a mean over all does not see a few tokens that are wrong, a norm does not see direction, and a few
sampled values do not see the rest.

The signs of the projections are drawn only after the result was committed to. The limits are shares of the result's own norm, so
a constant answer is as wrong as an answer can be.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

PROJECTIONS = 32
_BLOCK_VALUES = 1 << 16
_SIGNS = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # [256, 8]


@dataclass(frozen=True)
class Limits:
    """How far two results may lie apart.

    Args:
        median, maximum: over the tokens, of the relative L2 distance of a token's vector.
        norm: largest |ratio of the norms - 1|.
        projection: root mean square of the projections of the difference, over the norm of ours.
        floor: tokens of a norm below this share of the root mean square norm of all are measured against that share instead:
            behind an utterance's end gradients are zero but for rounding, and a relative distance to nothing says nothing.
    """

    median: float
    maximum: float
    norm: float
    projection: float
    floor: float = 0.1


@dataclass(frozen=True)
class Agreement:
    """What a comparison found.

    Args:
        ok: within the limits. reason: what is not, or that all is. statistics: by name, also where it is well.
    """

    ok: bool
    reason: str
    statistics: dict[str, float] = field(default_factory=dict)


def compare(ours: np.ndarray, theirs: np.ndarray, seed: bytes, limits: Limits) -> Agreement:
    """Compare a result with one that is to be trusted.

    Args:
        ours: [..., D] that is trusted, float; each vector over the last axis is a token. theirs: that is in question.
        seed: of the projections, drawn after `theirs` was committed to.
    """
    if theirs.shape != ours.shape or theirs.dtype.kind != "f":
        return Agreement(False, f"it is {theirs.dtype} {theirs.shape} instead of {ours.dtype} {ours.shape}")
    if not np.isfinite(theirs).all():
        return Agreement(False, "it has values that are not finite")
    if not np.isfinite(ours).all():
        return Agreement(False, "the recomputation is not finite, so nothing can be said")
    if not ours.size:
        return Agreement(True, "there is nothing in it")
    own = ours.reshape(-1, ours.shape[-1] if ours.ndim else 1).astype(np.float64)  # [N, D]
    difference = theirs.reshape(own.shape).astype(np.float64) - own
    norms = np.sqrt(np.square(own).sum(1))  # [N]
    typical = math.sqrt(float(np.square(norms).mean()))
    if typical == 0.0:
        same = not difference.any()
        return Agreement(same, f"ours is zero, and theirs is {'too' if same else 'not'}")
    distances = np.sqrt(np.square(difference).sum(1)) / np.maximum(norms, limits.floor * typical)
    whole = math.sqrt(float(np.square(norms).sum()))
    theirs_whole = math.sqrt(float(np.square(difference + own).sum()))
    projected = projections(difference, seed) / whole
    return judge(
        {
            "median": float(np.median(distances)),
            "maximum": float(distances.max()),
            "norm": theirs_whole / whole - 1.0,
            "projection": _rms(projected),
            "bias": float((difference * own).sum()) / whole**2,
        },
        limits,
    )


def judge(statistics: dict[str, float], limits: Limits) -> Agreement:
    """Hold the statistics of a comparison against limits; `bias`, the share of ours that theirs has too much, has none."""
    bounds = {"median": limits.median, "maximum": limits.maximum, "norm": limits.norm, "projection": limits.projection}
    return _judge(statistics, bounds)


def compare_sums(ours: np.ndarray, theirs: np.ndarray, limit: float) -> Agreement:
    """Compare sums of losses, one by one.

    Args:
        ours, theirs: float [K]. limit: largest relative difference of one of them.
    """
    if theirs.shape != ours.shape or theirs.dtype.kind != "f" or not np.isfinite(theirs).all():
        return Agreement(False, f"the sums are {theirs.dtype} {theirs.shape} instead of {ours.shape}, or not finite")
    apart = np.abs(theirs.astype(np.float64) - ours) / np.maximum(np.abs(ours), 1e-12)
    return _judge({"loss": float(apart.max(initial=0.0))}, {"loss": limit})


def projections(values: np.ndarray, seed: bytes, count: int = PROJECTIONS) -> np.ndarray:
    """Sums of all values with signs that are drawn from `seed`, float64 [count].

    For a given array each is about normal, with the array's L2 norm as its standard deviation (Achlioptas 2003): their root mean
    square measures the norm, and the projections of a difference are the difference of the projections.

    Args:
        values: of any shape, in C order. count: at most 32, as each value's signs are the bits of one 32-bit word.
    """
    if not 1 <= count <= 32:
        raise ValueError(f"{count} projections")
    flat = values.reshape(-1)
    # Values with the same signs in eight projections are added up first: four sums by the value of a byte, not 32 by a bit.
    by_byte = np.zeros((4, 256))
    at = 0
    for words in _sign_words(seed, flat.size):
        block = flat[at : at + len(words)].astype(np.float64)
        at += len(words)
        for place, values in enumerate(words.astype("<u4").view(np.uint8).reshape(-1, 4).T):
            by_byte[place] += np.bincount(values, block, 256)
    return (by_byte @ _SIGNS).reshape(-1)[:count]


def _sign_words(seed: bytes, size: int) -> Iterator[np.ndarray]:
    """uint32 words, `size` in all, block by block."""
    key = int.from_bytes(hashlib.sha256(b"hocket-signs/1" + seed).digest()[:16], "little")
    generator = np.random.Philox(key=key)
    for start in range(0, size, _BLOCK_VALUES):
        length = min(_BLOCK_VALUES, size - start)
        raw = generator.random_raw(-(-length // 2)).astype("<u8")
        yield raw.view("<u4")[:length]


def _rms(values: np.ndarray) -> float:
    return math.sqrt(float(np.square(values).mean()))


def _judge(statistics: dict[str, float], limits: dict[str, float]) -> Agreement:
    over = [name for name, limit in limits.items() if not abs(statistics[name]) <= limit]
    words = ", ".join(f"{name} {statistics[name]:.3g} of {limits[name]:.3g}" for name in over)
    return Agreement(not over, f"beyond the limit: {words}" if over else "within the limits", statistics)
