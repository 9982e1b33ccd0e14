"""Cheap checks of what crosses an edge between two stages, before anything is computed with it.

Finiteness, shapes and digests are settled where tensors are read (`node.wire`). Here is what takes a memory: how large the hidden
states and gradients of this edge usually are, and whether the same ones have come before. The estimate is of the logarithm of the
root mean square over all valid steps; its level and its spread are running means that one odd value moves by a bounded step only,
after the running estimates per edge of Sentinel (arXiv 2603.03592).

What is a thousand times too large is refused: it would be clipped, but it would drown the inner step that it is summed into. What
is merely odd, or came before, is worked on and named in the member's report, so that the coordinator can have it recomputed. An
odd value proves nothing, and a cheat within the band is not seen here: that is what redundant passes are for.

Pure: private state that is changed in place, no clock, no randomness.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from protocol.generated import hocket_pb2 as pb

WARM_UP = 8
MOMENTUM = 0.95
REFUSED_LOG = math.log(1000.0)
ODD_LOG = math.log(4.0)
ODD_SPREADS = 8.0
STEP_SPREADS = 3.0
LEAST_SPREAD = 0.05
PATIENCE = 16
SKETCH_STEPS = 16
SKETCH_WIDTH = 64
SKETCHES_KEPT = 256
DIGESTS_KEPT = 4096
NEAR_COSINE = 0.9999
ZERO_SHARE = 1 / 32
ODDITIES_KEPT = 16
_FLOOR = 1e-30


@dataclass(frozen=True)
class Finding:
    """What is said of one arrival.

    Args:
        refused: it must not be computed with. reason: for people; empty where nothing is odd.
    """

    refused: bool = False
    reason: str = ""


class RunningScale:
    """Level and spread of the logarithm of a positive quantity, learnt from the first values and then followed slowly."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._level = 0.0
        self._spread = 0.0
        self._refused = 0

    @property
    def warm(self) -> bool:
        """Whether there is an estimate."""
        return len(self._first) >= WARM_UP

    def judge(self, scale: float) -> Finding:
        """Compare a value with the estimate and let it into the estimate, by a bounded step; a refused one stays out.

        After 16 refusals in a row it is the estimate that is given up: what changed is not one sender's doing, or there is only
        one sender, and a run must not stand still over it.

        Args:
            scale: not negative; infinity and NaN are refused.
        """
        if not math.isfinite(scale):
            return Finding(True, "its norm is not finite")
        value = math.log(max(scale, _FLOOR))
        if not self.warm:
            self._learn(value)
            return Finding()
        deviation = value - self._level
        if deviation > REFUSED_LOG:
            self._refused += 1
            if self._refused < PATIENCE:
                return Finding(True, f"its norm is {math.exp(min(deviation, 700.0)):.3g} times the usual")
            self._first, self._refused = [], 0
            self._learn(value)
            return Finding(False, f"its norm and those of the {PATIENCE - 1} before are far above what was usual")
        self._refused = 0
        odd = max(ODD_LOG, ODD_SPREADS * self._spread)
        step = max(-STEP_SPREADS * self._spread, min(STEP_SPREADS * self._spread, deviation))
        self._level += (1 - MOMENTUM) * step
        self._spread = max(LEAST_SPREAD, MOMENTUM * self._spread + (1 - MOMENTUM) * abs(step))
        return Finding(False, f"its norm is {math.exp(deviation):.3g} times the usual") if abs(deviation) > odd else Finding()

    def _learn(self, value: float) -> None:
        self._first.append(value)
        if self.warm:
            # Medians: of the first values, up to three may be anybody's.
            self._level = float(np.median(self._first))
            self._spread = max(LEAST_SPREAD, float(np.median(np.abs(np.array(self._first) - self._level))))


class Repeats:
    """Recognises tensors that came before under another microbatch id, to the bit or nearly."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, int] = OrderedDict()
        self._sketches: deque[tuple[int, np.ndarray]] = deque(maxlen=SKETCHES_KEPT)

    def judge(self, identifier: int, sketch: np.ndarray, digest: bytes) -> str:
        """What it repeats; empty: nothing.

        Args:
            sketch: float32 [n], of length 1 or all zeros. digest: of the bytes as they came.
        """
        before = self._digests.setdefault(digest, identifier)
        if len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        found = f"the same bytes came for microbatch {before}" if before != identifier else ""
        if not found and self._sketches and sketch.any():
            others = np.stack([one for _, one in self._sketches])  # [m, n]
            alike = others @ sketch  # [m]
            for index in np.flatnonzero(alike > NEAR_COSINE):
                if self._sketches[int(index)][0] != identifier:
                    found = f"nearly the same came for microbatch {self._sketches[int(index)][0]}"
                    break
        if not any(known == identifier for known, _ in self._sketches):
            self._sketches.append((identifier, sketch))
        return found


@dataclass
class _Edge:
    scale: RunningScale = field(default_factory=RunningScale)
    repeats: Repeats = field(default_factory=Repeats)


class EdgeChecks:
    """What a replica knows of the tensors that reach it; lives on from round to round.

    One estimate for all senders of a stage: replicas of a stage compute the same function, so an odd one stands out.
    """

    def __init__(self) -> None:
        self._edges = {"hidden": _Edge(), "grad": _Edge()}
        self._oddities: deque[pb.Oddity] = deque(maxlen=ODDITIES_KEPT)

    @property
    def oddities(self) -> list[pb.Oddity]:
        """What was odd in this round: the newest ones, at most 16."""
        return list(self._oddities)

    def begin_round(self) -> None:
        """Forget the oddities and the repeats of the round before; the estimates stay."""
        self._oddities.clear()
        for edge in self._edges.values():
            edge.repeats = Repeats()

    def arrived(
        self, what: str, member: str, identifier: int, tensor: np.ndarray, n_frames: np.ndarray, digest: bytes
    ) -> Finding:
        """Judge hidden states or their gradient before they are used.

        Args:
            what: `hidden` or `grad`.
            member: member id of the sender. identifier: of the microbatch.
            tensor: float32 [B, S, D], finite. n_frames: [B], each at most S. digest: SHA-256 of the tensor's bytes on the wire.
        """
        squares = squares_of_steps(tensor, n_frames)
        edge = self._edges[what]
        finding = edge.scale.judge(math.sqrt(float(squares.mean()) / tensor.shape[2]))
        if not finding.refused and not finding.reason:
            reason = edge.repeats.judge(identifier, sketch_of(tensor, n_frames), digest)
            empty = int((squares == 0).sum())
            if not reason and empty > ZERO_SHARE * squares.size:
                reason = f"{empty} of {squares.size} steps are zero"
            finding = Finding(False, reason)
        if finding.reason:
            self._oddities.append(
                pb.Oddity(member_id=member, microbatch_id=identifier, what=what, reason=finding.reason, refused=finding.refused)
            )
        return finding


def squares_of_steps(tensor: np.ndarray, n_frames: np.ndarray) -> np.ndarray:
    """Sum of squares of each valid step: float64 [sum of n_frames], from [B, S, D]; infinite where float32 cannot hold it."""
    with np.errstate(over="ignore"):
        squares = np.einsum("bsd,bsd->bs", tensor, tensor)  # [B, S]
    return squares[np.arange(tensor.shape[1])[None, :] < np.asarray(n_frames)[:, None]].astype(np.float64)


def sketch_of(tensor: np.ndarray, n_frames: np.ndarray) -> np.ndarray:
    """A small part of a tensor by which it is recognised: 16 valid steps of the first utterance, 64 channels, less their mean,
    scaled to length 1.

    Args:
        tensor: float32 [B, S, D]. n_frames: [B].

    Returns: float32 [1024]; zeros where there is nothing.
    """
    steps = np.linspace(0, int(n_frames[0]) - 1, SKETCH_STEPS).round().astype(np.int64)
    channels = np.linspace(0, tensor.shape[2] - 1, SKETCH_WIDTH).round().astype(np.int64)
    part = tensor[0][steps][:, channels].astype(np.float64)  # [16, 64]
    part -= part.mean(axis=0)  # what all steps share would make all utterances alike
    length = float(np.linalg.norm(part))
    return (part / length if length > 0 else part).reshape(-1).astype(np.float32)
