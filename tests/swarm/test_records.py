"""Peer records: what makes one good, and where it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed
from swarm.directory import MemoryDirectory
from swarm.records import MAX_LIFE_MS, MAX_RECORD_BYTES, check_record, make_record

KEY = MemberKey.from_seed(bytes(32))
OTHER = MemberKey.from_seed(bytes([1] * 32))
NOW = 1_800_000_000_000
PEER = "QmUqmyZmRHKRBjVUGVYS2D5sBmiCdHRWnN4X9Q1vwcwTSC"
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"


def good(*, now_ms: int = NOW, life_ms: int = MAX_LIFE_MS, stage: int = 2, peer_id: str = PEER) -> pb.Signed:
    return make_record(
        KEY,
        run_id="run",
        stage=stage,
        peer_id=peer_id,
        multiaddrs=[f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id}"],
        version_cid="cid",
        throughput=12.5,
        now_ms=now_ms,
        life_ms=life_ms,
    )


def signed(
    change: Callable[[pb.PeerRecord], object], *, method: str = "peer_record", run_id: str = "run", stage: int = 2
) -> pb.Signed:
    """A record signed by KEY's member after `change`."""
    record = pb.PeerRecord.FromString(good().payload)
    change(record)
    return make_signed(KEY, method=method, payload=record, run_id=run_id, receiver="", stage=stage, now_ms=NOW)


def refuse(record: pb.Signed, *, now_ms: int = NOW, stage: int = 2, run_id: str = "run", peer_id: str = PEER) -> str:
    with pytest.raises(HocketError) as caught:
        check_record(record, run_id=run_id, stage=stage, peer_id=peer_id, now_ms=now_ms)
    assert caught.value.code is Code.SIGNATURE_INVALID
    return caught.value.detail


def test_a_good_record() -> None:
    record = check_record(good(), run_id="run", stage=2, peer_id=PEER, now_ms=NOW)
    assert record.member_id == KEY.member_id
    assert list(record.multiaddrs) == [ADDRESS]
    assert record.expires_ms == NOW + MAX_LIFE_MS
    assert (record.version_cid, record.throughput, record.stage, record.peer_id) == ("cid", 12.5, 2, PEER)


BAD: dict[str, Callable[[pb.PeerRecord], object]] = {
    "signed by another member": lambda record: setattr(record, "member_id", OTHER.member_id),
    "stored under": lambda record: setattr(record, "peer_id", "Qm" + "1" * 44),
    "of peer ''": lambda record: setattr(record, "peer_id", ""),
    "another stage": lambda record: setattr(record, "stage", 3),
    "longer than a minute": lambda record: setattr(record, "expires_ms", NOW + MAX_LIFE_MS + 1),
    "longer than a minute ": lambda record: setattr(record, "expires_ms", NOW),
    "17 addresses": lambda record: record.multiaddrs.extend([ADDRESS] * 16),
    "no address of its peer": lambda record: record.multiaddrs.append("/ip4/1.2.3.4/tcp/1"),
    "no address of its peer ": lambda record: record.multiaddrs.append("/dns4/" + "x" * 300 + f"/tcp/1/p2p/{PEER}"),
    "no number": lambda record: setattr(record, "throughput", float("nan")),
    "no number ": lambda record: setattr(record, "throughput", -1.0),
    "bytes long": lambda record: setattr(record, "version_cid", "x" * MAX_RECORD_BYTES),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_record_signed_wrongly(reason: str) -> None:
    assert reason.strip() in refuse(signed(BAD[reason]))


def test_the_same_record_untouched_is_good() -> None:
    check_record(signed(lambda record: None), run_id="run", stage=2, peer_id=PEER, now_ms=NOW)


def test_a_record_in_the_wrong_place() -> None:
    refuse(good(), stage=3)
    refuse(good(), run_id="another")
    refuse(good(), peer_id="Qm" + "1" * 44)
    refuse(signed(lambda record: None, method="join"))
    refuse(signed(lambda record: None, stage=1))


def test_a_record_from_another_time() -> None:
    refuse(good(), now_ms=NOW - 2 * MAX_LIFE_MS - 1)
    refuse(good(), now_ms=NOW + 2 * MAX_LIFE_MS + 1)


@pytest.mark.parametrize("field", ["header", "payload", "signature"])
def test_a_changed_byte(field: str) -> None:
    record = good()
    data = bytearray(getattr(record, field))
    data[len(data) // 2] ^= 1
    setattr(record, field, bytes(data))
    refuse(record)


def test_garbage() -> None:
    refuse(pb.Signed())
    refuse(make_signed(KEY, method="peer_record", payload=b"\xff\xff", run_id="run", receiver="", stage=2, now_ms=NOW))


def test_the_directory_gives_what_holds_now() -> None:
    async def work() -> None:
        now = NOW
        directory = MemoryDirectory(lambda: now)
        second = "Qm" + "2" * 44
        await directory.announce(good(peer_id=second), "run", 2, second, NOW + MAX_LIFE_MS)
        await directory.announce(good(life_ms=10_000), "run", 2, PEER, NOW + 10_000)
        assert [record.peer_id for record in await directory.find("run", 2)] == [second, PEER]
        assert await directory.find("run", 1) == []
        assert await directory.find("other", 2) == []
        now = NOW + 10_000
        assert [record.peer_id for record in await directory.find("run", 2)] == [second]
        await directory.announce(good(now_ms=now), "run", 2, PEER, now + MAX_LIFE_MS)
        assert [record.peer_id for record in await directory.find("run", 2)] == [second, PEER]

    asyncio.run(work())


def test_the_directory_takes_nothing_false() -> None:
    async def work() -> None:
        directory = MemoryDirectory(lambda: NOW)
        record = good()
        for run_id, stage, peer_id, expires_ms in [
            ("other", 2, PEER, NOW + MAX_LIFE_MS),
            ("run", 3, PEER, NOW + MAX_LIFE_MS),
            ("run", 2, "Qm" + "1" * 44, NOW + MAX_LIFE_MS),
            ("run", 2, PEER, NOW + 2 * MAX_LIFE_MS),
        ]:
            with pytest.raises(HocketError):
                await directory.announce(record, run_id, stage, peer_id, expires_ms)
            assert await directory.find(run_id, stage) == []

    asyncio.run(work())
