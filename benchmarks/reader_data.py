"""The utterances of the reader benchmark in the form of each reader: our shards, those of mosaicml-streaming, webdataset's tars.

Every utterance is a function of its number, so that each writer writes the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tokenizer.shards import Utterance

CODEBOOKS, CODEBOOK_SIZE, SYMBOLS = 8, 256, 75
LANGUAGE = "en-US"
ROWS_PER_SHARD = 400
WORDS = (
    "please",
    "press",
    "the",
    "pound",
    "key",
    "after",
    "you",
    "have",
    "entered",
    "your",
    "number",
    "and",
    "wait",
    "for",
    "it",
)
ARRAYS = ("phonemes", "durations", "word_starts", "codes")
FACTS = ("id", "text", "spoken", "language", "speaker", "licence", "align_score", "n_frames")


def utterance(number: int) -> Utterance:
    """The utterance of that number: 2 to 6 seconds at 50 frames a second, of the shipped codec's shape."""
    from tokenizer.shards import Utterance

    draw = np.random.Generator(np.random.Philox(key=[7, number]))
    frames, count = int(draw.integers(100, 300)), int(draw.integers(20, 60))
    cuts = np.sort(draw.choice(np.arange(1, frames), count - 1, replace=False))
    text = " ".join(WORDS[n] for n in draw.integers(0, len(WORDS), count // 4))
    return Utterance(
        id=f"utterance-{number:06}",
        text=text,
        spoken=text,
        phonemes=draw.integers(1, SYMBOLS, count).astype(np.uint16),
        durations=np.diff(cuts, prepend=0, append=frames).astype(np.uint16),
        word_starts=draw.integers(0, 2, count).astype(np.uint8),
        align_score=float(np.float32(-draw.random())),
        language=LANGUAGE,
        speaker=f"speaker-{number % 21}",
        codes=draw.integers(0, CODEBOOK_SIZE, (CODEBOOKS, frames)).astype(np.uint16),
        n_frames=frames,
        speaker_embedding=None,
        licence="CC0-1.0",
    )


def write_hocket(folder: Path, count: int) -> None:
    """A signed dataset."""
    from common.files import atomic_write
    from protocol.content import cid_of
    from protocol.identity import MemberKey
    from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
    from tokenizer.shards import shard_bytes

    entries = []
    for rows in _parts(count):
        data = shard_bytes(rows)
        frames = sum(row.n_frames for row in rows)
        entries.append(ShardEntry(cid=cid_of(data), rows=len(rows), frames=frames, size_bytes=len(data)))
        atomic_write(folder / "shards" / f"{entries[-1].cid}.parquet", data)
    codec = {"kind": "random", "sample_rate": 16000, "frame_rate": 50.0, "hop": 320}
    manifest = DatasetManifest(
        name="random",
        codec={**codec, "n_codebooks": CODEBOOKS, "codebook_size": CODEBOOK_SIZE},
        phonemes=[f"p{number}" for number in range(SYMBOLS)],
        languages=[LANGUAGE],
        speakers=[f"speaker-{number}" for number in range(21)],
        shards=entries,
        heldout=[],
        licences=["CC0-1.0"],
    )
    atomic_write(folder / "manifest.json", sign_manifest(MemberKey.generate(), manifest))


def write_mosaicml(folder: Path, count: int) -> None:
    """Uncompressed MDS shards, which is what reads fastest."""
    from benchmarks.competitors import import_streaming

    columns = {**dict.fromkeys(FACTS[:6], "str"), "align_score": "float32", "n_frames": "int32"}
    columns |= {
        "phonemes": "ndarray:uint16",
        "durations": "ndarray:uint16",
        "word_starts": "ndarray:uint8",
        "codes": "ndarray:uint16",
    }
    with import_streaming().MDSWriter(out=str(folder), columns=columns, size_limit=1 << 22) as out:
        for row in _rows(count):
            sample: dict[str, Any] = {name: getattr(row, name) for name in (*FACTS, *ARRAYS)}
            sample["align_score"], sample["n_frames"] = np.float32(row.align_score), np.int32(row.n_frames)
            out.write(sample)


def write_webdataset(folder: Path, count: int) -> None:
    """Tars of one msgpack member a sample: fewer members read faster."""
    import webdataset

    folder.mkdir(parents=True, exist_ok=True)
    with webdataset.ShardWriter(str(folder / "shard-%05d.tar"), maxcount=ROWS_PER_SHARD, verbose=0) as out:
        for row in _rows(count):
            facts = {name: getattr(row, name) for name in FACTS}
            arrays = {
                name: (getattr(row, name).dtype.str, getattr(row, name).shape, getattr(row, name).tobytes()) for name in ARRAYS
            }
            out.write({"__key__": row.id, "mp": {**facts, **arrays}})


def _rows(count: int) -> Iterator[Utterance]:
    return (utterance(number) for number in range(count))


def _parts(count: int) -> Iterator[list[Utterance]]:
    for start in range(0, count, ROWS_PER_SHARD):
        yield [utterance(number) for number in range(start, min(count, start + ROWS_PER_SHARD))]
