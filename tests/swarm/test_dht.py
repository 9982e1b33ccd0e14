"""The directory in the DHT, over real daemons: found by others, refused when false."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from swarm.daemon import LibP2POptions
from swarm.dht import DhtDirectory, RecordValidator
from swarm.libp2p import LibP2PCarrier
from swarm.records import MAX_LIFE_MS, make_record, record_key, wall_clock_ms
from swarm.whereabouts import LIFE_MS, make_whereabouts, whereabouts_key

KEY = MemberKey.from_seed(bytes(32))
NOW = 1_800_000_000_000
PEER = "QmUqmyZmRHKRBjVUGVYS2D5sBmiCdHRWnN4X9Q1vwcwTSC"


def record_of(
    carrier: LibP2PCarrier, *, stage: int = 1, key: MemberKey = KEY, life_ms: int = MAX_LIFE_MS
) -> tuple[pb.Signed, int]:
    now_ms = wall_clock_ms()
    record = make_record(
        key,
        run_id="run",
        stage=stage,
        peer_id=carrier.peer_id,
        multiaddrs=carrier.multiaddrs,
        version_cid="",
        throughput=1.0,
        now_ms=now_ms,
        life_ms=life_ms,
    )
    return record, now_ms + life_ms


async def with_peers(folder: Path, count: int, work: Callable[[list[LibP2PCarrier]], Awaitable[None]]) -> None:
    carriers: list[LibP2PCarrier] = []
    try:
        for number in range(count):
            state = folder / str(number)
            bootstrap = carriers[0].multiaddrs if carriers else ()
            options = LibP2POptions(run_id="run")
            carriers.append(await LibP2PCarrier.create(state / "peer.key", bootstrap=bootstrap, state_dir=state, options=options))
        await work(carriers)
    finally:
        for carrier in carriers:
            await carrier.close()


def test_peers_find_each_other_and_only_while_records_hold(tmp_path: Path) -> None:
    async def work(carriers: list[LibP2PCarrier]) -> None:
        _, second, third = carriers
        for carrier in (second, third):
            record, expires_ms = record_of(carrier)
            await carrier.dht.announce(record, "run", 1, carrier.peer_id, expires_ms)
        for carrier in carriers:
            found = await carrier.dht.find("run", 1)
            assert [record.peer_id for record in found] == sorted([second.peer_id, third.peer_id])
            assert {tuple(record.multiaddrs) for record in found} == {second.multiaddrs, third.multiaddrs}
        assert await third.dht.find("run", 2) == []
        record, expires_ms = record_of(second, stage=3, life_ms=1500)
        await second.dht.announce(record, "run", 3, second.peer_id, expires_ms)
        assert [found.peer_id for found in await third.dht.find("run", 3)] == [second.peer_id]
        await asyncio.sleep(max(0.0, expires_ms / 1000 - time.time()) + 0.05)
        assert await third.dht.find("run", 3) == []

    asyncio.run(with_peers(tmp_path, 3, work))


def test_a_later_record_of_the_same_peer_replaces_the_first(tmp_path: Path) -> None:
    async def work(carriers: list[LibP2PCarrier]) -> None:
        first, second = carriers
        for life_ms in (20_000, 40_000):
            record, expires_ms = record_of(second, life_ms=life_ms)
            await second.dht.announce(record, "run", 1, second.peer_id, expires_ms)
            assert [found.expires_ms for found in await first.dht.find("run", 1)] == [expires_ms]

    asyncio.run(with_peers(tmp_path, 2, work))


def test_newcomers_find_the_others_through_a_restarted_bootstrap_peer(tmp_path: Path) -> None:
    """It comes back at its address with its key and no memory; announcements make the others known to it again."""

    async def work(stack: contextlib.AsyncExitStack) -> None:
        state = tmp_path / "first"
        first = await LibP2PCarrier.create(state / "peer.key", state_dir=state)
        stack.push_async_callback(first.close)
        listen = [address.partition("/p2p/")[0] for address in first.multiaddrs]
        bootstrap = first.multiaddrs
        old = await LibP2PCarrier.create(tmp_path / "old" / "peer.key", bootstrap=bootstrap, state_dir=tmp_path / "old")
        stack.push_async_callback(old.close)
        record, expires_ms = record_of(old, life_ms=20_000)
        await old.dht.announce(record, "run", 1, old.peer_id, expires_ms)
        await first.close()
        record, expires_ms = record_of(old, life_ms=30_000)
        await old.dht.announce(record, "run", 1, old.peer_id, expires_ms)  # alone, which is logged and no error
        assert [found.peer_id for found in await old.dht.find("run", 1)] == [old.peer_id]
        first = await LibP2PCarrier.create(state / "peer.key", listen=listen, state_dir=state)
        stack.push_async_callback(first.close)
        assert first.multiaddrs == bootstrap
        async with asyncio.timeout(30):
            while not await first.dht.find("run", 1):  # libp2p does not redial an address for some seconds after a failure
                record, expires_ms = record_of(old)
                await old.dht.announce(record, "run", 1, old.peer_id, expires_ms)
        new = await LibP2PCarrier.create(tmp_path / "new" / "peer.key", bootstrap=bootstrap, state_dir=tmp_path / "new")
        stack.push_async_callback(new.close)
        assert [found.peer_id for found in await new.dht.find("run", 1)] == [old.peer_id]

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await work(stack)

    asyncio.run(main())


def test_nodes_store_nothing_false(tmp_path: Path) -> None:
    """What our own announce would refuse is refused by the others as well."""

    async def work(carriers: list[LibP2PCarrier]) -> None:
        first, second = carriers
        assert isinstance(second.dht, DhtDirectory)
        node, expires_s = second.dht._node, time.time() + 30
        key = record_key("run", 1)
        good, expires_ms = record_of(second)
        assert await node.store(key, good.SerializeToString(), expires_ms / 1000, subkey=second.peer_id, exclude_self=True)
        assert not await node.store(key, good.SerializeToString(), expires_ms / 1000, subkey=first.peer_id, exclude_self=True)
        assert not await node.store(key, b"anything", expires_s, subkey=second.peer_id, exclude_self=True)
        assert not await node.store(key, "plain", expires_s, exclude_self=True)
        assert not await node.store("free storage", b"film", expires_s, subkey=second.peer_id, exclude_self=True)
        long_lived = time.time() + 3600
        assert not await node.store(key, good.SerializeToString(), long_lived, subkey=second.peer_id, exclude_self=True)
        assert [found.peer_id for found in await first.dht.find("run", 1)] == [second.peer_id]
        with pytest.raises(HocketError) as caught:
            await second.dht.announce(good, "run", 1, first.peer_id, expires_ms)
        assert caught.value.code is Code.SIGNATURE_INVALID

    asyncio.run(with_peers(tmp_path, 2, work))


def dht_record(
    *,
    run_id: str = "run",
    stage: int = 1,
    subkey: object = PEER,
    value: object = None,
    key: bytes | None = None,
    expires_s: float = (NOW + MAX_LIFE_MS) / 1000,
) -> DHTRecord:
    signed = make_record(KEY, run_id=run_id, stage=stage, peer_id=PEER, multiaddrs=[], version_cid="", throughput=0.0, now_ms=NOW)
    return DHTRecord(
        key if key is not None else DHTID.generate(record_key(run_id, stage)).to_bytes(),
        msgpack.packb(subkey),
        msgpack.packb(signed.SerializeToString() if value is None else value),
        expires_s,
    )


def test_validator() -> None:
    validator = RecordValidator("run", now_ms=lambda: NOW)
    assert validator.validate(dht_record())
    assert not validator.validate(dht_record(run_id="other"))
    assert RecordValidator("", now_ms=lambda: NOW).validate(dht_record(run_id="other"))
    assert not validator.validate(dht_record(stage=5000))
    assert not validator.validate(dht_record(subkey=None))
    assert not validator.validate(dht_record(subkey="Qm" + "1" * 44))
    assert not validator.validate(dht_record(subkey=b"bytes"))
    assert not validator.validate(dht_record(value="text"))
    assert not validator.validate(dht_record(value=bytes(20_000)))
    assert not validator.validate(dht_record(key=bytes(20)))
    assert not validator.validate(dht_record(expires_s=(NOW + MAX_LIFE_MS) / 1000 + 1))
    assert validator.validate(dht_record(expires_s=(NOW + MAX_LIFE_MS) / 1000 - 1))
    assert not RecordValidator("run", now_ms=lambda: NOW + 3 * MAX_LIFE_MS).validate(dht_record())


def test_the_validator_takes_word_of_the_coordinator_from_itself_alone() -> None:
    def record(signer: MemberKey, **changes: object) -> DHTRecord:
        signed = make_whereabouts(signer, run_id="run", addresses=["host:1"], bootstrap_multiaddrs=[], now_ms=NOW)
        fields: dict[str, Any] = {
            "key": DHTID.generate(whereabouts_key("run")).to_bytes(),
            "subkey": msgpack.packb(signer.member_id),
            "value": msgpack.packb(signed.SerializeToString()),
            "expiration_time": (NOW + LIFE_MS) / 1000,
        }
        return DHTRecord(**{**fields, **changes})

    other = MemberKey.from_seed(bytes([1] * 32))
    pinned = RecordValidator("run", KEY.public, now_ms=lambda: NOW)
    assert pinned.validate(record(KEY))
    assert not pinned.validate(record(other))
    assert RecordValidator("run", now_ms=lambda: NOW).validate(record(other))
    assert not pinned.validate(record(KEY, subkey=msgpack.packb(other.member_id)))
    assert not pinned.validate(record(KEY, key=DHTID.generate(record_key("run", 0)).to_bytes()))
    assert not pinned.validate(record(KEY, expiration_time=(NOW + LIFE_MS) / 1000 + 1))
    assert not RecordValidator("other", KEY.public, now_ms=lambda: NOW).validate(record(KEY))


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=200))
def test_validator_survives_anything(key: bytes, subkey: bytes, value: bytes) -> None:
    assert RecordValidator("", now_ms=lambda: NOW).validate(DHTRecord(key, subkey, value, 0.0)) is False
    good = dht_record()
    changed = DHTRecord(good.key, good.subkey, value, good.expiration_time)
    assert RecordValidator("", now_ms=lambda: NOW).validate(changed) is False
