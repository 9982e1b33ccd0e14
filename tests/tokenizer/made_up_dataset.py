"""A small dataset of random rows, written as the tokeniser writes one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protocol.content import cid_of, file_cid
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, ShardEntry, sign_manifest
from tokenizer.codec import load_codec
from tokenizer.phonemes import ENGLISH_SYMBOLS
from tokenizer.shards import Utterance, shard_bytes


def made_up_row(number: int, **changes: Any) -> Utterance:
    """A consistent row whose content is a function of its number."""
    draw = np.random.default_rng(number)
    durations = draw.integers(2, 9, size=int(draw.integers(4, 20))).astype(np.uint16)
    total = int(durations.sum())
    row = Utterance(
        id=f"clip-{number}",
        text=f"Text {number}.",
        spoken=f"text {number}",
        phonemes=draw.integers(1, len(ENGLISH_SYMBOLS), size=len(durations)).astype(np.uint16),
        durations=durations,
        word_starts=draw.integers(0, 2, size=len(durations)).astype(np.uint8),
        align_score=float(np.float32(-draw.random())),
        language="en-US" if number % 3 else "fr",
        speaker=f"voice-{number % 2}",
        codes=draw.integers(0, 256, size=(4, total)).astype(np.uint16),
        n_frames=total,
        speaker_embedding=None,
        licence="CC0-1.0",
    )
    return replace(row, **changes)


def write_dataset(
    folder: Path, training: list[list[Utterance]], heldout: list[list[Utterance]], **changes: Any
) -> DatasetManifest:
    """Write shards, codec and a signed manifest; the lists are the shards."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    codec = load_codec("hocket-16k", n_codebooks=4)
    codec.save(folder / "codec")

    def entries(shards: list[list[Utterance]]) -> list[ShardEntry]:
        made = []
        for rows in shards:
            data = shard_bytes(rows)
            (folder / "shards" / f"{cid_of(data)}.parquet").write_bytes(data)
            frames = sum(row.n_frames for row in rows)
            made.append(ShardEntry(cid=cid_of(data), rows=len(rows), frames=frames, size_bytes=len(data)))
        return made

    everything = [row for rows in [*training, *heldout] for row in rows]
    lines = [
        json.dumps({"id": row.id, "seconds": 1.0, "rate": 16000, "channels": 1, "peak_db": -3.0, "rms_db": -20.0, "clipped": 0.0})
        for row in everything
    ]
    (folder / "audio.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "refused.txt").write_text("bad: H208 it cannot be read\nworse: H212 its recording does not say its text\n")
    values: dict[str, Any] = {
        "name": "made-up",
        "codec": {**codec.describe(), "cid": file_cid(folder / "codec" / "model.safetensors")},
        "phonemes": list(ENGLISH_SYMBOLS),
        "languages": ["en-US", "fr"],
        "speakers": ["voice-0", "voice-1"],
        "shards": entries(training),
        "heldout": entries(heldout),
        "audio_cid": file_cid(folder / "audio.jsonl"),
        "licences": ["CC0-1.0"],
    }
    manifest = DatasetManifest(**{**values, **changes})
    (folder / "manifest.json").write_bytes(sign_manifest(MemberKey.generate(), manifest))
    return manifest
