"""Where the coordinator says it is: what makes a good record, and which one is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed
from swarm.directory import MemoryDirectory
from swarm.whereabouts import LIFE_MS, Whereabouts, check_whereabouts, make_whereabouts, newest_of

KEY = MemberKey.from_seed(bytes(32))
OTHER = MemberKey.from_seed(bytes([1] * 32))
NOW = 1_800_000_000_000
BOOTSTRAP = "/ip4/127.0.0.1/tcp/4001/p2p/QmUqmyZmRHKRBjVUGVYS2D5sBmiCdHRWnN4X9Q1vwcwTSC"


def good(*, key: MemberKey = KEY, now_ms: int = NOW, address: str = "host.example:7000") -> pb.Signed:
    return make_whereabouts(key, run_id="run", addresses=[address], bootstrap_multiaddrs=[BOOTSTRAP], now_ms=now_ms)


def test_a_good_record() -> None:
    found = check_whereabouts(good(), run_id="run", now_ms=NOW + 1)
    assert found == Whereabouts(("host.example:7000",), (BOOTSTRAP,), NOW, NOW + LIFE_MS, KEY.public)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record.addresses.pop(), "0 addresses"),
        (lambda record: record.addresses.extend(["a:1"] * 8), "9 addresses"),
        (lambda record: record.addresses.append("no port"), "not host:port"),
        (lambda record: record.addresses.append("a" * 300 + ":1"), "too long"),
        (lambda record: record.bootstrap_multiaddrs.extend([BOOTSTRAP] * 16), "17 bootstrap peers"),
        (lambda record: record.bootstrap_multiaddrs.append("/ip4/127.0.0.1/tcp/1"), "multiaddress"),
        (lambda record: setattr(record, "expires_ms", NOW + LIFE_MS + 1), "lives longer"),
        (lambda record: setattr(record, "expires_ms", NOW), "lives longer"),
        (lambda record: record.addresses.extend(["a" * 250 + ":1"] * 40), "bytes long"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[[pb.CoordinatorRecord], object], why: str) -> None:
    record = pb.CoordinatorRecord.FromString(good().payload)
    change(record)
    signed = make_signed(KEY, method="coordinator_record", payload=record, run_id="run", receiver="", now_ms=NOW)
    with pytest.raises(HocketError, match=why) as caught:
        check_whereabouts(signed, run_id="run", now_ms=NOW)
    assert caught.value.code is Code.SIGNATURE_INVALID


def test_of_another_run_or_time_or_forged() -> None:
    forged = good()
    forged.payload = good(address="evil.example:1").payload
    for signed, run_id, now_ms in ((good(), "other", NOW), (good(), "run", NOW + 3 * LIFE_MS), (forged, "run", NOW)):
        with pytest.raises(HocketError) as caught:
            check_whereabouts(signed, run_id=run_id, now_ms=now_ms)
        assert caught.value.code is Code.SIGNATURE_INVALID


@given(st.lists(st.tuples(st.booleans(), st.integers(-200_000, 0)), max_size=8), st.integers(-200_000, 0))
def test_the_newest_of_the_right_signer_is_followed_and_none_older_than_before(made: list[tuple[bool, int]], seen: int) -> None:
    records = [
        Whereabouts((f"h:{1 + number}",), (), NOW + age, NOW + age + LIFE_MS, (KEY if ours else OTHER).public)
        for number, (ours, age) in enumerate(made)
    ]
    chosen = newest_of(KEY.public, records, now_ms=NOW, not_before_ms=NOW + seen)
    may = [one for one in records if one.signer == KEY.public and one.expires_ms > NOW and one.time_ms >= NOW + seen]
    assert (chosen is None) == (not may)
    if chosen is not None:
        assert chosen in may
        assert chosen.time_ms == max(one.time_ms for one in may)


def test_the_directory_keeps_the_newest_of_each_signer_until_it_runs_out() -> None:
    async def work() -> None:
        now = NOW
        directory = MemoryDirectory(lambda: now)
        await directory.announce_coordinator(good(now_ms=NOW - 10), "run")
        await directory.announce_coordinator(good(address="new.example:7001"), "run")
        await directory.announce_coordinator(good(now_ms=NOW - 10), "run")  # a replay
        await directory.announce_coordinator(good(key=OTHER), "run")
        found = {one.signer: one.addresses for one in await directory.find_coordinator("run")}
        assert found == {KEY.public: ("new.example:7001",), OTHER.public: ("host.example:7000",)}
        assert await directory.find_coordinator("other") == []
        now = NOW + LIFE_MS
        assert await directory.find_coordinator("run") == []

    asyncio.run(work())
