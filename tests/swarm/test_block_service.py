"""Blocks from peer to peer, with liars, dead peers and interrupted fetches."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from protocol import content
from protocol.generated import hocket_pb2 as pb
from swarm.block_service import BLOCKS_PROTOCOL, MAX_CIDS, MAX_REPLY_BYTES, ask_for_blocks, serve_blocks
from swarm.block_swarm import fetch
from swarm.blocks import BlockStore
from swarm.carrier import Handler, Message, PeerAddress, PeerRefused
from swarm.memory import MemoryCarrier, MemoryNetwork

SIZE = 6 * content.CHUNK_BYTES + 12_345
DATA = hashlib.shake_128(b"file").digest(SIZE)
ROOT = content.cid_of(DATA)


class Swarm:
    """Peers in memory, each with a store of its own, and one that fetches."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.network = MemoryNetwork()
        self.fetcher = MemoryCarrier(self.network, "fetcher")
        self.store = BlockStore(folder / "fetcher")

    async def provider(self, name: str, data: bytes | None = DATA) -> tuple[MemoryCarrier, BlockStore]:
        carrier, store = MemoryCarrier(self.network, name), BlockStore(self._folder / name)
        if data is not None:
            store.add_bytes(data)
        await serve_blocks(carrier, store)
        return carrier, store

    async def liar(self, name: str, handler: Handler) -> MemoryCarrier:
        carrier = MemoryCarrier(self.network, name)
        await carrier.serve(BLOCKS_PROTOCOL, handler, max_request_bytes=1 << 20)
        return carrier

    async def fetch(self, *names: str, root: str = ROOT, max_bytes: int = SIZE) -> None:
        await asyncio.wait_for(
            fetch(self.fetcher, self.store, root, [PeerAddress(name) for name in names], max_bytes=max_bytes), 60
        )


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm(tmp_path)


async def lie(peer_id: str, message: Message) -> Message:
    """Answers with blocks of the right number and wrong bytes."""
    reply = pb.BlockReply()
    cids = pb.BlockRequest.FromString(message.head).cids
    for cid in cids:
        reply.blocks.add(cid=cid, found=True, size_bytes=4)
    return Message(reply.SerializeToString(), [b"liar" * len(cids)])


@pytest.mark.parametrize("providers", [1, 3])
def test_fetches_a_file(swarm: Swarm, providers: int) -> None:
    async def work() -> None:
        carriers = [(await swarm.provider(f"p{number}"))[0] for number in range(providers)]
        await swarm.fetch(*(carrier.peer_id for carrier in carriers))
        assert swarm.store.read_file(ROOT) == DATA
        sent = [carrier.traffic.answers[BLOCKS_PROTOCOL] for carrier in carriers]
        assert SIZE < sum(sent) < SIZE * 1.01, "each block crosses the network once"
        assert min(sent) > 0, "every provider is used"

    asyncio.run(work())


def test_a_fetch_goes_on_from_what_is_there(swarm: Swarm) -> None:
    async def work() -> None:
        carrier, _ = await swarm.provider("whole")
        for cid, data in content.iter_blocks(DATA):
            if cid != ROOT and cid[-1] in "abcdefghijklm":
                swarm.store.put(cid, data)
        there = sum(len(data) for cid, data in content.iter_blocks(DATA) if swarm.store.has(cid))
        assert 0 < there < SIZE
        await swarm.fetch("whole")
        assert swarm.store.read_file(ROOT) == DATA
        assert carrier.traffic.answers[BLOCKS_PROTOCOL] < SIZE - there + 20_000
        before = carrier.traffic.answers[BLOCKS_PROTOCOL]
        await swarm.fetch("whole")
        await swarm.fetch()
        assert carrier.traffic.answers[BLOCKS_PROTOCOL] == before, "a whole file needs nobody"

    asyncio.run(work())


def test_blocks_scattered_over_peers_are_found(swarm: Swarm) -> None:
    async def work() -> None:
        stores = [(await swarm.provider(f"p{number}", None))[1] for number in range(3)]
        for number, (cid, data) in enumerate(content.iter_blocks(DATA)):
            stores[number % 3].put(cid, data)
        await swarm.fetch("p0", "p1", "p2")
        assert swarm.store.read_file(ROOT) == DATA

    asyncio.run(work())


def test_many_peers_without_the_file_hide_nobody_who_has_it(swarm: Swarm) -> None:
    async def work() -> None:
        names = [f"empty{number}" for number in range(12)]
        for name in names:
            await swarm.provider(name, None)
        await swarm.provider("whole")
        await swarm.fetch(*names, "whole")
        assert swarm.store.read_file(ROOT) == DATA

    asyncio.run(work())


def test_a_liar_is_dropped_and_named(swarm: Swarm, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        asked = 0

        async def count(peer_id: str, message: Message) -> Message:
            nonlocal asked
            asked += 1
            return await lie(peer_id, message)

        await swarm.liar("liar", count)
        await swarm.provider("honest")
        await swarm.fetch("liar", "honest")
        assert swarm.store.read_file(ROOT) == DATA
        assert asked == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert [record for record in caplog.records if "liar" in record.getMessage()]


def test_only_liars_end_as_damaged(swarm: Swarm) -> None:
    async def work() -> None:
        await swarm.liar("liar", lie)
        with pytest.raises(HocketError) as caught:
            await swarm.fetch("liar")
        assert caught.value.code is Code.BLOCK_DAMAGED
        assert not swarm.store.has(ROOT)

    asyncio.run(work())


async def garbage(peer_id: str, message: Message) -> Message:
    return Message(b"\xff\xff\xff")


async def nothing(peer_id: str, message: Message) -> Message:
    return Message(b"")


async def unasked(peer_id: str, message: Message) -> Message:
    reply = pb.BlockReply()
    reply.blocks.add(cid=content.cid_of(b"spam"), found=True, size_bytes=4)
    return Message(reply.SerializeToString(), [b"spam"])


async def surplus(peer_id: str, message: Message) -> Message:
    reply = pb.BlockReply()
    reply.blocks.add(cid=pb.BlockRequest.FromString(message.head).cids[0], found=False)
    return Message(reply.SerializeToString(), [b"spam"])


@pytest.mark.parametrize("handler", [garbage, nothing, unasked, surplus])
def test_replies_that_fit_no_request_drop_their_sender(swarm: Swarm, handler: Handler) -> None:
    async def work() -> None:
        await swarm.liar("odd", handler)
        await swarm.provider("honest")
        await swarm.fetch("odd", "honest")
        assert swarm.store.read_file(ROOT) == DATA
        assert not swarm.store.has(content.cid_of(b"spam"))

    asyncio.run(work())


def test_a_provider_that_dies_on_the_way_is_replaced(swarm: Swarm) -> None:
    async def work() -> None:
        await swarm.provider("dying")
        await swarm.provider("steady")
        cut = [swarm.network.cut_next_answer("dying", BLOCKS_PROTOCOL, after_bytes=500) for _ in range(2)]
        await swarm.fetch("dying", "unknown", "steady")
        assert swarm.store.read_file(ROOT) == DATA
        assert cut[0].is_set()

    asyncio.run(work())


def test_one_failure_is_forgiven(swarm: Swarm) -> None:
    async def work() -> None:
        await swarm.provider("only")
        swarm.network.drop_next_answer("only", BLOCKS_PROTOCOL)
        await swarm.fetch("only")
        assert swarm.store.read_file(ROOT) == DATA

    asyncio.run(work())


def test_a_block_that_nobody_has(swarm: Swarm) -> None:
    async def work() -> None:
        _, store = await swarm.provider("partly", None)
        blocks = dict(content.iter_blocks(DATA))
        missing = content.cid_of(DATA[: content.CHUNK_BYTES])
        for cid, data in blocks.items():
            if cid != missing:
                store.put(cid, data)
        with pytest.raises(HocketError, match=missing) as caught:
            await swarm.fetch("partly", "unknown")
        assert caught.value.code is Code.BLOCK_NOT_FOUND
        assert sum(swarm.store.has(cid) for cid in blocks) == len(blocks) - 1, "the rest is kept for the next try"
        store.put(missing, blocks[missing])
        await swarm.fetch("partly")
        assert swarm.store.read_file(ROOT) == DATA

    asyncio.run(work())


def test_nobody_to_ask(swarm: Swarm) -> None:
    with pytest.raises(HocketError) as caught:
        asyncio.run(swarm.fetch())
    assert caught.value.code is Code.BLOCK_NOT_FOUND


def test_a_file_above_the_limit_is_refused_after_its_root(swarm: Swarm) -> None:
    async def work() -> None:
        carrier, _ = await swarm.provider("p")
        with pytest.raises(HocketError) as caught:
            await swarm.fetch("p", max_bytes=SIZE - 1)
        assert caught.value.code is Code.MESSAGE_TOO_LARGE
        assert carrier.traffic.answers[BLOCKS_PROTOCOL] < 2000

    asyncio.run(work())


def test_a_damaged_block_on_our_disk_is_fetched_again(swarm: Swarm, tmp_path: Path) -> None:
    async def work() -> None:
        await swarm.provider("p")
        await swarm.fetch("p")
        chunk = content.cid_of(DATA[: content.CHUNK_BYTES])
        (tmp_path / "fetcher" / chunk[-2:] / chunk).write_bytes(b"rot")
        await swarm.fetch("p")
        assert swarm.store.read_file(ROOT) == DATA

    asyncio.run(work())


def test_a_full_disk_ends_the_fetch(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(cid: str, data: bytes) -> None:
        raise HocketError(Code.DISK_FULL, "blocks")

    async def work() -> None:
        await swarm.provider("p")
        monkeypatch.setattr(swarm.store, "put", full)
        with pytest.raises(HocketError) as caught:
            await swarm.fetch("p")
        assert caught.value.code is Code.DISK_FULL

    asyncio.run(work())


def test_a_cancelled_fetch_leaves_no_call_behind(swarm: Swarm) -> None:
    async def work() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def hold(peer_id: str, message: Message) -> Message:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return message

        await swarm.liar("slow", hold)
        fetching = asyncio.create_task(swarm.fetch("slow"))
        await asyncio.wait_for(started.wait(), 10)
        fetching.cancel()
        await asyncio.wait_for(ended.wait(), 10)
        await asyncio.wait({fetching})

    asyncio.run(work())


def test_requests_are_bounded(swarm: Swarm) -> None:
    async def work() -> None:
        await swarm.provider("p")
        cid = content.cid_of(b"x")
        for cids in ([cid] * (MAX_CIDS + 1), [cid] * 2000):
            with pytest.raises(PeerRefused) as caught:
                await ask_for_blocks(swarm.fetcher, PeerAddress("p"), cids)
            assert caught.value.remote_code == Code.MESSAGE_TOO_LARGE
        with pytest.raises(PeerRefused) as caught:
            await ask_for_blocks(swarm.fetcher, PeerAddress("p"), ["../x"])
        assert caught.value.remote_code == Code.CID_INVALID

    asyncio.run(work())


def test_a_reply_stops_before_it_grows_too_large(swarm: Swarm) -> None:
    async def work() -> None:
        chunks = [hashlib.shake_128(bytes([number])).digest(content.CHUNK_BYTES) for number in range(20)]
        _, store = await swarm.provider("p", b"".join(chunks))
        cids = [content.cid_of(chunk) for chunk in chunks]
        assert all(map(store.has, cids))
        found = (await ask_for_blocks(swarm.fetcher, PeerAddress("p"), cids)).blocks
        assert list(found) == cids[: MAX_REPLY_BYTES // content.CHUNK_BYTES]
        assert all(found[cid] == chunk for cid, chunk in zip(cids, chunks, strict=False) if cid in found)

    asyncio.run(work())
