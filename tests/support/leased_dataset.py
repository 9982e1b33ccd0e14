"""A dataset that can be read, for the scripted coordinator, and what stage 0 makes of its leases as a worker does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.content import cid_of
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from tokenizer.reader import DatasetReader
from tokenizer.shards import shard_bytes
from tokenizer.utterance import Utterance
from tts.batch import TextBatch
from tts.config import ModelConfig
from tts.reference import cut_microbatches
from tts.tempo import vary_tempo

BOOKS, CARD, SYMBOLS = 4, 32, 12
LANGUAGES = ("en", "de")
SHARDS = (20, 7, 13)


def row(number: int) -> Utterance:
    """A consistent row of some 80 to 120 frames, a function of its number."""
    draw = np.random.default_rng(number)
    durations = draw.integers(4, 17, size=10).astype(np.uint16)
    total = int(durations.sum())
    return Utterance(
        id=f"u{number}", text=f"text {number}", spoken=f"text {number}",
        phonemes=draw.integers(1, SYMBOLS, size=10).astype(np.uint16), durations=durations,
        word_starts=draw.integers(0, 2, size=10).astype(np.uint8), align_score=-0.5, language=LANGUAGES[number % 2],
        speaker="x", codes=draw.integers(0, CARD, size=(BOOKS, total)).astype(np.uint16), n_frames=total,
        speaker_embedding=None, licence="CC0-1.0",
    )  # fmt: skip


def made_up() -> tuple[DatasetManifest, dict[str, bytes]]:
    """The manifest of a dataset of several shards, and its shards by CID."""
    shards, entries, first = {}, [], 0
    for size in (*SHARDS, 3):
        rows = [row(first + number) for number in range(size)]
        data = shard_bytes(rows)
        frames = sum(one.n_frames for one in rows)
        entries.append(ShardEntry(cid=cid_of(data), rows=size, frames=frames, size_bytes=len(data)))
        shards[cid_of(data)] = data
        first += size
    manifest = DatasetManifest(
        name="leased", codec={"kind": "small", "n_codebooks": BOOKS, "codebook_size": CARD},
        phonemes=["_", *(chr(ord("a") + number) for number in range(SYMBOLS - 1))], languages=list(LANGUAGES), speakers=["x"],
        shards=entries[:-1], heldout=entries[-1:], licences=["CC0-1.0"],
    )  # fmt: skip
    return manifest, shards


def write_dataset(folder: Path) -> None:
    """Put it into a folder in the place of what is there."""
    manifest, shards = made_up()
    for cid, data in shards.items():
        (folder / "shards" / f"{cid}.parquet").write_bytes(data)
    (folder / "manifest.json").write_bytes(sign_manifest(MemberKey.generate(), manifest))


def reader_of(manifest: DatasetManifest, shards: Mapping[str, bytes]) -> DatasetReader:
    """The dataset as a worker reads it."""

    async def shard(cid: str) -> bytes:
        return shards[cid]

    return DatasetReader(manifest, shard)


async def batches_of(
    reader: DatasetReader, rows: pb.LeasedRows, config: ModelConfig, seed: int,
    poison: Callable[[Sequence[Any]], Sequence[Any]] = lambda utterances: utterances,
) -> list[TextBatch]:  # fmt: skip
    """The microbatches of a lease as `node.feeder.Feeder.prepare` cuts them.

    Args:
        poison: what an attacker does with the utterances that it has read.
    """
    read = poison(await reader.utterances(rows.epoch, rows.start, rows.stop, seed))
    told = vary_tempo(read, config, seed=seed, epoch=rows.epoch, first=rows.start)
    return cut_microbatches(told, rows.microbatches, config, LANGUAGES)
