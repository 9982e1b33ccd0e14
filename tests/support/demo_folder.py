"""A folder as `hocket demo` leaves it: an export of an untrained model beside a dataset whose held-out rows are shipped clips."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from untrained_export import CODEBOOKS, SYMBOLS, untrained

from common.files import atomic_write
from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from tokenizer.audio import read_audio
from tokenizer.codec import load_codec
from tokenizer.corpus import default_corpus, scan_corpus
from tokenizer.phonemes import PhonemeInventory, Phonemizer
from tokenizer.shards import shard_bytes
from tokenizer.utterance import Utterance
from tts.durations import fit

HELDOUT = ("slt-0702", "slt-0704", "slt-0707", "slt-0712")


def shipped_rows(ids: Sequence[str], speakers: Sequence[str]) -> list[Utterance]:
    """Rows of shipped clips, every phoneme equally long; their speakers take turns."""
    clips = {clip.id: clip for clip in scan_corpus(default_corpus()).clips}
    codec, reader = load_codec("hocket-16k", n_codebooks=CODEBOOKS), Phonemizer("en-US")
    inventory, rows = PhonemeInventory(SYMBOLS), []
    for number, name in enumerate(ids):
        clip = clips[name]
        codes, read = codec.encode(read_audio(clip.audio, codec.sample_rate)), reader.phonemize(clip.text)
        phonemes = inventory.encode(read.phonemes)
        rows.append(Utterance(
            id=name, text=clip.text, spoken=read.spoken, phonemes=phonemes, word_starts=np.array(read.word_starts, np.uint8),
            durations=fit(np.ones(len(phonemes)), codes.shape[1]).astype(np.uint16), align_score=-0.1, language="en-US",
            speaker=speakers[number % len(speakers)], codes=codes, n_frames=codes.shape[1], speaker_embedding=None,
            licence="Apache-2.0",
        ))  # fmt: skip
    return rows


def demo_folder(
    folder: Path, *, ids: Sequence[str] = HELDOUT, speakers: Sequence[str] = ("flite-slt",), **about: Any
) -> Path:
    """Write `folder`/checkpoint and `folder`/data; returns the folder.

    Args:
        speakers: of the held-out rows, in turn. about: fields of the export's `Card`.
    """
    checkpoint = untrained(folder, speakers=tuple(speakers), **about)
    codec = load_codec(checkpoint / "codec", n_codebooks=CODEBOOKS)
    rows = shipped_rows(ids, speakers)
    data = shard_bytes(rows)
    frames = sum(row.n_frames for row in rows)
    entry = ShardEntry(cid=cid_of(data), rows=len(rows), frames=frames, size_bytes=len(data))
    manifest = DatasetManifest(
        name="shipped", codec={**codec.describe(), "cid": file_cid(checkpoint / "codec" / "model.safetensors")},
        phonemes=list(SYMBOLS), languages=["en-US"], speakers=list(speakers), shards=[], heldout=[entry],
        licences=["Apache-2.0"],
    )  # fmt: skip
    atomic_write(folder / "data" / "shards" / f"{entry.cid}.parquet", data)
    atomic_write(folder / "data" / "manifest.json", sign_manifest(MemberKey.generate(), manifest))
    return folder
