"""Many peers that want the same file: they share it out, spare its origin, and survive those of them that do not keep up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from protocol import content
from protocol.generated import hocket_pb2 as pb
from swarm import turns
from swarm.block_service import BLOCKS_PROTOCOL, serve_blocks
from swarm.block_swarm import BlockSwarm, Providers
from swarm.blocks import BlockStore
from swarm.carrier import Message
from swarm.memory import MemoryCarrier, MemoryNetwork

SIZE = 15 * content.CHUNK_BYTES + 4_321
DATA = hashlib.shake_128(b"shared").digest(SIZE)
ROOT = content.cid_of(DATA)


class Joiner:
    """A peer that fetches, and serves what it has."""

    def __init__(self, network: MemoryNetwork, folder: Path, name: str) -> None:
        self.carrier = MemoryCarrier(network, name)
        self.store = BlockStore(folder / name)
        self.swarm = BlockSwarm(self.carrier, self.store)

    @property
    def sent(self) -> int:
        return self.carrier.traffic.answers[BLOCKS_PROTOCOL]


class Crowd:
    """An origin that has the file, and joiners that know of one another."""

    def __init__(self, folder: Path, count: int) -> None:
        self.network = MemoryNetwork()
        self.origin = Joiner(self.network, folder, "origin")
        self.joiners = [Joiner(self.network, folder, f"joiner{number}") for number in range(count)]

    async def start(self) -> None:
        for one in [self.origin, *self.joiners]:
            await one.swarm.serve()

    async def fetch(self, joiner: Joiner, *others: str, root: str = ROOT) -> None:
        peers = tuple(one.carrier.address for one in self.joiners)
        async with asyncio.timeout(60):
            await joiner.swarm.fetch(root, Providers(peers, (self.origin.carrier.address,)), max_bytes=SIZE)


@contextlib.asynccontextmanager
async def crowd(folder: Path, count: int, files: Sequence[bytes] = (DATA,)) -> AsyncIterator[Crowd]:
    made = Crowd(folder, count)
    for data in files:
        made.origin.store.add_bytes(data)
    await made.start()
    yield made
    for one in [made.origin, *made.joiners]:
        await one.carrier.close()


def test_joiners_share_a_file_out_and_the_origin_sends_it_about_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with crowd(tmp_path, 4) as made:
            await asyncio.gather(*map(made.fetch, made.joiners))
            assert all(one.store.read_file(ROOT) == DATA for one in made.joiners)
            assert SIZE < made.origin.sent < 1.15 * SIZE
            assert all(one.sent > SIZE / 8 for one in made.joiners), "each serves what it brought"

    asyncio.run(work())


def test_late_joiners_find_what_the_first_ones_have(tmp_path: Path) -> None:
    """The second begins once the first has half of the file, the third when the others have it all."""

    async def work() -> None:
        async with crowd(tmp_path, 3) as made:
            first, second, third = made.joiners
            fetching = asyncio.create_task(made.fetch(first))
            while made.origin.sent < SIZE / 2:
                await asyncio.sleep(0)
            await made.fetch(second)
            await fetching
            assert made.origin.sent < 1.3 * SIZE
            before = made.origin.sent
            await made.fetch(third)
            assert made.origin.sent == before, "peers have it, the origin is spared"
            assert all(one.store.read_file(ROOT) == DATA for one in made.joiners)

    asyncio.run(work())


def test_small_files_are_asked_for_at_peers_before_the_origin(tmp_path: Path) -> None:
    files = [b"", *(hashlib.shake_128(bytes([number])).digest(50_000) for number in range(12))]

    async def fetch_all(made: Crowd, joiner: Joiner) -> None:
        for data in files:
            await made.fetch(joiner, root=content.cid_of(data))

    async def work() -> None:
        async with crowd(tmp_path, 3, files) as made:
            await asyncio.gather(*(fetch_all(made, one) for one in made.joiners))
            assert made.origin.sent < 1.1 * 12 * 50_000

    asyncio.run(work())


def test_a_fetch_that_is_cut_half_way_goes_on_without_asking_for_a_block_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with crowd(tmp_path, 1) as made:
            (joiner,) = made.joiners
            fetching = asyncio.create_task(made.fetch(joiner))
            while made.origin.sent < SIZE / 2:
                await asyncio.sleep(0)
            made.network.cut_off("origin")
            with pytest.raises(HocketError) as caught:
                await fetching
            assert caught.value.code is Code.BLOCK_NOT_FOUND
            blocks = dict(content.iter_blocks(DATA))
            there = sum(len(block) for cid, block in blocks.items() if joiner.store.has(cid))
            assert 0 < there < SIZE
            again = MemoryCarrier(made.network, "origin")
            await serve_blocks(again, made.origin.store)
            await made.fetch(joiner)
            assert joiner.store.read_file(ROOT) == DATA
            assert again.traffic.answers[BLOCKS_PROTOCOL] < SIZE - there + 50_000
            await again.close()

    asyncio.run(work())


def test_a_fellow_that_dies_is_done_without(tmp_path: Path) -> None:
    async def work() -> None:
        async with crowd(tmp_path, 3) as made:
            fetching = [asyncio.create_task(made.fetch(one)) for one in made.joiners]
            while made.origin.sent < SIZE / 3:
                await asyncio.sleep(0)
            made.network.cut_off("joiner0")
            results = await asyncio.gather(*fetching, return_exceptions=True)
            assert results[1:] == [None, None] and isinstance(results[0], HocketError)
            assert all(one.store.read_file(ROOT) == DATA for one in made.joiners[1:])

    asyncio.run(work())


@pytest.mark.parametrize("waits", [True, False])
def test_a_fellow_that_only_promises_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """It says that it is fetching the file and never has a block, at once or after the time that it may take."""
    monkeypatch.setattr(turns, "PATIENCE_S", 0.2)
    asked = 0

    async def promise(peer_id: str, message: Message) -> Message:
        nonlocal asked
        asked += 1
        request = pb.BlockRequest.FromString(message.head)
        if waits and request.wait_ms:
            await asyncio.sleep(0.1)
        heads = [pb.BlockHead(cid=cid, fetching=True) for cid in request.cids]
        return Message(pb.BlockReply(blocks=heads).SerializeToString())

    async def work() -> None:
        async with crowd(tmp_path, 2, [DATA, b"another"]) as made:
            idle, joiner = made.joiners
            await idle.carrier.serve(BLOCKS_PROTOCOL, promise, max_request_bytes=1 << 20)
            await made.fetch(joiner)
            assert joiner.store.read_file(ROOT) == DATA
            before = asked
            assert before < 30
            await made.fetch(joiner, root=content.cid_of(b"another"))
            assert asked == before, "it is not waited for again"

    asyncio.run(work())


def test_a_lying_fellow_is_left_out_also_of_later_fetches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def lie(peer_id: str, message: Message) -> Message:
        nonlocal asked
        asked += 1
        request = pb.BlockRequest.FromString(message.head)
        if request.heads_only:
            return Message(pb.BlockReply(blocks=[pb.BlockHead(cid=cid, found=True) for cid in request.cids]).SerializeToString())
        heads = [pb.BlockHead(cid=cid, found=True, size_bytes=4) for cid in request.cids]
        return Message(pb.BlockReply(blocks=heads).SerializeToString(), [b"liar" * len(heads)])

    async def work() -> None:
        async with crowd(tmp_path, 2, [DATA, b"another"]) as made:
            liar, joiner = made.joiners
            await liar.carrier.serve(BLOCKS_PROTOCOL, lie, max_request_bytes=1 << 20)
            await made.fetch(joiner)
            assert joiner.store.read_file(ROOT) == DATA
            before = asked
            await made.fetch(joiner, root=content.cid_of(b"another"))
            assert asked == before <= 2

    asyncio.run(work())
    told = [record.getMessage() for record in caplog.records if "asked for no more blocks" in record.getMessage()]
    evidence = hashlib.sha256(b"liar").hexdigest()
    assert len(told) == 1 and "joiner0" in told[0] and evidence in told[0], "the log holds what came instead"


def test_a_peer_that_does_not_answer_is_not_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.block_swarm.LOOK_S", 0.2)

    async def work() -> None:
        async with crowd(tmp_path, 2, [DATA, b"another"]) as made:
            joiner = made.joiners[1]
            made.network.freeze("joiner0")
            await made.fetch(joiner)
            monkeypatch.setattr("swarm.block_swarm.LOOK_S", 3600.0)
            await made.fetch(joiner, root=content.cid_of(b"another"))
            made.network.thaw("joiner0")

    asyncio.run(work())


def test_the_nearest_of_those_that_have_a_file_sends_most_of_it(tmp_path: Path) -> None:
    """Each block of one holder takes a while longer; the file is large enough for several rounds of requests."""

    class FarStore(BlockStore):
        def get(self, cid: str) -> bytes:
            time.sleep(0.1)
            return super().get(cid)

    async def work() -> None:
        async with crowd(tmp_path, 3) as made:
            near, far, joiner = made.joiners
            for holder in (near, far):
                holder.store.add_bytes(DATA)
            await serve_blocks(far.carrier, FarStore(tmp_path / "joiner1"))
            await made.fetch(joiner)
            assert joiner.store.read_file(ROOT) == DATA
            assert made.origin.sent == 0
            assert near.sent > far.sent > 0

    asyncio.run(work())
