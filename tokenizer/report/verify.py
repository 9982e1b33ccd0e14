"""Whether a dataset is what its manifest says: every file, every row. One shard is in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import HocketError
from protocol.content import file_cid
from protocol.manifest import ShardEntry
from tokenizer.dataset_folder import DatasetFolder
from tokenizer.shards import ROW_GROUP_BYTES, Utterance

Progress = Callable[[int, int], None]
LISTED_FAULTS = 1000


@dataclass
class Verified:
    """What was found.

    Args:
        faults: one line each, of the first LISTED_FAULTS. count: of all of them.
        rows, untranscribed, frames, shards: that were read.
    """

    faults: list[str] = field(default_factory=list)
    count: int = 0
    shards: int = 0
    rows: int = 0
    untranscribed: int = 0
    frames: int = 0

    def blame(self, faults: Iterable[str]) -> None:
        """Count faults, and keep as many of them as are listed."""
        for fault in faults:
            self.count += 1
            if len(self.faults) < LISTED_FAULTS:
                self.faults.append(fault)


def verify_dataset(dataset: DatasetFolder, progress: Progress) -> Verified:
    """Check every file that the manifest names, and every row.

    Args:
        progress: called with (shards done, shards in all).
    """
    found, manifest = Verified(), dataset.manifest
    total = len(manifest.shards) + len(manifest.heldout)
    trained: set[bytes] = set()
    seen: set[bytes] = set()
    for number, (entry, held) in enumerate(dataset.shards(), start=1):
        try:
            rows = dataset.rows_of(entry)
        except HocketError as error:
            found.blame([f"shard {entry.cid}: {error.detail}"])
        else:
            found.shards, found.rows = found.shards + 1, found.rows + len(rows)
            found.frames += sum(row.n_frames for row in rows)
            found.untranscribed += sum(not row.text for row in rows)
            found.blame(_row_groups(dataset.shard_path(entry), entry, rows))
            for row in rows:
                found.blame(_row(dataset, row, held, seen, trained))
        progress(number, total)
    found.blame(_files(dataset))
    if found.shards == total and found.untranscribed != manifest.untranscribed_rows:
        found.blame([f"{found.untranscribed} rows have no text, the manifest says {manifest.untranscribed_rows}"])
    return found


def _row_groups(path: Path, entry: ShardEntry, rows: list[Utterance]) -> list[str]:
    """A row group is bounded, unless it is one row that is larger."""
    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        return [f"shard {entry.cid}: {error}"]
    faults, start = [], 0
    for index in range(metadata.num_row_groups):
        count = metadata.row_group(index).num_rows
        size = sum(row.size_bytes for row in rows[start : start + count])
        start += count
        if count > 1 and size > 2 * ROW_GROUP_BYTES:
            faults.append(f"shard {entry.cid}: row group {index} holds {size} bytes")
    return faults


def _row(dataset: DatasetFolder, row: Utterance, held: bool, seen: set[bytes], trained: set[bytes]) -> list[str]:
    manifest, faults = dataset.manifest, []
    name = hashlib.blake2b(row.id.encode(), digest_size=12).digest()  # a set of ids of any length would not be bounded
    if name in seen:
        faults.append(f"{row.id}: is held out and trained on" if held and name in trained else f"{row.id}: is there twice")
    seen.add(name)
    if not held:
        trained.add(name)
    if row.language not in manifest.languages:
        faults.append(f"{row.id}: its language {row.language!r} is not in the manifest")
    if row.speaker not in manifest.speakers:
        faults.append(f"{row.id}: its speaker {row.speaker[:60]!r} is not in the manifest")
    if row.licence not in manifest.licences:
        faults.append(f"{row.id}: its licence {row.licence[:60]!r} is not in the manifest")
    size = manifest.speaker_embedding.get("dim")
    if row.speaker_embedding is not None and len(row.speaker_embedding) != size:
        faults.append(f"{row.id}: a speaker embedding of {len(row.speaker_embedding)} numbers, the manifest says {size}")
    if row.speaker_embedding is None and row.speaker in manifest.voices:
        faults.append(f"{row.id}: no speaker embedding, though its speaker {row.speaker[:60]!r} has a voice")
    return faults


def _files(dataset: DatasetFolder) -> list[str]:
    manifest = dataset.manifest
    wanted: dict[str, object] = {"codec/model.safetensors": manifest.codec.get("cid"), "audio.jsonl": manifest.audio_cid}
    wanted |= {f"aligners/{language}.safetensors": cid for language, cid in manifest.aligners.items()}
    wanted["aligner.safetensors"] = manifest.aligner_cid
    faults = []
    for name, cid in wanted.items():
        if not isinstance(cid, str) or not cid.startswith("baf"):
            continue
        path = dataset.path / name
        try:
            if not path.is_file():
                faults.append(f"{name} is missing")
            elif file_cid(path) != cid:
                faults.append(f"{name} is another file than the manifest names")
        except OSError as error:
            faults.append(f"{name} ({error.strerror})")
    return faults
