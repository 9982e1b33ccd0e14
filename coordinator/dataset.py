"""Takes a dataset into the block store, every file checked against the signed manifest."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import disk_error
from protocol.content import file_cid
from protocol.manifest import MAX_DOCUMENT_BYTES, DatasetManifest, read_manifest
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
FILES_A_LINE = 500


@dataclass(frozen=True)
class Dataset:
    """A dataset whose manifest and files are in the block store.

    Args:
        cid: of the manifest; pinned: roots of all its files, the manifest included.
    """

    cid: str
    manifest: DatasetManifest
    pinned: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """What the run keeps of it: sizes, codec and roots."""
        return {
            "cid": self.cid,
            "name": self.manifest.name,
            "rows": sum(shard.rows for shard in self.manifest.shards),
            "frames": sum(shard.frames for shard in self.manifest.shards),
            "heldout_rows": sum(shard.rows for shard in self.manifest.heldout),
            "codec": self.manifest.codec,
            "pinned": list(self.pinned),
        }


def import_dataset(where: str, languages: tuple[str, ...], store: BlockStore, *, relative_to: Path) -> Dataset:
    """Read the manifest named by a run file and put everything that it names into the block store.

    Args:
        where: path of the manifest or of its folder, from the run file's folder on; or the CID of a manifest in the store.
        languages: that the run file expects; empty: any.

    Raises:
        HocketError: RUN_FILE_INVALID, MANIFEST_INVALID, SHARD_DAMAGED, BLOCK_NOT_FOUND, CORPUS_TOO_SMALL, STATE_UNREADABLE.
    """
    path = relative_to / where
    folder: Path | None = None
    if path.exists():
        path = path / MANIFEST_NAME if path.is_dir() else path
        folder = path.parent
        try:
            if path.stat().st_size > MAX_DOCUMENT_BYTES:
                raise HocketError(Code.MANIFEST_INVALID, f"{path} has more than {MAX_DOCUMENT_BYTES} bytes")
            data = path.read_bytes()
        except OSError as error:
            raise HocketError(Code.RUN_FILE_INVALID, f"data.manifest: {path} ({error.strerror})") from error
    elif where.startswith("baf") and "/" not in where:
        data = store.read_file(where)
    else:
        raise HocketError(Code.RUN_FILE_INVALID, f"data.manifest: {path} does not exist")
    manifest = read_manifest(DatasetManifest, data, signer=None)
    if languages and set(languages) != set(manifest.languages):
        named = ", ".join(manifest.languages) or "none"
        raise HocketError(Code.RUN_FILE_INVALID, f"data.languages: {', '.join(languages)}; the dataset has {named}")
    if not sum(shard.rows for shard in manifest.shards) or not sum(shard.frames for shard in manifest.shards):
        raise HocketError(Code.CORPUS_TOO_SMALL, f"{where} has no rows")
    places = {cid: f"aligners/{language}.safetensors" for language, cid in manifest.aligners.items()}
    if manifest.aligner_cid is not None:
        places.setdefault(manifest.aligner_cid, "aligner.safetensors")
    if isinstance(codec_cid := manifest.codec.get("cid"), str) and codec_cid.startswith("baf"):
        places[codec_cid] = "codec/model.safetensors"
    wanted = {*places, *(shard.cid for shard in (*manifest.shards, *manifest.heldout))}
    if folder is not None:
        sizes = {shard.cid: shard.size_bytes for shard in (*manifest.shards, *manifest.heldout)}
        _import_files(folder, wanted, store, places, sizes)
    shards = {shard.cid for shard in (*manifest.shards, *manifest.heldout)}
    missing = sorted(cid for cid in shards if not store.has(cid))
    if missing:
        detail = f"no file beside {path} has the CID {missing[0]}"
        raise HocketError(Code.SHARD_DAMAGED, detail, remedy="tokenise the corpus again")
    cid = store.add_bytes(data)
    return Dataset(cid, manifest, (cid, *sorted(one for one in wanted if store.has(one))))


def _import_files(folder: Path, wanted: set[str], store: BlockStore, named: dict[str, str], shard_bytes: dict[str, int]) -> None:
    """Add each file below `folder` whose CID is wanted, block by block; what else lies there is left alone.

    Args:
        named: where a dataset keeps the file of a CID, from `folder` on; these are read once. Others are looked for.
        shard_bytes: size of each shard, by its CID.
    """
    left = {cid for cid in wanted if not store.has(cid)}
    try:
        for number, cid in enumerate(sorted(left), start=1):
            path = folder / named.get(cid, f"shards/{cid}.parquet")
            if path.is_file() and not path.is_symlink() and path.stat().st_size == shard_bytes.get(cid, path.stat().st_size):
                left.discard(store.add_file(path))
            if number % FILES_A_LINE == 0:
                logger.info("%s: %d files are in the block store", folder, number)
        # Only what has the size of a missing shard is read, unless a file is missing whose size is not known.
        sizes = None if left & named.keys() else {shard_bytes[cid] for cid in left}
        for path in sorted(folder.rglob("*")) if left else ():
            if not left:
                return
            if path.is_symlink() or not path.is_file() or (sizes is not None and path.stat().st_size not in sizes):
                continue
            if file_cid(path) in left:
                left.discard(store.add_file(path))
    except OSError as error:
        raise disk_error(error, folder) from error
