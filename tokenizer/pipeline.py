"""A corpus to a dataset: texts to phonemes, recordings to codes, their alignment, shards and a signed manifest.

A clip that cannot be used is left out with its reason (`refused.txt`); if more than one in fifty cannot, nothing is made.

The output folder holds `manifest.json` (signed, written last), `shards/CID.parquet`, `codec/` (a copy, so that the dataset can
be listened to), `aligner.safetensors` and `refused.txt`.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from protocol.tensor_files import write_tensors
from tokenizer.align import Aligner, learn_alignment
from tokenizer.audio import read_audio
from tokenizer.codec import Codec
from tokenizer.corpus import Clip, Corpus, Refusal, refusal_error, scan_corpus
from tokenizer.languages import check_language
from tokenizer.phonemes import PhonemeText, Phonemizer
from tokenizer.shards import Utterance, shard_bytes

logger = logging.getLogger(__name__)

MAX_REFUSED = 0.02
HELD_OUT_SHARE = 0.05
MAX_HELD_OUT = 100
TEST_WORDS = range(4, 15)
LONG_CLIP_S = 15.0
MAX_CLIP_FRAMES = 65535  # a duration is 16 bits wide
SHARD_TARGET_BYTES = 2**20
UNFINISHED = ".unfinished"
AT_A_TIME = 16
SCORE_FROM_CLIPS = 100  # an aligner that has heard fewer knows its own clips only, and no score says much
MIN_ALIGN_SCORE = -4.0  # right texts: -0.8 to -3.3; texts of other clips: below -3.5, nearly all below -5

Progress = Callable[[str, int, int], None]
"""Called with (what is done: "text", "audio", "align", "shards"; units done; units in all)."""


def _silent(phase: str, done: int, total: int) -> None:
    pass


@dataclass
class _Read:
    """A clip on its way through the pipeline."""

    clip: Clip
    text: PhonemeText
    phonemes: NDArray[np.uint16]
    codes: NDArray[np.uint16]  # [K, T]
    features: NDArray[np.float32]  # [T, D]


def tokenize(
    corpus: Path,
    language: str,
    codec: Codec,
    out: Path,
    *,
    key: MemberKey,
    heldout: int | Sequence[str] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    shard_target_bytes: int = SHARD_TARGET_BYTES,
) -> DatasetManifest:
    """Tokenise a corpus in LJSpeech layout into `out`.

    Args:
        corpus: folder with `metadata.csv` and `wavs/`.
        language: BCP 47 tag of all its texts.
        codec: gives the codes, and the features of the alignment.
        out: folder; absent, empty, or an earlier dataset, finished or broken off, which is replaced.
        key: signs the manifest.
        heldout: ids that are never trained on, or how many; by default those of the corpus's `heldout.txt`, else one clip in
            twenty, at most 100, chosen by a hash of their ids, sentences of 4 to 14 words that occur once first.
        progress: called as the work goes on.
        seed: of the aligner.
        shard_target_bytes: of one shard's rows in memory; at most that unless one row is larger.

    Raises:
        HocketError: LANGUAGE_REFUSED, CORPUS_UNREADABLE, CORPUS_TOO_SMALL, OUTPUT_EXISTS, DISK_FULL, STATE_UNREADABLE; and
            the commonest reason's number (TEXT_AUDIO_MISMATCH, TOO_FEW_FRAMES, NO_PHONEMES, AUDIO_UNREADABLE,
            TEXT_NOT_SPOKEN) when more than 2 % of the clips are refused. Nothing of the manifest is written then.
    """
    report = progress or _silent
    phonemizer = Phonemizer(language)
    _check_out(out)
    found = scan_corpus(corpus)
    _check_corpus_language(found, phonemizer.language)
    total = len(found.clips) + len(found.refused)
    refused = list(found.refused)
    texts = _read_texts(found, phonemizer, refused, report)
    _check_refused(refused, total)
    read = _encode(found, texts, phonemizer, codec, refused, report)
    _check_refused(refused, total)
    named = found.heldout if heldout is None else heldout
    _check_named(named, found)
    held = _held_out([(item.clip.id, item.text.spoken) for item in read], named)
    aligner, aligned = _align(read, held, codec, len(phonemizer.inventory), seed, report)
    utterances: list[Utterance] = []
    for item, (durations, score) in zip(read, aligned, strict=True):
        if score < MIN_ALIGN_SCORE and len(read) >= SCORE_FROM_CLIPS:
            reason = f"its recording does not say its text (alignment score {score:.1f}, at least {MIN_ALIGN_SCORE} is wanted)"
            refused.append(Refusal(item.clip.id, Code.TEXT_NOT_SPOKEN, reason))
            continue
        utterances.append(_utterance(item, durations, score, found, phonemizer.language))
    _check_refused(refused, total)
    return _write(out, found, phonemizer, codec, aligner, utterances, held, refused, key, shard_target_bytes, report)


def _check_out(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        ours = (out / "manifest.json").is_file() or (out / UNFINISHED).is_file()
        if any(out.iterdir()) and not ours:
            raise HocketError(Code.OUTPUT_EXISTS, f"{out} holds something that is no dataset")
    except OSError as error:
        raise disk_error(error, out) from error


def _check_corpus_language(corpus: Corpus, language: str) -> None:
    if corpus.language and check_language(corpus.language).split("-")[0] != language.split("-")[0]:
        detail = f"{language}, but {corpus.path} says that it speaks {corpus.language}"
        raise HocketError(Code.LANGUAGE_REFUSED, detail, remedy=f"use {corpus.language}")


def _check_named(heldout: int | Sequence[str] | None, corpus: Corpus) -> None:
    """Held-out ids that the corpus does not have are a slip that would silently train on what they meant."""
    if heldout is None or isinstance(heldout, int):
        return
    known = {clip.id for clip in corpus.clips} | {refusal.id for refusal in corpus.refused}
    strange = [name for name in heldout if name not in known]
    if strange:
        detail = f"{len(strange)} held-out ids are not in {corpus.path}: {', '.join(strange[:5])}"
        raise HocketError(Code.CORPUS_UNREADABLE, detail, remedy="correct heldout.txt")


def _check_refused(refused: list[Refusal], total: int) -> None:
    if len(refused) > MAX_REFUSED * total:
        raise refusal_error(refused, total)


def _read_texts(corpus: Corpus, phonemizer: Phonemizer, refused: list[Refusal], report: Progress) -> dict[str, PhonemeText]:
    texts: dict[str, PhonemeText] = {}
    for number, clip in enumerate(corpus.clips, start=1):
        try:
            texts[clip.id] = phonemizer.phonemize(clip.text)
        except HocketError as error:
            refused.append(Refusal(clip.id, error.code, error.detail))
        if number % AT_A_TIME == 0 or number == len(corpus.clips):
            report("text", number, len(corpus.clips))
    return texts


def _recordings(clips: list[Clip], sample_rate: int) -> Iterator[list[tuple[Clip, NDArray[np.float32] | HocketError]]]:
    """Recordings, a batch at a time, the next batch being read while the last one is used."""

    def read(clip: Clip) -> NDArray[np.float32] | HocketError:
        try:
            return read_audio(clip.audio, sample_rate)
        except HocketError as error:
            return error

    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting: list[list[tuple[Clip, Future[NDArray[np.float32] | HocketError]]]] = []
        for start in range(0, len(clips), AT_A_TIME):
            waiting.append([(clip, pool.submit(read, clip)) for clip in clips[start : start + AT_A_TIME]])
            if len(waiting) == 2:
                yield [(clip, future.result()) for clip, future in waiting.pop(0)]
        for batch in waiting:
            yield [(clip, future.result()) for clip, future in batch]


def _encode(
    corpus: Corpus, texts: dict[str, PhonemeText], phonemizer: Phonemizer, codec: Codec, refused: list[Refusal], report: Progress
) -> list[_Read]:
    """Codes and features of every clip that has a text; clips with fewer frames than phonemes are refused."""
    vectors = codec.codebook_vectors()  # [K, codebook_size, D]
    clips = [clip for clip in corpus.clips if clip.id in texts]
    read: list[_Read] = []
    done = 0
    for batch in _recordings(clips, codec.sample_rate):
        usable: list[tuple[Clip, NDArray[np.float32]]] = []
        for clip, samples in batch:
            frames = 0 if isinstance(samples, HocketError) else codec.n_frames(len(samples))
            n_phonemes = len(texts[clip.id].phonemes)
            if isinstance(samples, HocketError):
                refused.append(Refusal(clip.id, samples.code, samples.detail))
            elif frames > MAX_CLIP_FRAMES:
                refused.append(Refusal(clip.id, Code.AUDIO_UNREADABLE, f"{frames} frames, at most {MAX_CLIP_FRAMES} make a clip"))
            elif frames < n_phonemes:
                refused.append(Refusal(clip.id, Code.TOO_FEW_FRAMES, f"{frames} frames for {n_phonemes} phonemes"))
            else:
                usable.append((clip, samples))
        encoded = codec.encode_batch([samples for _, samples in usable]) if usable else []
        for (clip, _), codes in zip(usable, encoded, strict=True):
            features = np.asarray(sum(vectors[book][codes[book]] for book in range(len(codes))), dtype=np.float32)
            text = texts[clip.id]
            read.append(_Read(clip, text, phonemizer.inventory.encode(text.phonemes), codes, features))
        done += len(batch)
        report("audio", done, len(clips))
    return read


def _held_out(clips: list[tuple[str, str]], wanted: int | Sequence[str] | None) -> set[str]:
    """Ids to hold out, of (id, spoken text) of the usable clips. A pure choice: no clip's place or neighbour changes it.

    Raises:
        HocketError: CORPUS_TOO_SMALL if nothing is left to train on or to hold out.
    """
    ids = [name for name, _ in clips]
    if wanted is None:
        wanted = min(MAX_HELD_OUT, math.ceil(HELD_OUT_SHARE * len(ids)))
    if isinstance(wanted, int):
        times = Counter(spoken for _, spoken in clips)

        def rank(clip: tuple[str, str]) -> tuple[bool, bool, bytes]:
            name, spoken = clip
            return (times[spoken] > 1, len(spoken.split()) not in TEST_WORDS, hashlib.sha256(name.encode()).digest())

        held = {name for name, _ in sorted(clips, key=rank)[:wanted]}
    else:
        held = set(wanted) & set(ids)
    if not held or len(held) == len(ids):
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{len(ids)} usable clips, {len(held)} of them held out; both sides need one")
    return held


def _align(
    read: list[_Read], held: set[str], codec: Codec, n_symbols: int, seed: int, report: Progress
) -> tuple[Aligner, list[tuple[NDArray[np.uint16], float]]]:
    """Learn from the training clips of at most 15 s (all of them if none is as short), then align every clip."""
    report("align", 0, 2)
    training = [item for item in read if item.clip.id not in held]
    short = [item for item in training if len(item.features) <= LONG_CLIP_S * codec.frame_rate] or training
    aligner = learn_alignment(
        [item.phonemes for item in short], [item.features for item in short], seed=seed, n_symbols=n_symbols
    )
    report("align", 1, 2)
    aligned = aligner.align_all([item.phonemes for item in read], [item.features for item in read])
    report("align", 2, 2)
    return aligner, aligned


def _utterance(item: _Read, durations: NDArray[np.uint16], score: float, corpus: Corpus, language: str) -> Utterance:
    return Utterance(
        id=item.clip.id,
        text=item.clip.text,
        spoken=item.text.spoken,
        phonemes=item.phonemes,
        durations=durations,
        word_starts=np.array(item.text.word_starts, dtype=np.uint8),
        align_score=score,
        language=language,
        speaker=corpus.speaker,
        codes=item.codes,
        n_frames=item.codes.shape[1],
        speaker_embedding=None,
        licence=corpus.licence,
    )


def _write_shards(folder: Path, rows: list[Utterance], target_bytes: int, done: Callable[[int], None]) -> list[ShardEntry]:
    entries: list[ShardEntry] = []
    start = 0
    while start < len(rows):
        stop, size = start, 0
        while stop < len(rows) and (stop == start or size + rows[stop].size_bytes <= target_bytes):
            size += rows[stop].size_bytes
            stop += 1
        data = shard_bytes(rows[start:stop])
        cid = cid_of(data)
        atomic_write(folder / f"{cid}.parquet", data)
        frames = sum(row.n_frames for row in rows[start:stop])
        entries.append(ShardEntry(cid=cid, rows=stop - start, frames=frames, size_bytes=len(data)))
        done(stop - start)
        start = stop
    return entries


def _write(
    out: Path,
    corpus: Corpus,
    phonemizer: Phonemizer,
    codec: Codec,
    aligner: Aligner,
    utterances: list[Utterance],
    held: set[str],
    refused: list[Refusal],
    key: MemberKey,
    target_bytes: int,
    report: Progress,
) -> DatasetManifest:
    written = 0

    def done(rows: int) -> None:
        nonlocal written
        written += rows
        report("shards", written, len(utterances))

    training = [row for row in utterances if row.id not in held]
    kept_out = [row for row in utterances if row.id in held]
    if not training or not kept_out:
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{len(training)} clips to train on and {len(kept_out)} to hold out are left")
    try:
        if not (out / "manifest.json").is_file():
            # A full disk or a kill may end the writing: what it leaves is known as ours by this file, and replaced next time.
            (out / UNFINISHED).touch()
        codec.save(out / "codec")
        shards = _write_shards(out / "shards", training, target_bytes, done)
        heldout = _write_shards(out / "shards", kept_out, target_bytes, done)
        write_tensors(out / "aligner.safetensors", {name: tensor.numpy() for name, tensor in aligner.tensors.items()})
        atomic_write(out / "refused.txt", "".join(f"{refusal.line()}\n" for refusal in refused).encode())
        manifest = DatasetManifest(
            name=corpus.path.resolve().name,
            codec={**codec.describe(), "cid": file_cid(out / "codec" / "model.safetensors")},
            phonemes=phonemizer.inventory.symbols,
            languages=[phonemizer.language],
            speakers=[corpus.speaker],
            shards=shards,
            heldout=heldout,
            aligner_cid=file_cid(out / "aligner.safetensors"),
            licences=[corpus.licence],
        )
        atomic_write(out / "manifest.json", sign_manifest(key, manifest))
        (out / UNFINISHED).unlink(missing_ok=True)
        current = {f"{entry.cid}.parquet" for entry in [*shards, *heldout]}
        for name in os.listdir(out / "shards"):  # of an earlier dataset
            if name.endswith(".parquet") and name not in current:
                (out / "shards" / name).unlink()
    except OSError as error:
        raise disk_error(error, out) from error
    for refusal in refused:
        logger.warning("left out %s", refusal.line())
    return manifest
