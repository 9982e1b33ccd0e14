"""The files of a dataset: shards, codec, aligners, what was refused, what the recordings are like; the signed manifest last."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.faults import Faults
from common.files import atomic_write, disk_error
from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from tokenizer.align import Aligner
from tokenizer.aligner_file import save_aligner
from tokenizer.audio_stream import AudioFacts
from tokenizer.corpus import Refusal
from tokenizer.encode_jobs import CodeStore
from tokenizer.items import Item
from tokenizer.phonemes import inventory_for
from tokenizer.shards import Utterance, shard_bytes

QUIETEST = 1e-10
Done = Callable[[int], None]


@dataclass(frozen=True)
class Row:
    """A row of a shard, without its codes: a clip or a part of one.

    Args:
        index: of the item that it is of.
        frames: of the item's that it has.
    """

    index: int
    id: str
    text: str
    spoken: str
    phonemes: NDArray[np.uint16]
    durations: NDArray[np.uint16]
    word_starts: NDArray[np.uint8]
    score: float
    frames: slice


def utterance_of(row: Row, item: Item, store: CodeStore, embedding: NDArray[np.float32] | None) -> Utterance:
    """The row with its codes and the embedding [E] of its speaker."""
    codes = np.ascontiguousarray(store.codes(row.index)[:, row.frames])
    return Utterance(
        id=row.id,
        text=row.text,
        spoken=row.spoken,
        phonemes=row.phonemes,
        durations=row.durations,
        word_starts=row.word_starts,
        align_score=row.score,
        language=item.language,
        speaker=item.speaker,
        codes=codes,
        n_frames=codes.shape[1],
        speaker_embedding=embedding,
        licence=item.licence,
    )


def write_shards(folder: Path, rows: Iterable[Utterance], target_bytes: int, done: Done, faults: Faults) -> list[ShardEntry]:
    """Write rows into shards of at most `target_bytes` in memory, unless one row is larger; one shard is in memory at a time."""
    entries: list[ShardEntry] = []
    for number, part in enumerate(_parts(rows, target_bytes)):
        data = shard_bytes(part)
        cid = cid_of(data)
        atomic_write(folder / f"{cid}.parquet", _in_halves(data, faults, number))
        faults.reach("tokenize.shard.after", shard=number)
        entries.append(ShardEntry(cid=cid, rows=len(part), frames=sum(row.n_frames for row in part), size_bytes=len(data)))
        done(len(part))
    return entries


def _parts(rows: Iterable[Utterance], target_bytes: int) -> Iterator[list[Utterance]]:
    part: list[Utterance] = []
    size = 0
    for row in rows:
        if part and size + row.size_bytes > target_bytes:
            yield part
            part, size = [], 0
        part.append(row)
        size += row.size_bytes
    if part:
        yield part


def _in_halves(data: bytes, faults: Faults, number: int) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    faults.reach("tokenize.shard.half", shard=number)
    yield data[len(data) // 2 :]


def write_aligners(out: Path, aligners: Mapping[str, Aligner], codec: Mapping[str, object]) -> dict[str, str]:
    """Write each language's aligner to `aligners/`, the first one's to `aligner.safetensors` too; their CIDs by language."""
    cids: dict[str, str] = {}
    for number, (language, aligner) in enumerate(aligners.items()):
        paths = [out / "aligners" / f"{language}.safetensors", *([out / "aligner.safetensors"] if number == 0 else [])]
        for path in paths:
            save_aligner(path, aligner, languages=[language], codec=codec, symbols=inventory_for([language]).symbols)
        cids[language] = file_cid(paths[0])
    _remove_others(out / "aligners", {f"{language}.safetensors" for language in aligners})
    if not aligners:
        (out / "aligner.safetensors").unlink(missing_ok=True)
    return cids


def write_refused(path: Path, refused: Iterable[Refusal]) -> None:
    """One line for each clip that was left out, with its reason."""
    atomic_write(path, (f"{refusal.line()}\n".encode() for refusal in refused))


def write_audio_facts(path: Path, facts: Iterable[tuple[str, AudioFacts]]) -> None:
    """One line of JSON for each clip that was read: length, rate, channels, loudness and clipping."""
    atomic_write(path, (_audio_line(name, found) for name, found in facts))


def _audio_line(name: str, facts: AudioFacts) -> bytes:
    line = {
        "id": name,
        "seconds": round(facts.seconds, 3),
        "rate": facts.rate,
        "channels": facts.channels,
        "peak_db": round(20 * math.log10(max(facts.peak, QUIETEST)), 2),
        "rms_db": round(20 * math.log10(max(facts.rms, QUIETEST)), 2),
        "clipped": round(facts.clipped, 6),
    }
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


def install_codec(source: Path, target: Path) -> None:
    """Move the files of a saved codec to where they belong, in place of an earlier one's."""
    target.mkdir(parents=True, exist_ok=True)
    names = sorted(os.listdir(source))
    for name in names:
        os.replace(source / name, target / name)
    _remove_others(target, set(names))


def _remove_others(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in names and path.is_file():
            path.unlink()


def finish(out: Path, key: MemberKey, manifest: DatasetManifest, faults: Faults) -> None:
    """Sign and write the manifest, and remove the shards of an earlier dataset."""
    faults.reach("tokenize.manifest.before")
    atomic_write(out / "manifest.json", sign_manifest(key, manifest))
    faults.reach("tokenize.manifest.after")
    current = {f"{entry.cid}.parquet" for entry in [*manifest.shards, *manifest.heldout]}
    try:
        for name in os.listdir(out / "shards"):
            if name.endswith(".parquet") and name not in current:
                (out / "shards" / name).unlink()
    except OSError as error:
        raise disk_error(error, out) from error


def check_sides(training: Sequence[Row], heldout: Sequence[Row]) -> None:
    """CORPUS_TOO_SMALL where nothing is left to train on or to hold out."""
    if not training or not heldout:
        detail = f"{len(training)} clips to train on and {len(heldout)} to hold out are left"
        raise HocketError(Code.CORPUS_TOO_SMALL, detail)
