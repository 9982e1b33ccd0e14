"""Speakers from embeddings of windows: agglomerative clustering in bounded memory, and labels that do not flutter. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 256  # embeddings that are clustered together first
POOL = 512  # nodes that are kept at most: the largest table of similarities is [POOL, POOL]
COHERENCE = 0.79  # mean cosine of two windows of one speaker, as measured; what a cluster of few windows is believed to have
PRIOR_PAIRS = 16.0  # pairs of whole windows that this belief weighs as much as


@dataclass(frozen=True)
class ClusterSettings:
    """
    Args:
        threshold: clusters that are at least as similar are one speaker; calibrated in docs/measurements.md.
        min_weight: less speech (in whole windows of 1.6 s) is no speaker of its own.
        min_frames: windows with fewer frames of speech are given to the speakers that the others make; their embeddings lie
            nearer to each other, whoever speaks. Where there are only such, they are clustered.
        speakers: how many there are, where it is known.
        change_cost, change_cost_within: what a change of the speaker from one window to the next must gain in similarity, after a
            silence and without one.
    """

    threshold: float = 0.84
    min_weight: float = 4.0
    min_frames: int = 100
    speakers: int | None = None
    change_cost: float = 0.02
    change_cost_within: float = 0.15


@dataclass(frozen=True)
class Nodes:
    """Clusters of unit vectors: weighted sums [N, D], weights [N], and sums of the squared weights [N]."""

    sums: NDArray[np.float32]
    weights: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, places: NDArray) -> Nodes:
        return Nodes(self.sums[places], self.weights[places], self.squares[places])

    @staticmethod
    def of(vectors: NDArray[np.float32], weights: NDArray[np.float64]) -> Nodes:
        """One node for each unit vector [N, D]."""
        weights = np.asarray(weights, np.float64)
        return Nodes(np.asarray(vectors * weights[:, None], np.float32), weights, weights**2)

    @staticmethod
    def join(parts: Iterable[Nodes]) -> Nodes:
        kept = list(parts)
        return Nodes(*(np.concatenate([getattr(part, name) for part in kept]) for name in ("sums", "weights", "squares")))

    def coherence(self) -> NDArray[np.float64]:
        """[N]: the mean cosine of two different members, drawn towards COHERENCE where there are few."""
        pairs = self.weights**2 - self.squares
        found = np.einsum("nd,nd->n", self.sums, self.sums, dtype=np.float64) - self.squares
        return np.maximum((found + COHERENCE * PRIOR_PAIRS) / (pairs + PRIOR_PAIRS), 0.05)

    def similarity(self, row: int | None = None) -> NDArray[np.float32]:
        """[N, N], or [N] of one node to all: the mean cosine between members of two clusters, over what it is within them.

        The mean of two clusters' cosines falls as their members scatter, however alike their centres are; a cosine of centres
        rises with the number of members. Their quotient estimates the cosine of the centres that unlimited speech would give.
        """
        scale = 1 / (self.weights * np.sqrt(self.coherence()))
        scaled = np.asarray(self.sums * scale[:, None], np.float32)
        return scaled @ scaled.T if row is None else scaled @ scaled[row]

    def centroids(self) -> NDArray[np.float32]:
        """[N, D], of unit length."""
        return self.sums / np.maximum(np.linalg.norm(self.sums, axis=1, keepdims=True), 1e-12)


def agglomerate(nodes: Nodes, threshold: float, at_most: int | None = None) -> Nodes:
    """Join the two most similar nodes, again and again, while they are as similar as `threshold` or more than `at_most`."""
    sums, weights, squares = nodes.sums.copy(), nodes.weights.copy(), nodes.squares.copy()
    alive = np.ones(len(nodes), bool)
    table = nodes.similarity()
    np.fill_diagonal(table, -np.inf)
    left = len(nodes)
    while left > 1:
        kept, gone = sorted(divmod(int(table.argmax()), len(nodes)))
        if table[kept, gone] < threshold and (at_most is None or left <= at_most):
            break
        sums[kept] += sums[gone]
        weights[kept] += weights[gone]
        squares[kept] += squares[gone]
        alive[gone] = False
        table[gone], table[:, gone] = -np.inf, -np.inf
        row = np.where(alive, Nodes(sums, weights, squares).similarity(kept), -np.inf)
        row[kept] = -np.inf
        table[kept], table[:, kept] = row, row
        left -= 1
    return Nodes(sums, weights, squares).take(np.flatnonzero(alive))


class Clusterer:
    """Clusters of a stream of embeddings. Memory is bounded by BLOCK and POOL; the same stream gives the same clusters."""

    def __init__(self, settings: ClusterSettings = ClusterSettings()) -> None:
        self.settings = settings
        self._pool: Nodes | None = None
        self._block: list[Nodes] = []
        self._waiting = 0
        self._taken = 0

    def __len__(self) -> int:
        """How many embeddings were taken."""
        return self._taken

    def push(self, vectors: NDArray[np.float32], weights: NDArray[np.float64]) -> None:
        """Take embeddings [N, D] of unit length and their weights [N], in whole windows."""
        nodes = Nodes.of(vectors, weights)
        self._taken += len(nodes)
        while len(nodes):
            room = BLOCK - self._waiting
            self._block.append(nodes.take(np.arange(min(room, len(nodes)))))
            self._waiting += len(self._block[-1])
            nodes = nodes.take(np.arange(min(room, len(nodes)), len(nodes)))
            if self._waiting == BLOCK:
                self._settle()

    def _settle(self) -> None:
        """Cluster the waiting block and let its clusters into the pool, which is made smaller where it would overflow."""
        if not self._block:
            return
        fresh = agglomerate(Nodes.join(self._block), self.settings.threshold)
        self._block, self._waiting = [], 0
        self._pool = fresh if self._pool is None else Nodes.join([self._pool, fresh])
        if len(self._pool) > POOL - BLOCK:
            self._pool = agglomerate(self._pool, self.settings.threshold, POOL - BLOCK)

    def finish(self) -> Nodes:
        """The speakers' clusters, the one with most speech first. Those with too little speech are left out."""
        self._settle()
        if self._pool is None:
            return Nodes(np.zeros((0, 0), np.float32), np.zeros(0), np.zeros(0))
        wanted = self.settings.speakers
        threshold = self.settings.threshold
        found = self._large(agglomerate(self._pool, threshold))
        if wanted is not None:
            while len(found) < wanted and threshold < 1.2:
                threshold += 0.02
                found = self._large(agglomerate(self._pool, threshold))
            found = agglomerate(found, np.inf, wanted)
        return found.take(np.argsort(-found.weights, kind="stable"))

    def _large(self, nodes: Nodes) -> Nodes:
        large = np.flatnonzero(nodes.weights >= self.settings.min_weight)
        return nodes.take(large if len(large) else np.array([int(nodes.weights.argmax())]))


def decode(scores: NDArray[np.float32], changes: NDArray[np.float32]) -> NDArray[np.int64]:
    """The labels [N] with the highest sum of scores [N, K], less `changes` [N] where a label is another than before (Viterbi)."""
    n, k = scores.shape
    back = np.zeros((n, k), np.int32)
    best = scores[0].astype(np.float64)
    stay = np.arange(k)
    for place in range(1, n):
        leader = int(best.argmax())
        moved = best[leader] - changes[place]
        back[place] = np.where(best >= moved, stay, leader)
        best = np.maximum(best, moved) + scores[place]
    labels = np.empty(n, np.int64)
    labels[-1] = int(best.argmax())
    for place in range(n - 1, 0, -1):
        labels[place - 1] = back[place, labels[place]]
    return labels
