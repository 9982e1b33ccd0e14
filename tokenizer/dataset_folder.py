"""A dataset on disk: its signed manifest, and its rows one shard at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import Code, HocketError
from protocol.manifest import MAX_DOCUMENT_BYTES, DatasetManifest, ShardEntry, read_manifest, signer_of
from tokenizer.reader import check_shard
from tokenizer.shards import MAX_SHARD_BYTES, Utterance

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DatasetFolder:
    """An opened dataset.

    Args:
        path: its folder. signer: member id of whoever signed the manifest.
    """

    path: Path
    manifest: DatasetManifest
    signer: str

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return float(self.manifest.codec["frame_rate"])

    def shard_path(self, entry: ShardEntry) -> Path:
        return self.path / "shards" / f"{entry.cid}.parquet"

    def shards(self) -> Iterator[tuple[ShardEntry, bool]]:
        """(shard, whether it is held out), training first."""
        for entry in self.manifest.shards:
            yield entry, False
        for entry in self.manifest.heldout:
            yield entry, True

    def rows_of(self, entry: ShardEntry) -> list[Utterance]:
        """The rows of one shard, checked against the manifest.

        Raises:
            HocketError: SHARD_DAMAGED.
        """
        path = self.shard_path(entry)
        try:
            size = path.stat().st_size
            if size != entry.size_bytes or size > MAX_SHARD_BYTES:
                raise HocketError(Code.SHARD_DAMAGED, f"{path.name} has {size} bytes, the manifest says {entry.size_bytes}")
            data = path.read_bytes()
        except OSError as error:
            raise HocketError(Code.SHARD_DAMAGED, f"{path.name} ({error.strerror})") from error
        return check_shard(entry, data, self.manifest)

    def rows(self) -> Iterator[tuple[Utterance, bool]]:
        """(row, whether it is held out) of every shard, one shard in memory at a time."""
        for entry, held in self.shards():
            for row in self.rows_of(entry):
                yield row, held


def open_dataset(path: Path) -> DatasetFolder:
    """Open a dataset by its folder or its manifest.

    Raises:
        HocketError: CORPUS_UNREADABLE if there is none, MANIFEST_INVALID.
    """
    manifest_path = path / MANIFEST if path.is_dir() else path
    try:
        if manifest_path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise HocketError(Code.MANIFEST_INVALID, f"{manifest_path} has more than {MAX_DOCUMENT_BYTES} bytes")
        data = manifest_path.read_bytes()
    except OSError as error:
        detail = f"{manifest_path} ({error.strerror})"
        raise HocketError(Code.CORPUS_UNREADABLE, detail, remedy="give the folder that hocket tokenize wrote") from error
    manifest = read_manifest(DatasetManifest, data, signer=None)
    codec = manifest.codec
    numbers = ("n_codebooks", "codebook_size", "frame_rate", "sample_rate")
    if not all(isinstance(codec.get(name), int | float) and codec[name] > 0 for name in numbers):
        raise HocketError(Code.MANIFEST_INVALID, f"its codec lacks one of {', '.join(numbers)}")
    return DatasetFolder(manifest_path.parent, manifest, signer_of(data))
