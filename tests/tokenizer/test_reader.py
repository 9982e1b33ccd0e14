"""The reader: every utterance once an epoch, shards checked, fetched once, and kept within bounds."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from common.errors import Code, HocketError
from protocol.content import cid_of
from protocol.manifest import DatasetManifest, ShardEntry
from tokenizer.order import sample_at
from tokenizer.reader import DatasetReader, check_shard
from tokenizer.shards import Utterance, shard_bytes


def utterance(number: int) -> Utterance:
    codes = np.full((2, 4 + number % 3), number % 16, np.uint16)
    return Utterance(
        id=f"u{number}", text="a", spoken="a", phonemes=np.array([1, 2], np.uint16),
        durations=np.array([1, codes.shape[1] - 1], np.uint16), word_starts=np.array([0, 1], np.uint8), align_score=-0.5,
        language="en", speaker="s", codes=codes, n_frames=codes.shape[1], speaker_embedding=None, licence="CC0-1.0",
    )  # fmt: skip


class Source:
    """Shards by CID that counts how often each is asked for."""

    def __init__(self, sizes: list[int], heldout: int = 3) -> None:
        rows = [utterance(number) for number in range(sum(sizes) + heldout)]
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        ends = np.cumsum([0, *sizes, heldout])
        entries = [self._add(rows[start:stop]) for start, stop in pairwise(ends)]
        self.manifest = DatasetManifest(
            name="test", codec={"n_codebooks": 2, "codebook_size": 16}, phonemes=["<pad>", "_", "a"], languages=["en"],
            speakers=["s"], shards=entries[:-1], heldout=entries[-1:], licences=["CC0-1.0"],
        )  # fmt: skip

    def _add(self, rows: list[Utterance]) -> ShardEntry:
        data = shard_bytes(rows)
        self.files[cid_of(data)] = data
        return ShardEntry(cid=cid_of(data), rows=len(rows), frames=sum(row.n_frames for row in rows), size_bytes=len(data))

    async def get(self, cid: str) -> bytes:
        self.asked.append(cid)
        await asyncio.sleep(0)
        return self.files[cid]


def test_leases_cover_an_epoch_once_in_the_pure_order() -> None:
    source = Source([3, 1, 7])

    async def read() -> list[str]:
        reader = DatasetReader(source.manifest, source.get)
        assert len(reader) == 11
        ids: list[str] = []
        for start, stop in ((0, 4), (4, 5), (5, 5), (5, 11)):
            ids += [row.id for row in await reader.utterances(2, start, stop, 9)]
        return ids

    ids = asyncio.run(read())
    assert ids == [f"u{sample_at(9, 2, position, 11)}" for position in range(11)]
    assert sorted(ids, key=lambda name: int(name[1:])) == [f"u{number}" for number in range(11)]


def test_heldout_is_apart() -> None:
    source = Source([4, 4])

    async def read() -> tuple[list[str], list[str]]:
        reader = DatasetReader(source.manifest, source.get)
        return [row.id for row in await reader.heldout()], [row.id for row in await reader.everything()]

    heldout, training = asyncio.run(read())
    assert heldout == ["u8", "u9", "u10"] and training == [f"u{number}" for number in range(8)]


def test_a_shard_is_fetched_once_by_callers_at_the_same_time() -> None:
    source = Source([5, 5])

    async def read() -> None:
        reader = DatasetReader(source.manifest, source.get)
        both = await asyncio.gather(*(reader.utterances(0, 0, 10, 1) for _ in range(4)))
        assert all([row.id for row in rows] == [row.id for row in both[0]] for rows in both)

    asyncio.run(read())
    assert sorted(source.asked) == sorted(entry.cid for entry in source.manifest.shards)


def test_one_caller_that_goes_away_does_not_break_the_others() -> None:
    source = Source([5])

    async def read() -> int:
        reader = DatasetReader(source.manifest, source.get)
        first = asyncio.ensure_future(reader.everything())
        second = asyncio.ensure_future(reader.everything())
        await asyncio.sleep(0)
        first.cancel()
        return len(await second)

    assert asyncio.run(read()) == 5
    assert len(source.asked) == 1


def test_the_cache_is_bounded() -> None:
    source = Source([2] * 6)

    async def read() -> None:
        reader = DatasetReader(source.manifest, source.get, cache_bytes=1)
        for _ in range(2):
            assert len(await reader.everything()) == 12

    asyncio.run(read())
    assert len(source.asked) == 12, "a cache of one shard serves no second pass over six"
    source.asked.clear()

    async def read_with_room() -> None:
        reader = DatasetReader(source.manifest, source.get)
        for _ in range(2):
            await reader.everything()

    asyncio.run(read_with_room())
    assert len(source.asked) == 6


def test_a_peer_that_lies_is_found_out_and_the_shard_can_be_had_again() -> None:
    source = Source([3])
    entry = source.manifest.shards[0]
    right = source.files[entry.cid]
    other = shard_bytes([utterance(50 + number) for number in range(3)])

    async def read() -> list[str]:
        reader = DatasetReader(source.manifest, source.get)
        for wrong in (b"", right[:-1], right + b"x", other, right[:40] + bytes([right[40] ^ 1]) + right[41:]):
            source.files[entry.cid] = wrong
            with pytest.raises(HocketError) as caught:
                await reader.utterances(0, 0, 3, 0)
            assert caught.value.code is Code.SHARD_DAMAGED
        source.files[entry.cid] = right
        return [row.id for row in await reader.everything()]

    assert asyncio.run(read()) == ["u0", "u1", "u2"]


@pytest.mark.parametrize("change", [{"rows": 4}, {"frames": 1}, {"size_bytes": 7}])
def test_a_shard_must_be_what_the_manifest_says(change: dict[str, int]) -> None:
    source = Source([3])
    entry = source.manifest.shards[0]
    check_shard(entry, source.files[entry.cid], source.manifest)
    with pytest.raises(HocketError) as caught:
        check_shard(entry.model_copy(update=change), source.files[entry.cid], source.manifest)
    assert caught.value.code is Code.SHARD_DAMAGED


@pytest.mark.parametrize("codec", [{"n_codebooks": 4, "codebook_size": 16}, {"n_codebooks": 2, "codebook_size": 1}])
def test_a_shard_of_another_codec_is_refused(codec: dict[str, int]) -> None:
    source = Source([3])
    entry = source.manifest.shards[0]
    with pytest.raises(HocketError) as caught:
        check_shard(entry, source.files[entry.cid], source.manifest.model_copy(update={"codec": codec}))
    assert caught.value.code is Code.SHARD_DAMAGED


def test_manifests_that_a_reader_cannot_use_are_refused() -> None:
    source = Source([3])
    huge = source.manifest.shards[0].model_copy(update={"size_bytes": 2**40})
    for change in ({"codec": {}}, {"codec": {"n_codebooks": "2", "codebook_size": 16}}, {"shards": [huge]}):
        with pytest.raises(HocketError) as caught:
            DatasetReader(source.manifest.model_copy(update=change), source.get)
        assert caught.value.code is Code.MANIFEST_INVALID


def test_positions_beyond_the_epoch_are_refused() -> None:
    source = Source([3])

    async def read(start: int, stop: int) -> None:
        await DatasetReader(source.manifest, source.get).utterances(0, start, stop, 0)

    for start, stop in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(ValueError, match="positions"):
            asyncio.run(read(start, stop))
