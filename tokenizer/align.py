"""The alignment of a corpus, learnt from the corpus itself in seconds: which frames belong to which phoneme.

Keys are a small perceptron of each phoneme alone, queries one of each frame and its two neighbours. Their distance gives
log p(phoneme | frame) over the phonemes of the utterance. Training maximises the probability of all monotonic paths (a CTC
loss whose every label is a position of the text) and, ramped in over the first 50 steps, the probability of the best path
(binarisation). Monotonic alignment search then gives every phoneme at least one frame.

Choices that matter, in this order: keys without context (with context a key can answer for its neighbours' frames), a
temperature of 0.05, a blank at 0, binarisation from the first step, queries that see one frame to each side. A
beta-binomial prior helps long clips to start; on few clips it locks into a wrong path, so it is off below 32.

Sources: Kim et al. 2020, Glow-TTS (search); Shih et al. 2021, RAD-TTS, and Badlani et al. 2022, One TTS Alignment to Rule
Them All (forward-sum loss, prior, binarisation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from common.errors import Code, HocketError

TEMPERATURE = 0.05
BLANK = 0.0
WARM_UP_STEPS = 20
RAMP_STEPS = 50
LEARNING_RATE = 3e-3
BATCH = 12
PRIOR_FROM_CLIPS = 32
HIDDEN = 128
SPACE = 64
MASKED = -1e4
MAX_BATCH_CELLS = 4_000_000  # frames x phonemes x clips aligned at a time: bounds memory for long clips

Ids = NDArray[np.integer]


def mas(log_probs: NDArray[np.floating], n_frames: Ids, n_phonemes: Ids) -> NDArray[np.int64]:
    """Monotonic alignment search: the path with the highest sum, vectorised over the batch.

    Every phoneme gets at least one frame. A tie stays on the later phoneme as the path is read backwards, so that all-zero
    scores of 6 frames and 3 phonemes give the durations 1, 1, 4.

    Args:
        log_probs: [B, T, P], of phoneme p at frame t. What lies outside an utterance's lengths is not read.
        n_frames: [B], each at least the utterance's n_phonemes.
        n_phonemes: [B], each at least 1.

    Returns:
        Durations int64 [B, P]: frames a phoneme; each row sums to its n_frames.

    Raises:
        HocketError: TOO_FEW_FRAMES if an utterance has fewer frames than phonemes.
    """
    scores = np.asarray(log_probs, dtype=np.float64)
    batch, frames, phonemes = scores.shape
    n_frames, n_phonemes = np.asarray(n_frames, dtype=np.int64), np.asarray(n_phonemes, dtype=np.int64)
    short = np.flatnonzero(n_frames < n_phonemes)
    if len(short):
        first = int(short[0])
        raise HocketError(Code.TOO_FEW_FRAMES, f"{n_frames[first]} frames for {n_phonemes[first]} phonemes")
    value = np.full((batch, phonemes), -np.inf)
    value[:, 0] = scores[:, 0, 0]
    moved = np.zeros((frames, batch, phonemes), dtype=bool)
    step = np.full((batch, phonemes), -np.inf)
    for frame in range(1, frames):
        step[:, 1:] = value[:, :-1]
        moved[frame] = step > value
        value = np.maximum(value, step) + scores[:, frame]
    durations = np.zeros((batch, phonemes), dtype=np.int64)
    place = n_phonemes - 1
    rows = np.arange(batch)
    for frame in range(frames - 1, -1, -1):
        inside = frame < n_frames
        durations[rows, place] += inside
        place = place - (inside & moved[frame, rows, place])
    return durations


def beta_binomial(n_frames: int, n_phonemes: int) -> NDArray[np.float32]:
    """Log of the prior over phonemes for each frame, float32 [T, P]: beta-binomial with n = P - 1, a = t, b = T + 1 - t."""
    n = n_phonemes - 1
    k = np.arange(n_phonemes, dtype=np.float64)
    a = np.arange(1, n_frames + 1, dtype=np.float64)[:, None]
    b = n_frames + 1 - a
    log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    choose = math.lgamma(n + 1) - log_gamma(k + 1) - log_gamma(n - k + 1)
    whole = log_gamma(a) + log_gamma(b) - log_gamma(a + b)
    prior: NDArray[np.float32] = (choose + log_gamma(k + a) + log_gamma(n - k + b) - log_gamma(n + a + b) - whole).astype(np.float32)
    return prior


def forward_sum(log_probs: Tensor, n_frames: Tensor, n_phonemes: Tensor) -> Tensor:
    """Minus log probability of all monotonic paths, per utterance and phoneme: float32 [B].

    Args:
        log_probs: float32 [B, T, P], columns beyond n_phonemes masked with a large negative number.
        n_frames, n_phonemes: int64 [B].
    """
    with_blank = F.pad(log_probs.float(), (1, 0), value=BLANK)  # [B, T, 1 + P]
    normalised = F.log_softmax(with_blank, dim=-1).transpose(0, 1)  # [T, B, 1 + P]
    targets = torch.arange(1, log_probs.shape[2] + 1).expand(len(n_frames), -1)
    losses = F.ctc_loss(normalised, targets, n_frames, n_phonemes, reduction="none", zero_infinity=True)
    return losses / n_phonemes


@dataclass
class _Batch:
    phonemes: Tensor  # int64 [B, P]
    features: Tensor  # float32 [B, T, D]
    n_phonemes: Tensor  # int64 [B]
    n_frames: Tensor  # int64 [B]


def _pad(phonemes: Sequence[Ids], features: Sequence[NDArray[np.float32]]) -> _Batch:
    n_phonemes = [len(ids) for ids in phonemes]
    n_frames = [len(frames) for frames in features]
    ids = np.zeros((len(phonemes), max(n_phonemes)), dtype=np.int64)
    frames = np.zeros((len(features), max(n_frames), features[0].shape[1]), dtype=np.float32)
    for row, (text, sound) in enumerate(zip(phonemes, features, strict=True)):
        ids[row, : len(text)] = text
        frames[row, : len(sound)] = sound
    return _Batch(torch.from_numpy(ids), torch.from_numpy(frames), torch.tensor(n_phonemes), torch.tensor(n_frames))


def _check(phonemes: Sequence[Ids], features: Sequence[NDArray[np.float32]]) -> None:
    for ids, frames in zip(phonemes, features, strict=True):
        if len(ids) == 0:
            raise HocketError(Code.NO_PHONEMES, "an utterance without phonemes cannot be aligned")
        if len(frames) < len(ids):
            raise HocketError(Code.TOO_FEW_FRAMES, f"{len(frames)} frames for {len(ids)} phonemes")


class Aligner:
    """A learnt alignment model; made by `learn_alignment`.

    Args:
        tensors: its weights by name: `mean` and `scale` [D] of the features, and the two perceptrons.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    @classmethod
    def initial(cls, n_symbols: int, features: Sequence[NDArray[np.float32]], seed: int) -> Aligner:
        """Random weights from `seed`, and the features' mean and deviation."""
        frames = np.concatenate(features).astype(np.float64)  # [sum T, D]
        generator = torch.Generator().manual_seed(seed)
        width = frames.shape[1]

        def uniform(*shape: int) -> Tensor:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
            return ((torch.rand(shape, generator=generator) * 2 - 1) * bound).requires_grad_()

        def zeros(size: int) -> Tensor:
            return torch.zeros(size, requires_grad=True)

        return cls({
            "mean": torch.tensor(frames.mean(axis=0), dtype=torch.float32),
            "scale": torch.tensor(frames.std(axis=0) + 1e-5, dtype=torch.float32),
            "symbols": torch.randn((n_symbols, HIDDEN), generator=generator).requires_grad_(),
            "key.1": uniform(HIDDEN, HIDDEN), "key.1.bias": zeros(HIDDEN),
            "key.2": uniform(SPACE, HIDDEN), "key.2.bias": zeros(SPACE),
            "query.1": uniform(HIDDEN, width, 3), "query.1.bias": zeros(HIDDEN),
            "query.2": uniform(HIDDEN, HIDDEN), "query.2.bias": zeros(HIDDEN),
            "query.3": uniform(SPACE, HIDDEN), "query.3.bias": zeros(SPACE),
        })  # fmt: skip

    def log_probs(self, batch: _Batch) -> Tensor:
        """log p(phoneme | frame) float32 [B, T, P]; phonemes beyond an utterance's end get MASKED."""
        weights = self.tensors
        keys = F.embedding(batch.phonemes, weights["symbols"])  # [B, P, H]
        keys = F.linear(torch.relu(F.linear(keys, weights["key.1"], weights["key.1.bias"])), weights["key.2"], weights["key.2.bias"])
        frames = (batch.features - weights["mean"]) / weights["scale"]
        inside = torch.arange(frames.shape[1])[None, :] < batch.n_frames[:, None]  # [B, T]
        frames = frames * inside[..., None]  # beyond its end an utterance sees zeros, whatever it is batched with
        queries = torch.relu(F.conv1d(frames.transpose(1, 2), weights["query.1"], weights["query.1.bias"], padding=1)).transpose(1, 2)
        queries = torch.relu(F.linear(queries, weights["query.2"], weights["query.2.bias"]))
        queries = F.linear(queries, weights["query.3"], weights["query.3.bias"])  # [B, T, S]
        # |q|^2 is the same for all phonemes of a frame, so the softmax does without it.
        scores = TEMPERATURE * (2 * queries @ keys.transpose(1, 2) - keys.square().sum(-1)[:, None])  # [B, T, P]
        beyond = torch.arange(keys.shape[1])[None, :] >= batch.n_phonemes[:, None]  # [B, P]
        return F.log_softmax(scores.masked_fill(beyond[:, None], MASKED), dim=-1)

    def align_all(
        self, phonemes: Sequence[Ids], features: Sequence[NDArray[np.float32]]
    ) -> list[tuple[NDArray[np.uint16], float]]:
        """(durations uint16 [P], score) of each utterance; the score is the mean log probability a frame along its path.

        Args:
            phonemes: ids [P] of each utterance.
            features: float32 [T, D] of each, T >= P.

        Raises:
            HocketError: TOO_FEW_FRAMES, NO_PHONEMES.
        """
        _check(phonemes, features)
        order = sorted(range(len(phonemes)), key=lambda index: (len(features[index]), len(phonemes[index]), index))
        results: list[tuple[NDArray[np.uint16], float] | None] = [None] * len(order)
        start = 0
        while start < len(order):
            widest, stop = 0, start
            while stop < len(order):
                widest = max(widest, len(phonemes[order[stop]]))
                if stop > start and len(features[order[stop]]) * widest * (stop + 1 - start) > MAX_BATCH_CELLS:
                    break
                stop += 1
            chosen = order[start:stop]
            batch = _pad([phonemes[index] for index in chosen], [features[index] for index in chosen])
            with torch.no_grad():
                log_probs = self.log_probs(batch).numpy()
            durations = mas(log_probs, batch.n_frames.numpy(), batch.n_phonemes.numpy())
            for row, index in enumerate(chosen):
                path = durations[row, : len(phonemes[index])]
                on_path = log_probs[row, np.arange(len(features[index])), np.repeat(np.arange(len(path)), path)]
                results[index] = (path.astype(np.uint16), float(on_path.mean()))
            start = stop
        return [result for result in results if result is not None]

    def align(self, phonemes: Ids, features: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float]:
        """Durations uint16 [P] and score of one utterance; see `align_all`."""
        return self.align_all([phonemes], [features])[0]


def learn_alignment(
    phonemes: Sequence[Ids],
    features: Sequence[NDArray[np.float32]],
    *,
    steps: int = 150,
    seed: int = 0,
    n_symbols: int | None = None,
    prior: bool | None = None,
) -> Aligner:
    """Learn the alignment of a corpus.

    Args:
        phonemes: ids [P] of each utterance, 0 not among them.
        features: float32 [T, D] of each utterance, T >= P; a codec's dequantised latents.
        steps: of AdamW, 12 utterances each; 150 are a few seconds of one core.
        seed: of the first weights and of the order of the utterances.
        n_symbols: size of the inventory; the highest id + 1 when not given.
        prior: whether to use the beta-binomial prior; from 32 utterances on when not given.

    Raises:
        HocketError: CORPUS_TOO_SMALL without utterances, TOO_FEW_FRAMES, NO_PHONEMES.
    """
    if not phonemes:
        raise HocketError(Code.CORPUS_TOO_SMALL, "no utterance to learn an alignment from")
    _check(phonemes, features)
    use_prior = len(phonemes) >= PRIOR_FROM_CLIPS if prior is None else prior
    aligner = Aligner.initial(n_symbols or int(max(int(np.max(ids)) for ids in phonemes)) + 1, features, seed)
    trained = [tensor for tensor in aligner.tensors.values() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.98))
    draw = np.random.default_rng(seed)
    queue: list[int] = []
    for step in range(steps):
        while len(queue) < min(BATCH, len(phonemes)):
            queue.extend(int(index) for index in draw.permutation(len(phonemes)))
        chosen, queue = queue[:BATCH], queue[BATCH:]
        batch = _pad([phonemes[index] for index in chosen], [features[index] for index in chosen])
        log_probs = aligner.log_probs(batch)
        if use_prior:
            log_probs = F.log_softmax(log_probs + _prior(batch), dim=-1)
        with torch.no_grad():
            durations = mas(log_probs.numpy(), batch.n_frames.numpy(), batch.n_phonemes.numpy())
        loss = forward_sum(log_probs, batch.n_frames, batch.n_phonemes).mean()
        loss = loss + min(1.0, step / RAMP_STEPS) * binarisation(log_probs, durations)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return Aligner({name: tensor.detach() for name, tensor in aligner.tensors.items()})


def _prior(batch: _Batch) -> Tensor:
    """The prior of each utterance, float32 [B, T, P]; MASKED beyond its phonemes."""
    prior = torch.full((len(batch.n_frames), batch.features.shape[1], batch.phonemes.shape[1]), MASKED)
    for row, (frames, phonemes) in enumerate(zip(batch.n_frames.tolist(), batch.n_phonemes.tolist(), strict=True)):
        prior[row, :frames, :phonemes] = torch.from_numpy(beta_binomial(frames, phonemes))
        prior[row, frames:, :phonemes] = 0.0
    return prior


def binarisation(log_probs: Tensor, durations: NDArray[np.int64]) -> Tensor:
    """Minus the mean log probability of the frames on the given paths.

    Args:
        log_probs: [B, T, P]. durations: int64 [B, P].
    """
    rows, frames, columns = [], [], []
    for row, path in enumerate(durations):
        total = int(path.sum())
        rows.append(np.full(total, row))
        frames.append(np.arange(total))
        columns.append(np.repeat(np.arange(len(path)), path))
    where = [torch.from_numpy(np.concatenate(part)) for part in (rows, frames, columns)]
    return -log_probs[where[0], where[1], where[2]].mean()
