"""The one way from n updates to one: clip to the median norm, bucketing or mixing, the rule; chunk by chunk.

What has to be known of whole updates (their inner products) is gathered in passes of their own. They leave numbers: what each
update is multiplied by, which ones are averaged, with which weights they are summed. The last pass applies these to one chunk of
coordinates after the other, so that memory holds some chunks of each update, whatever their size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Protocol, TypeVar

import numpy as np

from coordinator.rules.bucketing import bucket_matrix
from coordinator.rules.centred_clipping import centred_clipping_weights
from coordinator.rules.clipping import clip_factors
from coordinator.rules.coordinatewise import ends_trimmed, mean_of, middle, trimmed_mean
from coordinator.rules.geometric_median import geometric_median_weights
from coordinator.rules.gram import gram_of
from coordinator.rules.krum import krum_weights
from coordinator.rules.mixing import mixing_matrix
from coordinator.rules.plan import KRUM, Plan

COORDINATEWISE = ("mean", "median", "trimmed_mean")
# Inner products are summed in order over pieces of so many coordinates, whatever the chunk: equal updates give equal bits.
GRAM_VALUES = 1 << 15
# What went in of each update is counted on about so many coordinates, spread evenly.
COUNTED_VALUES = 1 << 18
SCRATCH_BYTES = 1 << 22

T = TypeVar("T")


class Updates(Protocol):
    """`count` updates of `size` coordinates each."""

    count: int
    size: int

    def read(self, index: int, start: int, into: np.ndarray) -> None:
        """Coordinates of one update from `start` on, as many as `into`, float32 [m], has room for. Several threads call it."""


class ArrayUpdates:
    """Updates in memory: float32 [n, size]."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows
        self.count, self.size = rows.shape

    def read(self, index: int, start: int, into: np.ndarray) -> None:
        into[:] = self._rows[index, start : start + len(into)]


class Scratch:
    """Room for one chunk of every update, and what else a worker needs for it.

    Args:
        inputs: updates. rows: what the rule sees. values: of a chunk.
    """

    def __init__(self, inputs: int, rows: int, values: int) -> None:
        self.inputs = np.empty((inputs, values), np.float32)
        self.rows = np.empty((rows, values), np.float32)
        self.spare = np.empty(values, np.float32)
        self.row = np.empty(values, np.float32)
        self.out = np.empty(values, np.float32)


class Aggregation:
    """The aggregate of some updates.

    Args:
        updates: finite ones. norms: L2 norm of each.
        plan: for as many updates.
        seed: of the draw of buckets.
        threads: that work on chunks. chunk: coordinates of one; None: what fits a cache. Neither changes a bit of the result.

    Attributes:
        clips: what each update is multiplied by.
    """

    def __init__(
        self, updates: Updates, plan: Plan, norms: Sequence[float], seed: bytes, *, threads: int = 2, chunk: int | None = None
    ) -> None:
        if updates.count != plan.n or len(norms) != plan.n or plan.n == 0:
            raise ValueError(f"{updates.count} updates with {len(norms)} norms for a plan of {plan.n}")
        self._updates, self._plan, self._threads = updates, plan, threads
        self.clips = clip_factors(norms) if plan.clip else [1.0] * plan.n
        self._chunk = chunk or chunk_values(plan.n)
        self._trimmed = ends_trimmed(plan.rule, plan.rows, plan.f)
        self._matrix = self._preparation(seed)
        self._weights = None if plan.rule in COORDINATEWISE else self._weigh()
        self._kept = np.zeros(plan.rows)

    # ---- passes over everything --------------------------------------------------------------------------------------

    def chunks(self) -> Generator[np.ndarray]:
        """The aggregate, float32, chunk by chunk in order. Each array is good until the next one is asked for.

        Close what is not read to its end before the updates are closed: threads read ahead.
        """
        sampled = max(1, self._updates.size // COUNTED_VALUES)

        def work(number: int, start: int, values: int, scratch: Scratch) -> tuple[np.ndarray, np.ndarray | None]:
            out = scratch.out[:values]
            if self._weights is not None:
                self._weighted(start, scratch, self._weights, out)
                return out, None
            rows = self._prepared(start, values, scratch)
            counted = self._trimmed > 0 and number % sampled == 0
            before = [row.copy() for row in rows] if counted else []
            kept = trimmed_mean(rows, scratch.spare[:values], self._trimmed, out)
            return out, kept_counts(before, kept[0], kept[-1]) if counted else None

        self._kept[:] = 0
        with closing(self._each_chunk(work, self._chunk)) as parts:
            for out, kept in parts:
                if kept is not None:
                    self._kept += kept
                yield out

    def trimmed_shares(self) -> list[float]:
        """How much of each update did not go in, compared with an equal share, 0 to 1; known when all chunks were made.

        Coordinates are counted on a sample of them where there are many.
        """
        plan = self._plan
        if self._weights is not None:
            shares = self._weights[: plan.n] / max(self._weights[: plan.n].sum(), 1e-300)
        else:
            counted = self._kept.sum()
            shares = self._kept / counted if counted else np.full(plan.rows, 1.0 / plan.rows)
            if self._matrix is not None:
                shares = shares @ self._matrix
        return [float(1.0 - min(1.0, plan.n * share * clip)) for share, clip in zip(shares, self.clips, strict=True)]

    def _each_chunk(self, work: Callable[[int, int, int, Scratch], T], chunk: int) -> Generator[T]:
        """Results of `work(number, start, values, scratch)` in order; it runs in threads, some chunks ahead."""
        rows = self._plan.rows if self._matrix is not None else 0
        size = self._updates.size
        starts = range(0, size, chunk)
        ahead = min(self._threads + 1, len(starts))
        free = [Scratch(self._plan.n, rows, min(chunk, size)) for _ in range(ahead)]
        if ahead <= 1:
            for start in starts:
                yield work(0, start, size, free[0])
            return
        waiting: deque[tuple[Future[T], Scratch]] = deque()
        with ThreadPoolExecutor(self._threads, "aggregation") as pool:
            try:
                for number, start in enumerate(starts):
                    if not free:
                        future, scratch = waiting.popleft()
                        yield future.result()
                        free.append(scratch)
                    scratch = free.pop()
                    waiting.append((pool.submit(work, number, start, min(chunk, size - start), scratch), scratch))
                while waiting:
                    yield waiting.popleft()[0].result()
            finally:
                for future, _ in waiting:
                    future.cancel()

    # ---- one chunk ---------------------------------------------------------------------------------------------------

    def _read(self, start: int, values: int, scratch: Scratch) -> list[np.ndarray]:
        """A chunk of each update, clipped."""
        rows = [row[:values] for row in scratch.inputs]
        for index, row in enumerate(rows):
            self._updates.read(index, start, row)
            if self.clips[index] != 1.0:
                row *= np.float32(self.clips[index])
        return rows

    def _prepared(self, start: int, values: int, scratch: Scratch) -> list[np.ndarray]:
        """A chunk of what the rule sees."""
        rows = self._read(start, values, scratch)
        if self._matrix is None:
            return rows
        prepared = [row[:values] for row in scratch.rows]
        for shares, out in zip(self._matrix, prepared, strict=True):
            # All shares of a bucket or a neighbourhood are equal: it is a mean.
            mean_of([row for row, share in zip(rows, shares, strict=True) if share], out)
        return prepared

    def _weighted(self, start: int, scratch: Scratch, weights: np.ndarray, out: np.ndarray) -> None:
        """A chunk of the sum of clipped updates under `weights`.

        With one weight more, the last one is the centre's, and the sum is kept within the middle values of each column.
        """
        values, row = len(out), scratch.row[: len(out)]
        kept: list[np.ndarray] = []
        if len(weights) > self._plan.n:
            kept = middle(self._prepared(start, values, scratch), scratch.spare[:values], self._plan.f)
            mean_of(kept[(len(kept) - 1) // 2 : len(kept) // 2 + 1], out)
            out *= np.float32(weights[-1])
        else:
            out[:] = 0
        for index, (weight, clip) in enumerate(zip(weights, self.clips, strict=False)):
            if weight:
                self._updates.read(index, start, row)
                row *= np.float32(weight * clip)
                out += row
        if kept:
            np.clip(out, kept[0], kept[-1], out=out)

    # ---- what whole updates tell -------------------------------------------------------------------------------------

    def _middle(self) -> int:
        return ends_trimmed("median", self._plan.rows, 0)

    def _preparation(self, seed: bytes) -> np.ndarray | None:
        """Shares [rows, n] of the updates in what the rule sees; None: the rule sees the updates."""
        self._matrix = None
        if self._plan.prepare == "bucketing":
            return bucket_matrix(self._plan.n, seed)
        if self._plan.prepare == "mixing":
            return mixing_matrix(self._products(), self._plan.f)
        return None

    def _weigh(self) -> np.ndarray:
        """Weights of the clipped updates in the result [n]; for centred clipping one more, of its centre."""
        plan, matrix = self._plan, self._matrix
        centred = plan.rule == "centred_clipping"
        gram = self._products(centre=centred)
        if centred:
            weights = centred_clipping_weights(gram)
            return weights if matrix is None else np.append(weights[:-1] @ matrix, weights[-1])
        if plan.rule in KRUM:
            weights = krum_weights(gram, plan.f, 1 if plan.rule == "krum" else plan.rows - plan.f)
        else:
            weights = geometric_median_weights(gram)
        return weights if matrix is None else weights @ matrix

    def _products(self, *, centre: bool = False) -> np.ndarray:
        """Inner products of what the rule sees, float64 [rows, rows]; with the coordinate-wise median as one more row."""
        seen = self._plan.rows if self._matrix is not None else self._plan.n
        total = np.zeros((seen + centre, seen + centre))

        def work(number: int, start: int, values: int, scratch: Scratch) -> np.ndarray:
            rows = self._prepared(start, values, scratch)
            block = np.empty((seen + centre, values), np.float32)
            block[:seen] = rows
            if centre:
                trimmed_mean(rows, scratch.spare[:values], self._middle(), block[seen])
            return gram_of(block)

        for part in self._each_chunk(work, GRAM_VALUES):
            total += part
        return total


def chunk_values(n: int) -> int:
    """Coordinates of a chunk, so that one of each of `n` updates stays in a processor's cache."""
    values = 1 << 16
    while values > 1 << 12 and (n + 2) * values * 4 > SCRATCH_BYTES:
        values //= 2
    return values


def kept_counts(rows: Sequence[np.ndarray], least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """In how many coordinates each row, float32 [m], lies between what is kept at least and at most: [n]."""
    return np.array([np.count_nonzero((row >= least) & (row <= most)) for row in rows], np.float64)
