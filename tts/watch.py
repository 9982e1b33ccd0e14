"""Measures what a loss does not show: whether the text is read, what is spoken, durations, codebooks, speakers, languages.

`measure` computes, `tts.alarms` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tts.alarms import ALL, LANGUAGE, SPEAKER, Alarm, GroupWatch, Watch, alarms
from tts.batch import TextBatch, collate
from tts.collation import UtteranceLike
from tts.config import ModelConfig
from tts.draws import draw_key
from tts.dropout import PassContext
from tts.evaluate_loss import eval_batches, shuffle_text
from tts.stages import Stage
from tts.synthesis import Line, Sampling, speak_many
from tts.text_front import duration_error

__all__ = ["Alarm", "GroupWatch", "Watch", "alarms", "measure", "spread_over_speakers"]

LINES_AT_A_TIME = 8
_CALM = PassContext(train=False)


@dataclass
class _Sums:
    """Sums over a group's utterances; arrays are per codebook [K], frequencies [K, codebook size + 1]."""

    utterances: int = 0
    ce: float = 0.0
    codes: int = 0
    ce_shuffled: list[float] = field(default_factory=list)
    hits: Any = 0
    counts: Any = 0
    targets: Any = 0
    durations: list[NDArray[Any]] = field(default_factory=list)
    duration_error: float = 0.0
    spoken: Any = 0
    recorded: Any = 0


@dataclass(frozen=True)
class _Seen:
    """One utterance under teacher forcing: cross-entropy, hits and number of codes, each [K]; duration error in frames."""

    ce: NDArray[np.float64]
    hits: NDArray[np.int64]
    count: NDArray[np.int64]
    duration_error: float


def measure(
    stages: Sequence[Stage],
    utterances: Sequence[UtteranceLike],
    *,
    languages: Sequence[str] = (),
    seed: int = 0,
    shuffles: int = 3,
    generate: int = 8,
) -> Watch:
    """Measure a model on utterances that it was not trained on.

    Args:
        stages: all stages of the model, in order. utterances: at least two.
        languages: tags by language id, as for `collate`.
        seed: of the shufflings, of which sentences are spoken, and of the speech.
        shuffles: how many times the text is shuffled.
        generate: how many of the utterances are spoken, with their recorded durations and the usual `Sampling`; they are
            spread evenly over languages and speakers.

    Returns: the group of all utterances, then of each speaker and of each language.

    Raises:
        HocketError: CORPUS_TOO_SMALL; SHARD_DAMAGED or LANGUAGE_REFUSED for utterances that do not fit the model.
    """
    if len(utterances) < 2 or shuffles < 1:
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{len(utterances)} utterances and {shuffles} shufflings; 2 and 1 are needed")
    config = stages[0].config
    groups = _groups(utterances)
    sums = {key: _Sums() for key in groups}
    members: dict[int, list[_Sums]] = {index: [] for index in range(len(utterances))}
    for key, indices in groups.items():
        for index in indices:
            members[index].append(sums[key])
    with torch.inference_mode():
        for index, seen in _teacher_forced(stages, utterances, languages).items():
            _add(members[index], utterances[index], seen, config)
        for number in range(shuffles):
            retold = _retold(utterances, seed + number)
            for group in sums.values():
                group.ce_shuffled.append(0.0)
            for index, seen in _teacher_forced(stages, retold, languages).items():
                for one in members[index]:
                    one.ce_shuffled[-1] += float(seen.ce.sum())
    chosen = spread_over_speakers(utterances, generate, seed)
    for index, codes in _speak(stages, utterances, chosen, languages, seed).items():
        spoken = frequencies(codes, config)
        recorded = frequencies(np.asarray(utterances[index].codes)[: config.n_codebooks], config)
        for one in members[index]:
            one.spoken, one.recorded = one.spoken + spoken, one.recorded + recorded
    return Watch(tuple(_figures(kind, name, sums[kind, name]) for kind, name in groups))


def spread_over_speakers(utterances: Sequence[UtteranceLike], count: int, seed: int) -> list[int]:
    """Indices of at most `count` utterances, as evenly over (language, speaker) as they go, drawn from the seed; ascending."""
    order = np.random.Generator(np.random.Philox(key=draw_key(seed, "watch", "choice"))).permutation(len(utterances))
    queues: dict[tuple[str, str], list[int]] = {}
    for index in (int(one) for one in order):
        queues.setdefault((utterances[index].language, _speaker(utterances[index])), []).append(index)
    chosen: list[int] = []
    waiting = [queues[key] for key in sorted(queues)]
    while waiting and len(chosen) < count:
        chosen += [queue.pop() for queue in waiting][: count - len(chosen)]
        waiting = [queue for queue in waiting if queue]
    return sorted(chosen)


def _speaker(utterance: UtteranceLike) -> str:
    return str(getattr(utterance, "speaker", ""))


def _groups(utterances: Sequence[UtteranceLike]) -> dict[tuple[str, str], list[int]]:
    """Indices of each group's utterances, in the order in which the groups are reported."""
    speakers: dict[str, list[int]] = {}
    languages: dict[str, list[int]] = {}
    for index, utterance in enumerate(utterances):
        if _speaker(utterance):
            speakers.setdefault(_speaker(utterance), []).append(index)
        languages.setdefault(utterance.language, []).append(index)
    groups = {(ALL, ALL): list(range(len(utterances)))}
    groups |= {(SPEAKER, name): speakers[name] for name in sorted(speakers)}
    return groups | {(LANGUAGE, name): languages[name] for name in sorted(languages)}


def _retold(utterances: Sequence[UtteranceLike], seed: int) -> list[UtteranceLike]:
    """Every utterance with the text of another one, of its own language where there is one.

    Text of another language would tell a model that has learnt the languages apart, and nothing else, that something is wrong.
    """
    retold: list[UtteranceLike] = list(shuffle_text(utterances, seed))
    for (kind, _), indices in _groups(utterances).items():
        if kind == LANGUAGE and len(indices) > 1:
            for index, other in zip(indices, shuffle_text([utterances[one] for one in indices], seed), strict=True):
                retold[index] = other
    return retold


def _teacher_forced(
    stages: Sequence[Stage], utterances: Sequence[UtteranceLike], languages: Sequence[str]
) -> Mapping[int, _Seen]:
    """What the model makes of each utterance, by its index, all codes before each code being the recorded ones."""
    order = iter(sorted(range(len(utterances)), key=lambda index: int(utterances[index].n_frames)))  # that of eval_batches
    seen: dict[int, _Seen] = {}
    for group in eval_batches(utterances):
        batch = collate(group, stages[0].config, languages)
        ce, hits, count = _codes(stages, batch)
        wrong = _duration_errors(stages[0], batch)
        for row in range(len(group)):
            seen[next(order)] = _Seen(ce[row], hits[row], count[row], float(wrong[row]))
    return seen


def _codes(
    stages: Sequence[Stage], batch: TextBatch
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Cross-entropy, hits of the likeliest code and number of codes, each [B, K]."""
    hidden, _ = stages[0].first(batch, _CALM)
    for stage in stages[1:]:
        hidden = stage.middle(hidden, batch.side(), _CALM)
    each, counted, hit = stages[-1].heads.scores(hidden, batch.codes, batch.n_frames)  # each [B, S, K]
    return each.double().sum(1).cpu().numpy(), hit.sum(1).cpu().numpy(), counted.sum(1).cpu().numpy()


def _duration_errors(front: Stage, batch: TextBatch) -> NDArray[np.float64]:
    """Sum of |predicted - true| durations in frames, [B]."""
    _, predicted = front.text.encode(
        batch.phonemes, batch.word_starts, batch.n_phonemes, batch.speaker, batch.language, _CALM
    )  # fmt: skip
    return duration_error(predicted, batch.durations, batch.n_phonemes).double().cpu().numpy()


def _add(groups: Iterable[_Sums], utterance: UtteranceLike, seen: _Seen, config: ModelConfig) -> None:
    targets = frequencies(np.asarray(utterance.codes)[: config.n_codebooks], config)
    targets[:, config.eos] += 1
    for one in groups:
        one.utterances += 1
        one.ce, one.codes = one.ce + float(seen.ce.sum()), one.codes + int(seen.count.sum())
        one.hits, one.counts, one.targets = one.hits + seen.hits, one.counts + seen.count, one.targets + targets
        one.durations.append(np.asarray(utterance.durations, np.float64))
        one.duration_error += seen.duration_error


def _speak(
    stages: Sequence[Stage], utterances: Sequence[UtteranceLike], chosen: Sequence[int], languages: Sequence[str], seed: int
) -> dict[int, NDArray[np.uint16]]:
    """Codes [K, T] that the model speaks in place of each chosen utterance, with its durations."""
    config = stages[0].config
    lines = [_line(utterances[index], index, config, languages) for index in chosen]
    # A model that was never trained without text has nothing to be guided against.
    how = Sampling(seed=seed) if config.cond_dropout else Sampling(seed=seed, guidance=1.0)
    codes: list[NDArray[np.uint16]] = []
    for start in range(0, len(lines), LINES_AT_A_TIME):
        codes += speak_many(stages, lines[start : start + LINES_AT_A_TIME], how)
    return dict(zip(chosen, codes, strict=True))


def _line(utterance: UtteranceLike, number: int, config: ModelConfig, languages: Sequence[str]) -> Line:
    side = collate([utterance], config, languages).side()
    return Line(
        utterance.phonemes,
        utterance.word_starts,
        number=number,
        speaker=side.speaker[0].numpy(),
        language=int(side.language[0]),
        durations=utterance.durations,
    )


def frequencies(codes: NDArray[Any], config: ModelConfig) -> NDArray[np.int64]:
    """How often each code occurs in codes [K, T], int64 [K, codebook size + 1]; the last column is that of the end mark."""
    return np.stack([np.bincount(book, minlength=config.codebook_size + 1) for book in np.asarray(codes, np.int64)])


def perplexity(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """exp of the entropy of the frequencies along the last axis: how many codes, used equally often, would be as diverse."""
    share = counts / counts.sum(-1, keepdims=True)
    terms = np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0)
    return np.asarray(np.exp(-terms.sum(-1)), np.float64)


def _figures(kind: str, name: str, sums: _Sums) -> GroupWatch:
    shuffled = [total / sums.codes for total in sums.ce_shuffled]
    durations = np.concatenate(sums.durations)
    frames = float(durations.sum())
    commonest = sums.targets[:, :-1].max(1) + sums.targets[:, -1]  # the end is known from the durations
    spoken = isinstance(sums.spoken, np.ndarray)
    return GroupWatch(
        kind=kind,
        name=name,
        utterances=sums.utterances,
        loss=sums.ce / sums.codes,
        loss_shuffled=sum(shuffled) / len(shuffled),
        shuffle_spread=max(shuffled) - min(shuffled),
        accuracy=_floats(sums.hits / sums.counts),
        duration_error=sums.duration_error / frames,
        diversity=_floats(perplexity(sums.spoken) / perplexity(sums.recorded)) if spoken else (),
        commonest=_floats(commonest / sums.counts),
        duration_error_of_median=float(np.abs(durations - np.median(durations)).sum()) / frames,
    )


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
