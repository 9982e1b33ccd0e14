"""The batches that stage 0 must have made of leased rows, from the dataset itself, and whether records say the same.

Which utterances stand at a position, their tempo, the cut into microbatches and the padding are functions of the version's data
seed, the model and the rows (`tokenizer/order.py`, `tts/tempo.py`, `tts/collation.py`), all of them in whole numbers at the end:
so digests are compared, and there is no tolerance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.errors import Code, HocketError
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.manifest import MAX_DOCUMENT_BYTES, DatasetManifest, read_manifest
from swarm.blocks import BlockStore
from tts.collation import collated, cut, travelling
from tts.config import ModelConfig
from tts.tempo import vary_tempo

LEASES_KEPT = 64    # whose digests are remembered


@dataclass(frozen=True)
class Comparison:
    """What came of comparing a record, or all of a commit's, with the dataset.

    Args:
        ok: None: it was not compared, and says nothing about anybody. microbatch: that differs, where one does.
    """

    ok: bool | None
    reason: str
    microbatch: int | None = None


@dataclass(frozen=True)
class Part:
    """One microbatch of a lease: the digest of its arrays, as stage 0 commits to it, and its frames."""

    digest: bytes
    frames: int


class LeasedBatches:
    """Batches of one dataset for one model.

    Args:
        manifest: of the dataset, already verified. get_bytes: gives a shard's bytes by its CID.
        config: of the model. seed: of the order of the data.

    Raises:
        HocketError: MANIFEST_INVALID.
    """

    def __init__(self, manifest: DatasetManifest, get_bytes: Callable[[str], bytes], config: ModelConfig, seed: int) -> None:
        # Reads shards by pyarrow, which a coordinator that compares nothing does without.
        from tokenizer.stored_rows import StoredRows

        self._rows = StoredRows(manifest, get_bytes)
        self._languages = tuple(manifest.languages)
        self._config = config
        self._seed = seed
        self._known: OrderedDict[bytes, tuple[Part, ...]] = OrderedDict()

    def compare_commit(self, commit: pb.StepCommit) -> Comparison:
        """All counted records of a commit; the first that differs, if any does."""
        counted = [record for record in commit.records if record.frames]
        for record in counted:
            found = self.compare(record)
            if not found.ok:
                return found
        return Comparison(True, f"{len(counted)} microbatches are what the dataset has")

    def compare(self, record: pb.MicrobatchRecord) -> Comparison:
        """One counted record of stage 0, held against the rows that it names."""
        leased = record.leased
        if not record.HasField("leased"):
            return Comparison(None, f"microbatch {record.id} does not say of which rows it is")
        where = f"rows {leased.start} to {leased.stop} of epoch {leased.epoch}"
        if not leased.start < leased.stop <= len(self._rows):
            return Comparison(False, f"the dataset has no {where}", record.id)
        try:
            parts = self._parts(leased)
        except HocketError as error:
            return Comparison(None, f"{where} cannot be read: {error.line()}")
        index = record.id - leased.first_microbatch_id
        if not 0 <= index < len(parts):
            return Comparison(False, f"{where} make {len(parts)} microbatches, and {record.id} is none of them", record.id)
        if record.input != parts[index].digest:
            return Comparison(False, f"the batch of microbatch {record.id} is not what the dataset has in {where}", record.id)
        if record.frames != parts[index].frames:
            told = f"microbatch {record.id} of {where} has {parts[index].frames} frames, not {record.frames}"
            return Comparison(False, told, record.id)
        return Comparison(True, f"microbatch {record.id} is what the dataset has in {where}")

    def _parts(self, leased: pb.LeasedRows) -> tuple[Part, ...]:
        key = leased.SerializeToString(deterministic=True)
        if key not in self._known:
            rows = self._rows.utterances(leased.epoch, leased.start, leased.stop, self._seed)
            told = vary_tempo(rows, self._config, seed=self._seed, epoch=leased.epoch, first=leased.start)
            self._known[key] = tuple(
                Part(
                    tensors_digest(travelling(collated(part, self._config, self._languages))),
                    sum(int(one.n_frames) for one in part),
                )
                for part in cut(told, leased.microbatches)
            )
            while len(self._known) > LEASES_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]


def open_batches(store: BlockStore, dataset_cid: str, model: dict[str, Any], seed: int) -> LeasedBatches:
    """The batches of a dataset that lies in a store, every block checked when it is read.

    Args:
        model: configuration, as a version's manifest has it. seed: of the order of the data.

    Raises:
        HocketError: BLOCK_NOT_FOUND and BLOCK_DAMAGED where the dataset's manifest is not at hand; MANIFEST_INVALID,
            MODEL_CONFIG_INVALID.
    """
    data = store.read_file(dataset_cid, max_bytes=MAX_DOCUMENT_BYTES)
    manifest = read_manifest(DatasetManifest, data, signer=None)
    return LeasedBatches(manifest, store.read_file, ModelConfig.from_dict(model), seed)


def seed_in(cursor: dict[str, Any]) -> int:
    """The seed of the data order that a version's `data_cursor` tells; MANIFEST_INVALID if it tells none."""
    seed = cursor.get("seed")
    if not isinstance(seed, int):
        raise HocketError(Code.MANIFEST_INVALID, "the version does not tell the seed of the data order")
    return seed
