"""The clients of a node's RPC and of a pinning service, against a server that knows the formats and none of our code."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from ipfs_server import Handler, Ipfs, served

from common.errors import Code, HocketError
from protocol import content
from protocol.car import CarReader, write_car
from swarm.blocks import BlockStore
from swarm.ipfs_http import base_url
from swarm.ipfs_pinning import PinningService, PinState
from swarm.ipfs_rpc import IpfsNode

pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
Result = TypeVar("Result")
DATA = hashlib.shake_128(b"a file").digest(3 * content.CHUNK_BYTES + 5)


@pytest.fixture
def ipfs() -> Iterator[Ipfs]:
    with served(Ipfs()) as server:
        yield server


def with_node(ipfs: Ipfs, work: Callable[[IpfsNode], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        node = IpfsNode(ipfs.url, silence_s=5)
        try:
            return await work(node)
        finally:
            await node.close()

    return asyncio.run(run())


def with_service(ipfs: Ipfs, work: Callable[[PinningService], Awaitable[Result]], token: str = "secret") -> Result:
    async def run() -> Result:
        service = PinningService(ipfs.url, token)
        try:
            return await work(service)
        finally:
            await service.close()

    return asyncio.run(run())


def code_of(call: Callable[[], object]) -> HocketError:
    with pytest.raises(HocketError) as caught:
        call()
    return caught.value


def test_a_file_is_imported_pinned_exported_and_unpinned(ipfs: Ipfs, tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    root = store.add_bytes(DATA)

    async def work(node: IpfsNode) -> dict[str, bytes]:
        await node.import_car(root, write_car(root, store.get))
        reader, back = CarReader(), dict[str, bytes]()
        async for piece in node.car(root):
            back.update(reader.feed(piece))
        reader.finish()
        assert await node.get_block(root) == store.get(root)
        assert ipfs.pins == {root}
        await node.unpin(root)
        await node.unpin(root)
        await node.pin(root)
        return back

    back = with_node(ipfs, work)
    assert b"".join(content.read_file(root, back.__getitem__, max_bytes=len(DATA))) == DATA
    assert ipfs.pins == {root}
    assert 0 < ipfs.largest_piece <= content.MAX_BLOCK_BYTES + 64, "a block at a time"


def test_single_blocks_get_the_same_names(ipfs: Ipfs, tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    root = store.add_bytes(DATA)
    blocks = dict(content.iter_blocks(DATA))

    async def work(node: IpfsNode) -> str:
        for cid, block in blocks.items():
            await node.put_block(cid, block)
        return await node.version()

    assert with_node(ipfs, work) == "0.0.0-test"
    assert ipfs.blocks == blocks and root in blocks


def test_a_node_that_names_a_block_otherwise_is_told(ipfs: Ipfs) -> None:
    def answer(handler: Handler) -> bool:
        handler.json(200, {"Key": content.cid_of(b"other"), "Size": 1})
        return True

    ipfs.answer = answer
    error = code_of(lambda: with_node(ipfs, lambda node: node.put_block(content.cid_of(b"a"), b"a")))
    assert error.code is Code.IPFS_REFUSED and content.cid_of(b"other") in error.detail


def test_a_node_with_older_words_is_understood(ipfs: Ipfs) -> None:
    """As js-ipfs does: a block of an unknown codec gets a CIDv0, and names are spelt in base58 unless base32 is asked for."""
    cid = content.cid_of(b"a")

    def answer(handler: Handler) -> bool:
        older = handler.query.get("format") == "raw" and handler.query.get("version") == "1"
        if handler.path.startswith("/api/v0/block/put"):
            handler.json(200, {"Key": cid if older and "cid-codec" not in handler.query else "QmOther", "Size": 1})
        else:
            handler.json(200, {"Pins": [cid if handler.query.get("cid-base") == "base32" else "zOther"]})
        return True

    async def work(node: IpfsNode) -> None:
        await node.put_block(cid, b"a")
        await node.pin(cid)

    ipfs.answer = answer
    with_node(ipfs, work)
    assert ipfs.asked == ["POST /api/v0/block/put"] * 2 + ["POST /api/v0/pin/add"]


def lines(*found: object) -> Callable[[Handler], bool]:
    def answer(handler: Handler) -> bool:
        import json

        handler.give(200, b"\n".join(json.dumps(one).encode() for one in found))
        return True

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        lines(),
        lines({"Stats": {"BlockCount": 1}}),
        lines({"Root": {"Cid": {"/": "bafyother"}, "PinErrorMsg": ""}}),
        lines({"Root": {"Cid": {"/": content.cid_of(b"a")}, "PinErrorMsg": "disk full"}}),
        lines([1]),
        lambda handler: bool(handler.give(200, b"<html>")) or True,
        lambda handler: bool(handler.json(500, {"Message": "merkledag: not found"})) or True,
        lambda handler: bool(handler.give(301, b"", Location="http://127.0.0.1:1/")) or True,
    ],
)
def test_an_import_that_was_not_done_is_not_taken_for_done(ipfs: Ipfs, answer: Callable[[Handler], bool]) -> None:
    ipfs.answer = answer
    root = content.cid_of(b"a")
    error = code_of(lambda: with_node(ipfs, lambda node: node.import_car(root, write_car(root, {root: b"a"}.__getitem__))))
    assert error.code is Code.IPFS_REFUSED and ipfs.url in error.detail


def test_a_block_that_is_lost_on_the_way_ends_the_import(ipfs: Ipfs, tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    root = store.add_bytes(DATA)
    store.remove(content.cid_of(DATA[: content.CHUNK_BYTES]))
    error = code_of(lambda: with_node(ipfs, lambda node: node.import_car(root, write_car(root, store.get))))
    assert error.code is Code.BLOCK_NOT_FOUND
    assert ipfs.pins == set()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda handler: bool(handler.give(200, b"other")) or True, Code.BLOCK_DAMAGED),
        (lambda handler: bool(handler.give(200, bytes(content.MAX_BLOCK_BYTES + 1))) or True, Code.MESSAGE_TOO_LARGE),
        (lambda handler: bool(handler.give(200, b"x", Content_Encoding="gzip")) or True, Code.IPFS_REFUSED),
        (lambda handler: bool(handler.json(500, {"Message": "ipld: could not find it"})) or True, Code.BLOCK_NOT_FOUND),
    ],
)
def test_what_a_node_gives_is_checked(ipfs: Ipfs, answer: Callable[[Handler], bool], code: Code) -> None:
    ipfs.answer = answer
    assert code_of(lambda: with_node(ipfs, lambda node: node.get_block(content.cid_of(b"a")))).code is code


def test_an_answer_without_a_length_is_not_read_to_its_end(ipfs: Ipfs) -> None:
    def endless(handler: Handler) -> bool:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        except OSError:
            handler.close_connection = True
        return True

    ipfs.answer = endless
    assert code_of(lambda: with_node(ipfs, lambda node: node.get_block(content.cid_of(b"a")))).code is Code.MESSAGE_TOO_LARGE
    assert code_of(lambda: with_node(ipfs, lambda node: node.version())).code is Code.MESSAGE_TOO_LARGE


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = Ipfs()
    server.url = f"http://127.0.0.1:{port}"
    error = code_of(lambda: with_node(server, lambda node: node.version()))
    assert error.code is Code.IPFS_UNREACHABLE and str(port) in error.detail


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Ipfs()
        server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        async def run() -> None:
            node = IpfsNode(server.url, silence_s=0.2)
            try:
                await node.version()
            finally:
                await node.close()

        assert code_of(lambda: asyncio.run(run())).code is Code.IPFS_UNREACHABLE


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:5001", "ftp://a", "http://", "http://a:b@c", "http://a?x=1", "http://a#x", "http://[::1", "http://a:99999"],
)
def test_addresses_that_are_refused(address: str) -> None:
    error = code_of(lambda: base_url(address))
    assert error.code is Code.OPTION_INVALID
    assert "a:b" not in error.detail, "what may be a password is not printed"


def test_an_address_loses_its_last_slash() -> None:
    assert base_url("http://127.0.0.1:5001/") == "http://127.0.0.1:5001"


def test_a_service_pins(ipfs: Ipfs) -> None:
    cid = content.cid_of(b"a")

    async def work(service: PinningService) -> list[PinState]:
        first = await service.request(cid, name="n" * 300, origins=[f"/dns/{n}/tcp/1" for n in range(30)])
        seen = [first.state]
        while seen[-1] is not PinState.PINNED:
            seen.append((await service.status(first.request_id)).state)
        await service.withdraw(first.request_id)
        await service.withdraw(first.request_id)
        return seen

    sent: list[bytes] = []
    ipfs.answer = lambda handler: sent.append(handler.body) is not None
    assert with_service(ipfs, work) == [PinState.QUEUED, PinState.PINNING, PinState.PINNED]
    assert ipfs.kept == {}
    assert ipfs.asked[:2] == ["POST /pins", "GET /pins/req%2F0"], "an id is one part of a path, whatever it is"
    assert sent[0].count(b"/dns/") == 20 and b"n" * 255 in sent[0] and b"n" * 256 not in sent[0]


def test_a_wrong_token_is_told_and_not_printed(ipfs: Ipfs) -> None:
    error = code_of(lambda: with_service(ipfs, lambda service: service.request(content.cid_of(b"a"), name="a"), "wrong-token"))
    assert error.code is Code.IPFS_REFUSED and "UNAUTHORIZED: no such token" in error.detail
    assert "wrong-token" not in error.line()


@pytest.mark.parametrize(
    "found",
    [
        [],
        {},
        {"requestid": "a", "status": "lost", "pin": {"cid": content.cid_of(b"a")}},
        {"requestid": 3, "status": "queued", "pin": {"cid": content.cid_of(b"a")}},
        {"requestid": "a", "status": ["queued"], "pin": {"cid": content.cid_of(b"a")}},
        {"requestid": "a", "status": "queued", "pin": {"cid": "other"}},
        {"requestid": "a" * 300, "status": "queued", "pin": {"cid": content.cid_of(b"a")}},
        {"requestid": "a", "status": "queued", "pin": {"cid": content.cid_of(b"a")}, "delegates": 3},
    ],
)
def test_answers_that_are_no_status(ipfs: Ipfs, found: object) -> None:
    ipfs.answer = lambda handler: bool(handler.json(202, found)) or True
    error = code_of(lambda: with_service(ipfs, lambda service: service.request(content.cid_of(b"a"), name="a")))
    assert error.code is Code.IPFS_REFUSED


@pytest.mark.parametrize(("endpoint", "token"), [("http://example.org", "t"), ("https://example.org", ""), ("https://a", "t\n")])
def test_a_token_is_not_sent_in_clear_nor_made_up(endpoint: str, token: str) -> None:
    assert code_of(lambda: PinningService(endpoint, token)).code is Code.OPTION_INVALID
