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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from common.errors import Code, HocketError
from tokenizer.mas import mas, mas_of_blocks

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
MAX_BATCH_CELLS = 250_000  # frames x phonemes (or symbols) x clips aligned at a time: 1 MB a table of scores, 10 MB of states

STATISTICS_CLIPS = 4096  # mean and deviation of the features are taken from as many clips at most
WINDOW_VALUES = 1_000_000  # features read ahead at a time: 4 MB

Ids = NDArray[np.integer]
Features = Sequence[NDArray[np.float32]] | Callable[[int], NDArray[np.float32]]
"""float32 [T, D] of each utterance, or a function that reads those of one by its index: a corpus need not be in memory."""


def beta_binomial(n_frames: Tensor, n_phonemes: Tensor) -> Tensor:
    """Log of the prior over phonemes for each frame: beta-binomial with n = P - 1, a = t, b = T + 1 - t, t from 1.

    Args:
        n_frames, n_phonemes: int64 [B].

    Returns:
        float32 [B, max T, max P]; MASKED beyond an utterance's phonemes, 0 beyond its frames.
    """
    longest, most = int(n_frames.max()), int(n_phonemes.max())
    prior = torch.empty(len(n_frames), longest, most)
    for row, (frames, phonemes) in enumerate(zip(n_frames.tolist(), n_phonemes.tolist(), strict=True)):
        # One utterance at a time: in double precision there are a dozen tables of this size.
        prior[row] = _prior_of(frames, phonemes, longest, most)
    return prior


def _prior_of(n_frames: int, n_phonemes: int, longest: int, most: int) -> Tensor:
    """`beta_binomial` of one utterance, float64 [longest, most]."""
    n = n_phonemes - 1
    k = torch.arange(most, dtype=torch.float64)[None, :]
    a = torch.arange(1, longest + 1, dtype=torch.float64)[:, None]
    rest = (n - k).clamp_min(0)
    b = (n_frames + 1 - a).clamp_min(1)
    choose = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(rest + 1)
    whole = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    prior = choose + torch.lgamma(k + a) + torch.lgamma(rest + b) - torch.lgamma(n + a + b) - whole
    return prior.masked_fill(a > n_frames, 0.0).masked_fill(k > n, MASKED)


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


def reader_of(features: Features) -> Callable[[int], NDArray[np.float32]]:
    """The function that gives the features [T, D] of an utterance by its index."""
    return features if callable(features) else features.__getitem__


def _statistics(n_clips: int, read: Callable[[int], NDArray[np.float32]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation [D] of the frames of at most STATISTICS_CLIPS clips, spread evenly over all; one clip in memory."""
    total, squares, count = np.zeros(0), np.zeros(0), 0
    origin = np.zeros(0)
    chosen = np.unique(np.linspace(0, n_clips - 1, min(n_clips, STATISTICS_CLIPS)).astype(np.int64))
    for index in chosen:
        frames = read(int(index)).astype(np.float64)  # [T, D]
        if not count:
            # Sums of differences from a value near the mean: those of the squares then lose no digits.
            origin = frames.mean(axis=0)
            total, squares = np.zeros_like(origin), np.zeros_like(origin)
        total += (frames - origin).sum(axis=0)
        squares += np.square(frames - origin).sum(axis=0)
        count += len(frames)
    mean = total / count
    return origin + mean, np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))


def _check(phonemes: Sequence[Ids], features: Sequence[NDArray[np.float32]]) -> None:
    for ids, frames in zip(phonemes, features, strict=True):
        if len(ids) == 0:
            raise HocketError(Code.NO_PHONEMES, "an utterance without phonemes cannot be aligned")
        if len(frames) < len(ids):
            raise HocketError(Code.TOO_FEW_FRAMES, f"{len(frames)} frames for {len(ids)} phonemes")


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Minus the scaled squared distances [B, T, P], but for |q|^2, which is the same for all keys of a frame."""
    return TEMPERATURE * (2 * queries @ keys.transpose(-1, -2) - keys.square().sum(-1).unsqueeze(-2))


class Aligner:
    """A learnt alignment model; made by `learn_alignment`.

    Args:
        tensors: its weights by name: `mean` and `scale` [D] of the features, `learnt` [V] (1 for the symbols that the
            corpus has), and the two perceptrons.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    @classmethod
    def initial(cls, n_symbols: int, phonemes: Sequence[Ids], features: Features, seed: int) -> Aligner:
        """Random weights from `seed`, the features' mean and deviation, and which symbols there are."""
        mean, deviation = _statistics(len(phonemes), reader_of(features))
        generator = torch.Generator().manual_seed(seed)
        width = len(mean)
        learnt = np.bincount(np.concatenate(phonemes).astype(np.int64), minlength=n_symbols)

        def uniform(*shape: int) -> Tensor:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
            return ((torch.rand(shape, generator=generator) * 2 - 1) * bound).requires_grad_()

        def zeros(size: int) -> Tensor:
            return torch.zeros(size, requires_grad=True)

        return cls({
            "mean": torch.tensor(mean, dtype=torch.float32),
            "scale": torch.tensor(deviation + 1e-5, dtype=torch.float32),
            "learnt": torch.tensor(learnt > 0, dtype=torch.float32),
            "symbols": torch.randn((n_symbols, HIDDEN), generator=generator).requires_grad_(),
            "key.1": uniform(HIDDEN, HIDDEN), "key.1.bias": zeros(HIDDEN),
            "key.2": uniform(SPACE, HIDDEN), "key.2.bias": zeros(SPACE),
            "query.1": uniform(HIDDEN, width, 3), "query.1.bias": zeros(HIDDEN),
            "query.2": uniform(HIDDEN, HIDDEN), "query.2.bias": zeros(HIDDEN),
            "query.3": uniform(SPACE, HIDDEN), "query.3.bias": zeros(SPACE),
        })  # fmt: skip

    def copy_for(self, n_symbols: int, phonemes: Sequence[Ids]) -> Aligner:
        """A copy to go on learning with, on texts that may have further symbols of its table."""
        if n_symbols != len(self.tensors["symbols"]):
            detail = f"{n_symbols} symbols for an aligner of {len(self.tensors['symbols'])}"
            raise HocketError(Code.INPUT_INVALID, detail)
        fixed = {"mean", "scale", "learnt"}
        copy = {name: tensor.clone().requires_grad_(name not in fixed) for name, tensor in self.tensors.items()}
        used = np.bincount(np.concatenate(phonemes).astype(np.int64), minlength=n_symbols) > 0
        copy["learnt"] = torch.maximum(copy["learnt"], torch.tensor(used, dtype=torch.float32))
        return Aligner(copy)

    def fitted_to(self, n_clips: int, features: Features) -> Aligner:
        """This aligner with the features' mean and deviation of another corpus: another voice, microphone or room shifts
        them, and what was learnt relies on them. It has learnt none of that corpus's texts."""
        mean, deviation = _statistics(n_clips, reader_of(features))
        self._check_width(len(mean))
        scale = torch.tensor(deviation + 1e-5, dtype=torch.float32)
        return Aligner({**self.tensors, "mean": torch.tensor(mean, dtype=torch.float32), "scale": scale})

    def _keys(self, phonemes: Tensor) -> Tensor:
        """[..., S] of phoneme ids [...]."""
        weights = self.tensors
        hidden = F.embedding(phonemes, weights["symbols"])
        hidden = torch.relu(F.linear(hidden, weights["key.1"], weights["key.1.bias"]))
        return F.linear(hidden, weights["key.2"], weights["key.2.bias"])

    def _queries(self, batch: _Batch) -> Tensor:
        """[B, T, S] of the frames."""
        weights = self.tensors
        frames = (batch.features - weights["mean"]) / weights["scale"]
        inside = torch.arange(frames.shape[1])[None, :] < batch.n_frames[:, None]  # [B, T]
        frames = frames * inside[..., None]  # beyond its end an utterance sees zeros, whatever it is batched with
        hidden = F.conv1d(frames.transpose(1, 2), weights["query.1"], weights["query.1.bias"], padding=1)
        hidden = torch.relu(F.linear(torch.relu(hidden).transpose(1, 2), weights["query.2"], weights["query.2.bias"]))
        return F.linear(hidden, weights["query.3"], weights["query.3.bias"])

    def log_probs(self, batch: _Batch) -> Tensor:
        """log p(place in the text | frame) float32 [B, T, P]; places beyond an utterance's end get MASKED."""
        scores = _scores(self._queries(batch), self._keys(batch.phonemes))
        beyond = torch.arange(batch.phonemes.shape[1])[None, :] >= batch.n_phonemes[:, None]  # [B, P]
        return F.log_softmax(scores.masked_fill(beyond[:, None], MASKED), dim=-1)

    def symbol_log_probs(self, batch: _Batch) -> Tensor:
        """log p(symbol | frame) float32 [B, T, V] over the symbols that the aligner has learnt and those of the utterance."""
        inventory = torch.arange(len(self.tensors["symbols"]))
        scores = _scores(self._queries(batch), self._keys(inventory))
        present = F.one_hot(batch.phonemes, len(inventory)).sum(1) > 0  # [B, V]
        allowed = present | (self.tensors["learnt"] > 0)
        allowed[:, 0] = False
        return F.log_softmax(scores.masked_fill(~allowed[:, None], MASKED), dim=-1)

    def align_all(self, phonemes: Sequence[Ids], features: Features) -> list[tuple[NDArray[np.uint16], float]]:
        """(durations uint16 [P], score) of each utterance.

        The score is the mean over the frames of log p(symbol | frame) along the path. (Not of p(place | frame): that shrinks
        as a text grows, for a frame cannot tell the places of one symbol apart.) Features are read a window at a time and
        long utterances are searched block by block: memory grows with neither.

        Args:
            phonemes: ids [P] of each utterance.
            features: float32 [T, D] of each, T >= P, or a function of its index that reads them.

        Raises:
            HocketError: TOO_FEW_FRAMES, NO_PHONEMES, INPUT_INVALID (features of another codec, ids beyond the inventory).
        """
        read = reader_of(features)
        results: list[tuple[NDArray[np.uint16], float]] = []
        while len(results) < len(phonemes):
            window: list[NDArray[np.float32]] = []
            values = 0
            while len(results) + len(window) < len(phonemes) and (not window or values < WINDOW_VALUES):
                window.append(read(len(results) + len(window)))
                values += window[-1].size
            results.extend(self._align_window(phonemes[len(results) : len(results) + len(window)], window))
        return results

    def _align_window(
        self, phonemes: Sequence[Ids], features: Sequence[NDArray[np.float32]]
    ) -> list[tuple[NDArray[np.uint16], float]]:
        _check(phonemes, features)
        self._check_fit(phonemes, features)
        n_symbols = len(self.tensors["symbols"])
        order = sorted(range(len(phonemes)), key=lambda index: (len(features[index]), len(phonemes[index]), index))
        results: dict[int, tuple[NDArray[np.uint16], float]] = {}
        start = 0
        while start < len(order):
            widest, stop = n_symbols, start
            while stop < len(order):
                widest = max(widest, len(phonemes[order[stop]]))
                if len(features[order[stop]]) * widest * (stop + 1 - start) > MAX_BATCH_CELLS:
                    break
                stop += 1
            if stop == start:
                results[order[start]] = self._align_long(phonemes[order[start]], features[order[start]])
                start += 1
                continue
            chosen = order[start:stop]
            batch = _pad([phonemes[index] for index in chosen], [features[index] for index in chosen])
            with torch.no_grad():
                log_probs = self.log_probs(batch).numpy()
                symbols = self.symbol_log_probs(batch).numpy()
            durations = mas(log_probs, batch.n_frames.numpy(), batch.n_phonemes.numpy())
            for row, index in enumerate(chosen):
                path = durations[row, : len(phonemes[index])]
                on_path = symbols[row, np.arange(len(features[index])), np.repeat(phonemes[index].astype(np.int64), path)]
                results[index] = (path.astype(np.uint16), float(on_path.mean()))
            start = stop
        return [results[index] for index in range(len(phonemes))]

    def _align_long(self, phonemes: Ids, features: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float]:
        """One utterance whose table of scores would be too large, block by block."""
        with torch.no_grad():
            tables = frame_blocks(self, self.log_probs, phonemes, features)
            durations = mas_of_blocks((table for _, table in tables), len(phonemes))
            path = np.repeat(phonemes.astype(np.int64), durations)
            total = 0.0
            for first, table in frame_blocks(self, self.symbol_log_probs, phonemes, features):
                on_path = table[np.arange(len(table)), path[first : first + len(table)]]
                total += float(on_path.sum(dtype=np.float64))
        return durations.astype(np.uint16), total / len(features)

    def _check_fit(self, phonemes: Sequence[Ids], features: Sequence[NDArray[np.float32]]) -> None:
        n_symbols, width = len(self.tensors["symbols"]), len(self.tensors["mean"])
        for ids, frames in zip(phonemes, features, strict=True):
            if int(ids.max()) >= n_symbols or int(ids.min()) < 0:
                raise HocketError(Code.INPUT_INVALID, f"phoneme {int(ids.max())} for an aligner of {n_symbols} symbols")
            if frames.ndim != 2:
                raise HocketError(Code.INPUT_INVALID, f"features of shape {frames.shape} for an aligner of {width} a frame")
            self._check_width(frames.shape[1])

    def _check_width(self, width: int) -> None:
        wanted = len(self.tensors["mean"])
        if width != wanted:
            raise HocketError(Code.INPUT_INVALID, f"features of {width} numbers a frame for an aligner of {wanted}")

    def align(self, phonemes: Ids, features: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float]:
        """Durations uint16 [P] and score of one utterance; see `align_all`."""
        return self.align_all([phonemes], [features])[0]


def frame_blocks(
    aligner: Aligner, scores: Callable[[_Batch], Tensor], phonemes: Ids, features: NDArray[np.float32]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(first frame, float32 [t, P or V]) of one utterance's `scores`, a method of `aligner`, in blocks of bounded size.

    A block is computed with a frame of context to each side, so that the blocks together are the whole table.
    """
    n_block = max(64, MAX_BATCH_CELLS // max(len(phonemes), len(aligner.tensors["symbols"])))
    for first in range(0, len(features), n_block):
        before = min(first, 1)
        table = scores(_pad([phonemes], [features[first - before : first + n_block + 1]]))
        yield first, table[0, before : before + n_block].numpy()


def learn_alignment(
    phonemes: Sequence[Ids],
    features: Features,
    *,
    steps: int = 150,
    seed: int = 0,
    n_symbols: int | None = None,
    prior: bool | None = None,
    start: Aligner | None = None,
) -> Aligner:
    """Learn the alignment of a corpus.

    Args:
        phonemes: ids [P] of each utterance, 0 not among them.
        features: float32 [T, D] of each utterance, T >= P; a codec's dequantised latents. Or a function that reads those of
            an utterance by its index: one batch is in memory at a time then.
        steps: of AdamW, 12 utterances each; 150 are a few seconds of one core.
        seed: of the first weights and of the order of the utterances.
        n_symbols: size of the inventory; the highest id + 1 when not given.
        prior: whether to use the beta-binomial prior; from 32 utterances on when not given.
        start: an aligner to go on from instead of random weights (its mean and deviation stay: see `Aligner.fitted_to`); it
            must know as many symbols.

    Raises:
        HocketError: CORPUS_TOO_SMALL without utterances, TOO_FEW_FRAMES, NO_PHONEMES.
    """
    if not phonemes:
        raise HocketError(Code.CORPUS_TOO_SMALL, "no utterance to learn an alignment from")
    read = reader_of(features)
    if not callable(features):
        _check(phonemes, features)  # all of them before the work begins; those that are read later, as they come
    use_prior = len(phonemes) >= PRIOR_FROM_CLIPS if prior is None else prior
    size = n_symbols or max(int(np.max(ids)) for ids in phonemes) + 1
    aligner = Aligner.initial(size, phonemes, features, seed) if start is None else start.copy_for(size, phonemes)
    trained = [tensor for tensor in aligner.tensors.values() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.98))
    draw = np.random.default_rng(seed)
    queue: list[int] = []
    for step in range(steps):
        while len(queue) < min(BATCH, len(phonemes)):
            queue.extend(int(index) for index in draw.permutation(len(phonemes)))
        chosen, queue = queue[:BATCH], queue[BATCH:]
        texts, sounds = [phonemes[index] for index in chosen], [read(index) for index in chosen]
        _check(texts, sounds)
        batch = _pad(texts, sounds)
        log_probs = aligner.log_probs(batch)
        if use_prior:
            log_probs = F.log_softmax(log_probs + beta_binomial(batch.n_frames, batch.n_phonemes), dim=-1)
        with torch.no_grad():
            durations = mas(log_probs.numpy(), batch.n_frames.numpy(), batch.n_phonemes.numpy())
        loss = forward_sum(log_probs, batch.n_frames, batch.n_phonemes).mean()
        loss = loss + min(1.0, step / RAMP_STEPS) * binarisation(log_probs, durations)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return Aligner({name: tensor.detach() for name, tensor in aligner.tensors.items()})


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
