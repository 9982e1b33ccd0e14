"""A corpus to a dataset: texts to phonemes, recordings to codes, their alignment, shards and a signed manifest.

Texts are read before any audio; a clip that cannot be used is left out with its reason (`refused.txt`), and if more than a small
share cannot, the work stops as soon as that is known. It goes on where it was broken off, with the same result to the byte.

The output folder holds `manifest.json` (signed, written last), `shards/CID.parquet`, `codec/` (a copy, so that the dataset can
be listened to), `aligner.safetensors` and `aligners/LANGUAGE.safetensors`, `audio.jsonl` and `refused.txt`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common.errors import Code, HocketError
from common.faults import Fault, Faults
from common.files import disk_error
from protocol.content import file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest
from tokenizer.align_stage import Aligned, AlignSettings, align_language, check_aligner
from tokenizer.audio_progress import AudioProgress
from tokenizer.audio_stream import AudioFacts
from tokenizer.codec import Codec
from tokenizer.corpus import Corpus, Refusal, scan_corpus
from tokenizer.dataset_writer import (
    Row,
    check_sides,
    finish,
    install_codec,
    utterance_of,
    write_aligners,
    write_audio_facts,
    write_refused,
    write_shards,
)
from tokenizer.encode_jobs import CLIPS_PER_JOB, CodeStore, Encoded, JobResult, slices
from tokenizer.heldout import check_named, choose_held_out
from tokenizer.items import Item
from tokenizer.phonemes import inventory_for
from tokenizer.recording_jobs import RecordingTask, read_pieces
from tokenizer.recordings.extras import check_speaker_extra
from tokenizer.rows import MAX_CLIP_S, rows_of
from tokenizer.speakers import DatasetVoices, embeds_speakers, listed_voices, speakers_of
from tokenizer.text_gate import MAX_REFUSED, Passage, TextReader, check_cues, check_refused, default_language, passages_of
from tokenizer.utterance import Utterance
from tokenizer.work import Work, inputs_of, open_work, versions
from tokenizer.worker_pool import Answer, Job, WorkerSettings, start_workers

logger = logging.getLogger(__name__)

SHARD_TARGET_BYTES = 2**20
TEXTS_AT_A_TIME = 16
LOGGED_REFUSALS = 20

Progress = Callable[[str, int, int], None]
"""Called with (what is done: "text", "recordings", "audio", "align", "shards"; units done; units in all)."""


def _silent(phase: str, done: int, total: int) -> None:
    pass


def _not_heard(progress: AudioProgress) -> None:
    pass


@dataclass
class _Run:
    """What one call of `tokenize` works with."""

    corpus: Corpus
    codec: Codec
    codec_facts: dict[str, Any]
    work: Work
    workers: Callable[[Sequence[Job]], Iterator[Answer]]
    reader: TextReader
    refused: list[Refusal]  # what counts towards the share that stops the work
    uncovered: list[Refusal]  # speech of recordings that their subtitles leave out
    share: float
    report: Progress
    heard: Callable[[AudioProgress], None]
    faults: Faults


def tokenize(
    corpus: Path,
    language: str | None,
    codec: Codec,
    out: Path,
    *,
    key: MemberKey,
    heldout: int | Sequence[str] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    shard_target_bytes: int = SHARD_TARGET_BYTES,
    processes: int = 1,
    devices: Sequence[str] | None = None,
    allow_refused: float = MAX_REFUSED,
    aligner: Path | None = None,
    speakers: bool | None = None,
    max_clip_s: float = MAX_CLIP_S,
    batch_size: int | None = None,
    heard: Callable[[AudioProgress], None] | None = None,
    fault_plan: Sequence[str] = (),
    first: int | None = None,
) -> DatasetManifest:
    """Tokenise a corpus into `out`.

    Args:
        corpus: what `scan_corpus` takes.
        language: BCP 47 tag of the texts whose rows name none; None where every row or the corpus does.
        codec: gives the codes, and the features of the alignment.
        out: folder; absent, empty, or an earlier dataset, finished or broken off. A finished one is replaced; one broken off
            with the same inputs, settings and versions is gone on with.
        key: signs the manifest.
        heldout: ids that are never trained on, or how many; by default those of the corpus's `heldout.txt`, else one clip in
            twenty, at most 100, chosen by a hash of their ids, sentences of 4 to 14 words that occur once first.
        progress: called as the work goes on.
        seed: of the aligner.
        shard_target_bytes: of one shard's rows in memory; at most that unless one row is larger.
        processes: that cut and encode. devices: of these in turn, all of one kind; the CPU by default.
        allow_refused: the share of the clips that may be refused.
        aligner: a file of an aligner to use instead of learning one, for the languages that it knows.
        speakers: embed the speaker of each clip; None: where the corpus has more than one. False: no row has an embedding, not
            even those of recordings.
        max_clip_s: longer clips are cut at pauses.
        batch_size: windows of speech embedded together; None: by the free memory of the device.
        heard: called with the hours that are done.
        fault_plan: see docs/faults.md.
        first: only so many clips, of the beginning of the corpus; None: all. Recordings are not counted, and all taken.

    Raises:
        HocketError: LANGUAGE_REFUSED, CORPUS_UNREADABLE, CORPUS_TOO_SMALL, OUTPUT_EXISTS, DISK_FULL, STATE_UNREADABLE,
            STATE_LOCKED, OPTION_INVALID, EXTRA_MISSING, CHILD_FAILED; TEXT_NOT_SPOKEN for a corpus whose recordings do not say
            its texts; and the commonest reason's number when more than `allow_refused` of the clips are refused. The manifest
            is as it was then.
    """
    if not 0 <= allow_refused < 1 or not max_clip_s > 0:
        raise HocketError(Code.OPTION_INVALID, f"a share of {allow_refused} refused, clips of {max_clip_s} s")
    if language is not None:
        TextReader(None).phonemizer(language)
    spread = WorkerSettings(tuple(devices or ("cpu",)), processes, torch.get_num_threads(), tuple(fault_plan), batch_size)
    spread.check()
    plan = [Fault.parse(line) for line in fault_plan]
    with open_work(out) as work:
        found = scan_corpus(corpus)
        found = found if first is None else found.first(first)
        reader = TextReader(default_language(found, language))
        embeds = embeds_speakers(found, speakers)
        if embeds:
            check_speaker_extra(len(speakers_of(found)))
        facts = _keep_codec(codec, work)
        resumed = work.bind({
            "inputs": inputs_of(found), "language": reader.default, "codec": facts, "device": spread.kind, "speakers": embeds,
            "threads": spread.threads, "batch_size": batch_size, "clips_per_job": CLIPS_PER_JOB, "versions": versions(),
        })  # fmt: skip
        faults = Faults(plan)
        faults.reach("tokenize.plan.after")
        if resumed and work.has_results:
            logger.info("going on with the work in %s", work.folder)
        with start_workers(spread, codec, work.codec, plan) as workers:
            run = _Run(
                found, codec, facts, work, workers, reader, list(found.refused), [], allow_refused, progress or _silent,
                heard or _not_heard, faults,
            )  # fmt: skip
            items = _read(run, heldout)
            total = len(items) + len(run.refused)
            settings = AlignSettings(facts, codec.frame_rate, seed, aligner)
            if aligner is not None:
                check_aligner(aligner, sorted({item.language for item in items if item.transcribed}), settings)
            encoded = _encode(run, items, total, embeds)
        usable = [index for index, result in enumerate(encoded) if result.code is None]
        named = found.heldout if heldout is None else heldout
        held = choose_held_out([(items[index].id, items[index].spoken) for index in usable], named)
        store = CodeStore(work.job, codec.codebook_vectors())
        aligned = _align(run, items, usable, held, store, settings)
        check_refused(run.refused, total, allow_refused)
        rows = rows_of(items, encoded, aligned, codec.frame_rate, max_clip_s)
        voices = None if speakers is False else DatasetVoices(items, [row.index for row in rows], held, store.voice)
        return _write(run, out, items, encoded, rows, held, aligned, store, voices, key, shard_target_bytes)


def _keep_codec(codec: Codec, work: Work) -> dict[str, Any]:
    """A copy of the codec in the work folder, for other processes; its description."""
    try:
        codec.save(work.codec)
    except OSError as error:
        raise disk_error(error, work.codec) from error
    return {**codec.describe(), "cid": file_cid(work.codec / "model.safetensors")}


def _read(run: _Run, heldout: int | Sequence[str] | None) -> list[Item]:
    """All texts, first those that are there before any audio is read, then those of the pieces of recordings."""
    clips = passages_of(run.corpus)
    items = _read_texts(run, clips)
    cues, bad = check_cues(run.corpus.recordings, run.reader)
    check_refused([*run.refused, *bad], len(items) + len(run.refused) + cues, run.share)
    if not run.corpus.recordings:
        _check_held_out(run, items, heldout)
    run.reader.check_languages()
    pieces = _cut(run)
    items += _read_texts(run, pieces)
    check_refused(run.refused, len(items) + len(run.refused), run.share)
    if run.corpus.recordings:
        _check_held_out(run, items, heldout)
    return items


def _read_texts(run: _Run, passages: Sequence[Passage]) -> list[Item]:
    items: list[Item] = []
    for start in range(0, len(passages), TEXTS_AT_A_TIME):
        part = passages[start : start + TEXTS_AT_A_TIME]
        items += run.reader.read_all(part, run.refused)
        run.report("text", start + len(part), len(passages))
    return items


def _check_held_out(run: _Run, items: Sequence[Item], heldout: int | Sequence[str] | None) -> None:
    """Find out before the audio is read that nothing could be held out, or that its ids are wrong."""
    named = run.corpus.heldout if heldout is None else heldout
    check_named(named, {item.id for item in items} | {refusal.id for refusal in run.refused}, str(run.corpus.path))
    choose_held_out([(item.id, item.spoken) for item in items], named)


def _cut(run: _Run) -> list[Passage]:
    recordings = run.corpus.recordings
    missing = [number for number in range(len(recordings)) if not run.work.cut(number).is_file()]
    jobs: list[Job] = [
        {
            "kind": "cut", "number": number, "path": str(run.work.cut(number).absolute()),
            "recording": RecordingTask(recordings[number].audio, recordings[number].subtitles).to_json(),
        }
        for number in missing
    ]  # fmt: skip
    done = len(recordings) - len(missing)
    seconds: dict[int, float] = {}
    for answer in run.workers(jobs):
        if "heard" in answer:
            seconds[answer["job"]] = answer["heard"]
            run.heard(AudioProgress("recordings", done, len(recordings), sum(seconds.values()), 0.0))
            continue
        done += 1
        run.report("recordings", done, len(recordings))
    pieces: list[Passage] = []
    for number, recording in enumerate(recordings):
        found, refused, uncovered = read_pieces(run.work.cut(number), recording, run.corpus)
        pieces += found
        run.refused += refused
        run.uncovered += uncovered
    return pieces


def _encode(run: _Run, items: list[Item], total: int, speakers: bool) -> list[Encoded]:
    """What became of every item, in order; the work stops once too many of `total` clips are refused."""
    tasks = slices(items)
    refused, clips, seconds, before = list(run.refused), 0, 0.0, 0.0
    missing: list[Job] = []
    results: dict[int, list[Encoded]] = {}  # by job; they come in any order

    def take(number: int) -> float:
        nonlocal clips, seconds
        heard = 0.0
        results[number] = JobResult(run.work.job(number)).clips
        for task, result in zip(tasks[number], results[number], strict=True):
            clips += 1
            heard += 0.0 if result.facts is None else result.facts.seconds
            if result.code is not None:
                refused.append(Refusal(task.id, result.code, result.reason))
        seconds += heard
        check_refused(refused, total, run.share)
        run.report("audio", clips, len(items))
        return heard

    for number, part in enumerate(tasks):
        if run.work.job(number).is_file():
            before += take(number)
        else:
            missing.append({
                "kind": "encode", "number": number, "path": str(run.work.job(number).absolute()), "speakers": speakers,
                "clips": [task.to_json() for task in part],
            })  # fmt: skip
    for answer in run.workers(missing):
        take(answer["done"])
        run.heard(AudioProgress("audio", clips, len(items), seconds, before))
    encoded = [result for number in range(len(tasks)) for result in results[number]]
    for item, result in zip(items, encoded, strict=True):
        if result.code is not None:
            run.refused.append(Refusal(item.id, result.code, result.reason))
    return encoded


def _align(
    run: _Run, items: list[Item], usable: list[int], held: set[str], store: CodeStore, settings: AlignSettings
) -> dict[str, Aligned]:
    """The alignment of every language that has transcripts; what it refuses is added to the refused."""
    spoken = [index for index in usable if items[index].transcribed]
    languages = sorted({items[index].language for index in spoken})
    aligned: dict[str, Aligned] = {}
    for number, language in enumerate(languages):
        run.report("align", number, len(languages))
        indices = [index for index in spoken if items[index].language == language]
        aligned[language] = align_language(language, indices, items, held, store, settings, run.work)
        run.faults.reach("tokenize.align.after", language=language)
        judged = aligned[language].judged
        if judged.corpus_problem is not None:
            remedy = f"check that the texts are {language} and belong to their recordings"
            raise HocketError(Code.TEXT_NOT_SPOKEN, f"{run.corpus.path}, {language}: {judged.corpus_problem}", remedy=remedy)
        for place, reason in sorted(judged.refused.items()):
            run.refused.append(Refusal(items[indices[place]].id, Code.TEXT_NOT_SPOKEN, reason))
    run.report("align", len(languages), len(languages))
    return aligned


def _write(
    run: _Run,
    out: Path,
    items: list[Item],
    encoded: list[Encoded],
    rows: list[Row],
    held: set[str],
    aligned: dict[str, Aligned],
    store: CodeStore,
    voices: DatasetVoices | None,
    key: MemberKey,
    target_bytes: int,
) -> DatasetManifest:
    training = [row for row in rows if items[row.index].id not in held]
    kept_out = [row for row in rows if items[row.index].id in held]
    check_sides(training, kept_out)
    written = 0

    def done(count: int) -> None:
        nonlocal written
        written += count
        run.report("shards", written, len(rows))

    def facts() -> Iterator[tuple[str, AudioFacts]]:
        return ((item.id, result.facts) for item, result in zip(items, encoded, strict=True) if result.facts is not None)

    def filled(part: Sequence[Row]) -> Iterator[Utterance]:
        return (utterance_of(row, items[row.index], store, None if voices is None else voices.of(row.index)) for row in part)

    try:
        shards = write_shards(out / "shards", filled(training), target_bytes, done, run.faults)
        heldout = write_shards(out / "shards", filled(kept_out), target_bytes, done, run.faults)
        install_codec(run.work.codec, out / "codec")
        cids = write_aligners(out, {language: found.aligner for language, found in aligned.items()}, run.codec_facts)
        left_out = [*run.refused, *run.uncovered]
        write_refused(out / "refused.txt", left_out)
        write_audio_facts(out / "audio.jsonl", facts())
        used = [items[row.index] for row in rows]
        languages = sorted({item.language for item in used})
        manifest = DatasetManifest(
            name=run.corpus.path.resolve().name,
            codec=run.codec_facts,
            phonemes=inventory_for(languages).symbols,
            languages=languages,
            speakers=sorted({item.speaker for item in used}),
            shards=shards,
            heldout=heldout,
            aligner_cid=next(iter(cids.values()), None),
            aligners=cids,
            audio_cid=file_cid(out / "audio.jsonl"),
            speaker_embedding=_embedding_facts() if voices is not None and voices.means else {},
            voices={} if voices is None else listed_voices(voices.means),
            untranscribed_rows=sum(not item.transcribed for item in used),
            refused_clips=len(left_out),
            dropped_characters=dict(sorted(Counter(sign for item in items for sign in item.dropped).items())),
            licences=sorted({item.licence for item in used}),
        )
        finish(out, key, manifest, run.faults)
    except OSError as error:
        raise disk_error(error, out) from error
    _log_refused(left_out)
    return manifest


def _embedding_facts() -> dict[str, Any]:
    from tokenizer.recordings.embed import DIM, NAME

    return {"dim": DIM, "encoder": NAME}


def _log_refused(refused: Sequence[Refusal]) -> None:
    for refusal in refused[:LOGGED_REFUSALS]:
        logger.warning("left out %s", refusal.line())
    if len(refused) > LOGGED_REFUSALS:
        logger.warning("left out %d more, see refused.txt", len(refused) - LOGGED_REFUSALS)
