"""A js-ipfs daemon over its RPC, by the client that a coordinator has: same names, same bytes, pinned and let go."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from jsipfs_daemon import Daemon, daemon, sockets, with_jsipfs
from pushed_run import Run
from sized_files import DEEP, SIZES, digest, write

from common.errors import Code, HocketError
from protocol import content
from protocol.car import CarReader, write_car
from swarm.blocks import BlockStore
from swarm.ipfs_rpc import IpfsNode

pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
pytestmark = with_jsipfs
ASK_S = 30
DEEP_S = 900
READ_BYTES = 1 << 20
BOUNDARY = "a-boundary-that-no-test-file-holds"
Result = TypeVar("Result")


@pytest.fixture(scope="module")
def js(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("js-ipfs")) as ready:
        yield ready


def opened(js: Daemon, call: str, query: dict[str, str], body: bytes | None = None, limit_s: float = ASK_S) -> Any:
    """A call of the RPC that passes our client by; a stream."""
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} if body is not None else {}
    url = f"{js.rpc}/api/v0/{call}?{urllib.parse.urlencode(query)}"
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return without_proxy.open(urllib.request.Request(url, body, headers, method="POST"), timeout=limit_s)


def cat(js: Daemon, root: str) -> bytes:
    """A file, as js-ipfs puts it together."""
    with opened(js, "cat", {"arg": root}) as stream:
        return bytes(stream.read())


def pins(js: Daemon) -> set[str]:
    with opened(js, "pin/ls", {"type": "recursive", "cid-base": "base32"}) as stream:
        return set(json.load(stream)["Keys"])


def with_node(js: Daemon, work: Callable[[IpfsNode], Awaitable[Result]], *, silence_s: float = ASK_S) -> Result:
    async def run() -> Result:
        node = IpfsNode(js.rpc, silence_s=silence_s)
        try:
            return await work(node)
        finally:
            await node.close()

    return asyncio.run(run())


async def exported(node: IpfsNode, root: str) -> dict[str, bytes]:
    reader, back = CarReader(), dict[str, bytes]()
    async for piece in node.car(root):
        back.update(reader.feed(piece))
    reader.finish()
    return back


@pytest.mark.system
def test_it_stays_on_the_loopback_interface(js: Daemon) -> None:
    found = sockets(js.pid)
    assert {int(url.rpartition(":")[2]) for url in (js.rpc, js.gateway)} <= {port for _, port, _ in found}
    assert {(local, remote) for local, _, remote in found} <= {("127.0.0.1", "0.0.0.0"), ("127.0.0.1", "127.0.0.1")}
    assert with_node(js, lambda node: node.multiaddrs()) == (), "no peer can dial it"


@pytest.mark.system
@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_imported_pinned_read_given_back_and_let_go(js: Daemon, tmp_path: Path, size: int) -> None:
    store = BlockStore(tmp_path / "blocks")
    (path,) = write(tmp_path / "files", (size,)).values()
    root = store.add_file(path)
    blocks = dict(content.iter_blocks(path.read_bytes()))

    async def work(node: IpfsNode) -> None:
        await node.import_car(root, write_car(root, store.get))
        assert root in pins(js)
        assert cat(js, root) == path.read_bytes()
        assert await exported(node, root) == blocks
        for cid, block in blocks.items():
            assert await node.get_block(cid) == block
        await node.unpin(root)
        await node.unpin(root)
        assert root not in pins(js)
        await node.pin(root)
        await node.pin(root)
        assert root in pins(js)

    with_node(js, work)


@pytest.mark.system
@pytest.mark.parametrize("size", SIZES)
def test_a_file_that_is_put_block_by_block_is_whole(js: Daemon, tmp_path: Path, size: int) -> None:
    # Not the bytes of the other tests: those blocks may be there already.
    data = hashlib.shake_128(f"block by block {size}".encode()).digest(size)
    root = BlockStore(tmp_path).add_bytes(data)

    async def work(node: IpfsNode) -> None:
        for cid, block in content.iter_blocks(data):
            await node.put_block(cid, block)
        await node.pin(root)

    with_node(js, work)
    assert root in pins(js)
    assert cat(js, root) == data


@pytest.mark.system
@pytest.mark.parametrize("size", SIZES)
def test_it_names_a_file_that_it_cuts_itself_the_same(js: Daemon, tmp_path: Path, size: int) -> None:
    (path,) = write(tmp_path / "files", (size,)).values()
    about = 'Content-Disposition: form-data; name="file"; filename="file"\r\nContent-Type: application/octet-stream'
    body = f"--{BOUNDARY}\r\n{about}\r\n\r\n".encode() + path.read_bytes() + f"\r\n--{BOUNDARY}--\r\n".encode()
    query = {"cid-version": "1", "raw-leaves": "true", "chunker": "size-1048576", "cid-base": "base32", "only-hash": "true"}
    with opened(js, "add", query, body) as stream:
        said = [json.loads(line) for line in stream.read().splitlines()]
    assert said[-1]["Hash"] == BlockStore(tmp_path / "blocks").add_file(path)


@pytest.mark.system
def test_what_is_not_whole_is_not_taken_for_pinned(js: Daemon, tmp_path: Path) -> None:
    """The comparison can fail. js-ipfs looks for a block that nobody has without an end, also offline; the client gives it up."""
    data = hashlib.shake_128(b"a leaf is missing").digest(content.CHUNK_BYTES + 1)
    store = BlockStore(tmp_path)
    root = store.add_bytes(data)

    async def work(node: IpfsNode) -> None:
        header_and_root = itertools.islice(write_car(root, store.get), 2)
        for call in (node.import_car(root, header_and_root), node.pin(root)):
            with pytest.raises(HocketError) as caught:
                await call
            assert caught.value.code is Code.IPFS_UNREACHABLE
        assert await node.get_block(root) == store.get(root)
        with pytest.raises(HocketError) as caught:
            await node.get_block(content.cid_of(data[: content.CHUNK_BYTES]))
        assert caught.value.code is Code.IPFS_UNREACHABLE

    with_node(js, work, silence_s=2)
    assert root not in pins(js)


@pytest.mark.system
def test_versions_and_dataset_of_a_run_are_pushed_to_it(js: Daemon, tmp_path: Path) -> None:
    run = Run(tmp_path, js.rpc)
    before = pins(js)
    first = run.publish(1)
    run.push_until(lambda pushing: pins(js) - before == first | set(run.pinned))
    for root in first | set(run.pinned):
        assert cat(js, root) == run.store.read_file(root)
    second, third = run.publish(2), run.publish(3)
    run.push_until(lambda pushing: pins(js) - before == second | third | set(run.pinned))
    assert first - second - third


@pytest.mark.soak
@pytest.mark.timeout(2 * DEEP_S)
def test_a_deep_tree_is_imported_and_read(js: Daemon, tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "blocks")
    (path,) = write(tmp_path / "files", (DEEP,)).values()
    root = store.add_file(path)
    with_node(js, lambda node: node.import_car(root, write_car(root, store.get)), silence_s=DEEP_S)
    assert root in pins(js)
    read = hashlib.sha256()
    with opened(js, "cat", {"arg": root}, limit_s=DEEP_S) as stream:
        while piece := stream.read(READ_BYTES):
            read.update(piece)
    assert read.hexdigest() == digest(path)
