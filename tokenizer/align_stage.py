"""The alignment of each language of a corpus, kept in the work folder, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import Code, HocketError
from protocol.content import file_cid
from protocol.tensor_files import json_of, json_tensor, read_tensors, write_tensors
from tokenizer.align import Aligner, learn_alignment
from tokenizer.aligner_file import load_aligner
from tokenizer.encode_jobs import CodeStore
from tokenizer.gate import Judged, judge_clips
from tokenizer.items import Item
from tokenizer.phonemes import PhonemeInventory, inventory_for
from tokenizer.work import Work

logger = logging.getLogger(__name__)

LONG_CLIP_S = 15.0
LOGGED_CLIPS = 3
_WEIGHT = "aligner."


@dataclass(frozen=True)
class Aligned:
    """A language's clips, aligned.

    Args:
        indices: of the clips among all.
        durations: uint16 [P] of each. scores: of each.
        judged: which places of `indices` are refused.
    """

    language: str
    indices: list[int]
    aligner: Aligner
    durations: list[NDArray[np.uint16]]
    scores: list[float]
    judged: Judged


@dataclass(frozen=True)
class AlignSettings:
    """
    Args:
        codec: its description with the CID of its weights.
        frame_rate: of the codec.
        seed: of what is learnt.
        aligner: file of an aligner to use instead of learning one, for the languages that it knows.
    """

    codec: dict[str, Any]
    frame_rate: float
    seed: int
    aligner: Path | None = None


def align_language(
    language: str,
    indices: Sequence[int],
    items: Sequence[Item],
    held: set[str],
    store: CodeStore,
    settings: AlignSettings,
    work: Work,
) -> Aligned:
    """Align the clips of one language: with the aligner that is given for it, or with one learnt from those not held out.

    Long clips have no part in learning; they are aligned with what the others have taught.

    Raises:
        HocketError: what a given aligner is refused for; DISK_FULL, STATE_UNREADABLE.
    """
    inventory = inventory_for([language])
    phonemes = [items[index].phonemes for index in indices]
    kept = None if settings.aligner is None else _kept_aligner(settings.aligner, language, inventory, settings)
    training = [index for index in indices if items[index].id not in held]
    longest = LONG_CLIP_S * settings.frame_rate
    short = [index for index in training if _frames(store, index) <= longest] or training or list(indices)
    path = work.alignment(
        language,
        {
            "indices": list(indices),
            "learnt_from": short,
            "seed": settings.seed,
            "aligner": None if kept is None or settings.aligner is None else file_cid(settings.aligner),
        },
    )
    if not path.is_file():
        aligner = kept or learn_alignment(
            [items[index].phonemes for index in short],
            lambda place: store.features(short[place]),
            seed=settings.seed,
            n_symbols=len(inventory),
        )
        taught = None if kept is None else short
        _align(aligner, phonemes, list(indices), store, inventory, path, seed=settings.seed, taught=taught)
    aligner, durations, scores, judged = _read(path, phonemes)
    aligned = Aligned(language, list(indices), aligner, durations, scores, judged)
    _log_worst(aligned, items, inventory)
    return aligned


def _kept_aligner(path: Path, language: str, inventory: PhonemeInventory, settings: AlignSettings) -> Aligner | None:
    try:
        return load_aligner(path, language=language, codec=settings.codec, symbols=inventory.symbols)
    except HocketError as error:
        if error.code is Code.LANGUAGE_REFUSED:
            return None  # it is for the other languages of the corpus; the pipeline has seen that there is one
        raise


def check_aligner(path: Path, languages: Sequence[str], settings: AlignSettings) -> None:
    """Refuse an aligner that none of the corpus's languages can use, before it costs anything."""
    refusals: list[HocketError] = []
    for language in languages:
        try:
            load_aligner(path, language=language, codec=settings.codec, symbols=inventory_for([language]).symbols)
        except HocketError as error:
            if error.code is not Code.LANGUAGE_REFUSED:
                raise
            refusals.append(error)
    if refusals and len(refusals) == len(languages):
        raise refusals[0]


def _frames(store: CodeStore, index: int) -> int:
    return int(store.codes(index).shape[1])


def _align(
    aligner: Aligner,
    phonemes: list[NDArray[np.uint16]],
    indices: list[int],
    store: CodeStore,
    inventory: PhonemeInventory,
    path: Path,
    *,
    seed: int,
    taught: Sequence[int] | None,
) -> None:
    """Align clips and write what comes of it to `path`.

    A kept aligner is fitted to the features of this corpus and judges it as it is, for it has learnt none of its mistakes.
    Then it goes on learning from the clips `taught` (indices) that say their texts: another voice is aligned well only so.
    """

    def features(place: int) -> NDArray[np.float32]:
        return store.features(indices[place])

    if taught is not None:
        aligner = aligner.fitted_to(len(indices), features)
    aligned = aligner.align_all(phonemes, features)
    durations = [found for found, _ in aligned]
    reused = taught is not None
    judged = judge_clips(aligner, phonemes, durations, features, symbols=inventory.symbols, seed=seed, reused=reused)
    wanted = set(taught or ()) if judged.corpus_problem is None else set()
    good = [place for place, index in enumerate(indices) if index in wanted and place not in judged.refused]
    if good:
        aligner = learn_alignment(
            [phonemes[place] for place in good],
            lambda number: features(good[number]),
            seed=seed,
            n_symbols=len(inventory),
            start=aligner,
        )
        aligned = aligner.align_all(phonemes, features)
        durations = [found for found, _ in aligned]
    about = {
        "refused": sorted(judged.refused.items()),
        "corpus_problem": judged.corpus_problem,
        "threshold": judged.threshold if np.isfinite(judged.threshold) else None,
        "facts": judged.facts,
    }
    tensors: dict[str, NDArray[Any]] = {
        "about": json_tensor(about),
        "durations": np.concatenate(durations),
        "scores": np.array([score for _, score in aligned], np.float64),
    }
    write_tensors(path, {**tensors, **{_WEIGHT + name: tensor.numpy() for name, tensor in aligner.tensors.items()}})


def _read(path: Path, phonemes: list[NDArray[np.uint16]]) -> tuple[Aligner, list[NDArray[np.uint16]], list[float], Judged]:
    tensors = read_tensors(path)
    ends = np.cumsum([len(ids) for ids in phonemes])
    durations = [np.asarray(part, np.uint16) for part in np.split(tensors["durations"], ends[:-1])]
    weights = {
        name.removeprefix(_WEIGHT): torch.from_numpy(np.array(value))
        for name, value in tensors.items()
        if name.startswith(_WEIGHT)
    }
    found = json_of(tensors["about"])
    threshold = -np.inf if found["threshold"] is None else found["threshold"]
    judged = Judged(dict(found["refused"]), found["corpus_problem"], threshold, found["facts"])
    return Aligner(weights), durations, tensors["scores"].tolist(), judged


def _log_worst(aligned: Aligned, items: Sequence[Item], inventory: PhonemeInventory) -> None:
    """The phonemes of the clips that fit their texts worst, for a person to look at."""
    order = sorted(range(len(aligned.indices)), key=lambda place: (aligned.scores[place], place))
    for place in order[:LOGGED_CLIPS]:
        item = items[aligned.indices[place]]
        symbols = " ".join(inventory.decode(item.phonemes.tolist()))
        logger.info("%s (%s) is aligned worst (%.2f): %s", item.id, aligned.language, aligned.scores[place], symbols)
