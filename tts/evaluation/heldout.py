"""Which sentences a voice is measured on: those that were never trained on, with their codes and their recordings."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import Code, HocketError
from protocol.content import file_cid
from tokenizer.corpus import Clip, Corpus, scan_corpus
from tokenizer.dataset_folder import MANIFEST, DatasetFolder
from tokenizer.utterance import Utterance
from tts.export import Card

MIN_WORDS = 4  # what shorter clips say can only be guessed, by a recogniser as by a person
LIMIT = 100


@dataclass(frozen=True)
class Item:
    """One held-out sentence.

    Args:
        row: as the dataset has it: phonemes, durations, codes; None where only the corpus is known.
        recording: the clip; None where it is not at hand.
    """

    id: str
    text: str
    language: str
    speaker: str
    words: int
    row: Utterance | None = None
    recording: Clip | None = None


@dataclass(frozen=True)
class Heldout:
    """The sentences, in an order that depends on their ids alone, and what had to be left out, in words."""

    items: tuple[Item, ...]
    notes: tuple[str, ...] = field(default=())


def dataset_beside(checkpoint: Path) -> Path | None:
    """The dataset in a demo or run folder that holds the checkpoint, if there is one."""
    for folder in (checkpoint, checkpoint.parent):
        if (folder / "data" / MANIFEST).is_file():
            return folder / "data"
    return None


def items_of_dataset(dataset: DatasetFolder) -> list[Item]:
    """The held-out rows that have a text.

    Raises:
        HocketError: SHARD_DAMAGED.
    """
    rows = (row for entry in dataset.manifest.heldout for row in dataset.rows_of(entry) if row.text.strip())
    return [Item(row.id, row.text, row.language, row.speaker, int(row.word_starts.sum()), row=row) for row in rows]


def items_of_corpus(corpus: Corpus, language: str) -> list[Item]:
    """The clips that a corpus names in its `heldout.txt`.

    Args:
        language: of clips and corpora that do not say.

    Raises:
        HocketError: CORPUS_UNREADABLE where it names none: which clips were trained on is not known then.
    """
    if corpus.heldout is None:
        detail = f"{corpus.path} does not say which of its clips are held out"
        raise HocketError(Code.CORPUS_UNREADABLE, detail, remedy="give --data, the dataset that the model was trained on")
    wanted = set(corpus.heldout)
    return [
        Item(
            clip.id,
            clip.text,
            clip.language or corpus.language or language,
            clip.speaker or corpus.speaker,
            len(clip.text.split()),
            recording=clip,
        )
        for clip in corpus.clips
        if clip.id in wanted
    ]


def check_fits(dataset: DatasetFolder, card: Card, codec_folder: Path) -> None:
    """Refuse a dataset whose phonemes or codes mean something else than the model's.

    Raises:
        HocketError: CHECKPOINT_INVALID, CODEC_UNREADABLE.
    """
    if tuple(dataset.manifest.phonemes) != card.phonemes:
        detail = f"its phonemes are not those of {dataset.path}"
        raise HocketError(Code.CHECKPOINT_INVALID, detail, remedy="give --data, the dataset that the model was trained on")
    codec, weights = dataset.manifest.codec, codec_folder / "model.safetensors"
    books, size = int(codec["n_codebooks"]), int(codec["codebook_size"])
    other = (books, size) != (card.config.n_codebooks, card.config.codebook_size)
    if other or ("cid" in codec and weights.is_file() and file_cid(weights) != codec["cid"]):
        detail = f"{dataset.path} was made with another codec than the checkpoint's"
        raise HocketError(Code.CODEC_UNREADABLE, detail, remedy="give --data, the dataset that the model was trained on")


def with_recordings(items: Sequence[Item], path: Path) -> list[Item]:
    """The items with their clips in the corpus at `path`, found by id.

    Raises:
        HocketError: as `scan_corpus`.
    """
    clips = {clip.id: clip for clip in scan_corpus(path).clips}
    return [replace(item, recording=clips.get(item.id)) for item in items]


def choose(
    items: Iterable[Item],
    *,
    languages: Collection[str],
    speakers: Collection[str],
    limit: int = LIMIT,
    min_words: int = MIN_WORDS,
    language: str | None = None,
    speaker: str | None = None,
) -> Heldout:
    """The sentences to measure on. A function of the items; a smaller limit takes the first of those that a larger one takes.

    Args:
        languages: that the model speaks. speakers: that it speaks as; empty: it does not say.
        language, speaker: only the sentences of these.

    Raises:
        HocketError: CORPUS_TOO_SMALL if none is left; LANGUAGE_REFUSED or OPTION_INVALID for a language or a speaker
            without a held-out sentence.
    """
    left = list(items)
    for name, of, code in (
        (language, [item.language for item in left], Code.LANGUAGE_REFUSED),
        (speaker, [item.speaker for item in left], Code.OPTION_INVALID),
    ):
        if name is not None and left and name not in of:
            there = ", ".join(sorted(set(of))[:8])
            raise HocketError(code, f"no held-out sentence is of {name!r}", remedy=f"name one of {there}")
    notes = []
    stages = (
        ("of another language than asked for", lambda item: language is None or item.language == language, False),
        ("of another speaker than asked for", lambda item: speaker is None or item.speaker == speaker, False),
        ("in a language that the model does not speak", lambda item: item.language in languages, True),
        ("of a speaker whose voice the model does not have", lambda item: not speakers or item.speaker in speakers, True),
        (f"of fewer than {min_words} words", lambda item: item.words >= min_words, True),
    )
    for what, is_wanted, is_noted in stages:
        kept = [item for item in left if is_wanted(item)]
        if is_noted and len(kept) < len(left):
            notes.append(f"{len(left) - len(kept)} held-out sentences {what} are left out")
        left = kept
    if not left:
        detail = "no held-out sentence to measure on" + (f": {'; '.join(notes)}" if notes else "")
        raise HocketError(Code.CORPUS_TOO_SMALL, detail, remedy="give another dataset with --data, or corpus with --corpus")
    ranked = sorted(left, key=lambda item: (hashlib.sha256(item.id.encode()).digest(), item.id))
    return Heldout(tuple(ranked[:limit]), tuple(notes))
