"""Gateways for what no peer has: only after a while, only from addresses that may be asked, and every byte checked."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from ipfs_server import Handler, Ipfs, served

from common.errors import Code, HocketError
from protocol import content
from swarm import ipfs_fallback
from swarm.blocks import BlockStore
from swarm.ipfs_fallback import FORGET_S, PATIENCE_S, IpfsFallback, Patience, gateway_address

DATA = hashlib.shake_128(b"far away").digest(2 * content.CHUNK_BYTES + 77)
ROOT = content.cid_of(DATA)
FAULT = HocketError(Code.BLOCK_NOT_FOUND, "no peer has it")


def test_peers_get_some_seconds_before_anybody_else_is_asked() -> None:
    patience = Patience()
    assert not patience.failed("a", 100.0)
    assert not patience.failed("a", 100.0 + PATIENCE_S - 0.1)
    assert patience.failed("a", 100.0 + PATIENCE_S) and not patience.failed("b", 100.0 + PATIENCE_S)
    patience.came("a")
    assert not patience.failed("a", 200.0)
    assert not patience.failed("a", 200.0 + FORGET_S), "that was another time"


@pytest.mark.parametrize("address", ["http://192.168.0.1:8080", "http://node.example", "ftp://a", "https://u:p@h", "x"])
def test_a_stranger_names_no_machine_of_our_network(address: str) -> None:
    with pytest.raises(HocketError) as caught:
        gateway_address(address)
    assert caught.value.code is Code.OPTION_INVALID


def test_addresses_that_may_be_asked() -> None:
    for address in ("https://a.example/", "http://127.0.0.1:8080", "http://localhost:1"):
        assert gateway_address(address) == address.rstrip("/")


def fallback_with(addresses: list[str], store: BlockStore, *, tries: int = 2) -> None:
    async def work() -> None:
        fallback = IpfsFallback()
        try:
            for attempt in range(tries):
                fallback.use(addresses)
                try:
                    await fallback.after(FAULT, store, ROOT, max_bytes=len(DATA))
                except HocketError as error:
                    if attempt == tries - 1:
                        raise
                    assert error is FAULT, "the peers' own fault, and nobody else was asked"
        finally:
            await fallback.close()

    asyncio.run(work())


def test_what_no_peer_has_comes_from_a_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
    monkeypatch.setattr(ipfs_fallback, "PATIENCE_S", 0.0)
    store = BlockStore(tmp_path)
    with served(Ipfs()) as gateway, served(Ipfs()) as empty:
        gateway.blocks = dict(content.iter_blocks(DATA))
        fallback_with([empty.url, gateway.url, "http://10.0.0.1"], store, tries=1)
    assert store.read_file(ROOT) == DATA


def test_the_volunteers_own_node_is_asked_by_its_rpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
    monkeypatch.setattr(ipfs_fallback, "PATIENCE_S", 0.0)
    store = BlockStore(tmp_path)

    async def work(url: str) -> None:
        fallback = IpfsFallback([f"{url}/api/v0"])
        try:
            await fallback.after(FAULT, store, ROOT, max_bytes=len(DATA))
        finally:
            await fallback.close()

    with served(Ipfs()) as node:
        node.blocks = dict(content.iter_blocks(DATA))
        asyncio.run(work(node.url))
    assert store.read_file(ROOT) == DATA
    assert {one.partition("?")[0] for one in node.asked} <= {"POST /api/v0/dag/export", "POST /api/v0/block/get"}


def test_a_lying_gateway_and_an_empty_one_bring_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
    monkeypatch.setattr(ipfs_fallback, "PATIENCE_S", 0.0)
    store = BlockStore(tmp_path)

    def lie(handler: Handler) -> bool:
        handler.give(200, b"something else")
        return True

    with served(Ipfs()) as liar, served(Ipfs()) as empty:
        liar.answer = lie
        with pytest.raises(HocketError) as caught:
            fallback_with([liar.url, empty.url], store, tries=1)
    assert caught.value.code is Code.BLOCK_DAMAGED
    assert store.blocks() == []


def test_gateways_that_cannot_be_used_are_said_once_and_left_out(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(HocketError) as caught:
        fallback_with(["http://10.0.0.1"] * 3, BlockStore(tmp_path), tries=3)
    assert caught.value is FAULT
    assert len([record for record in caplog.records if "gateway" in record.getMessage()]) == 1
