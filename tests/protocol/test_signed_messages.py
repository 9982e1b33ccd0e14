"""Signed messages: what the signature binds, and replay protection in bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import NONCE_BYTES, SIGNED_PREFIX, NonceWindow, make_signed, open_signed

SENDER = MemberKey.from_seed(b"\1" * 32)
RECEIVER = MemberKey.from_seed(b"\2" * 32)
NOW_MS = 1_700_000_000_000
PAYLOAD = pb.LeaseRequest(round=3, generation=2)


def signed(**changes: Any) -> pb.Signed:
    arguments: dict[str, Any] = {
        "method": "lease",
        "payload": PAYLOAD,
        "run_id": "run",
        "receiver": RECEIVER.member_id,
        "round": 3,
        "base_cid": "bafk",
        "stage": 1,
        "now_ms": NOW_MS,
    }
    return make_signed(changes.pop("key", SENDER), **{**arguments, **changes})


def opened(message: pb.Signed, **changes: Any) -> tuple[pb.SignedHeader, bytes]:
    arguments: dict[str, Any] = {
        "method": "lease",
        "run_id": "run",
        "receiver": RECEIVER.member_id,
        "now_ms": NOW_MS,
        "nonces": None,
    }
    return open_signed(message, **{**arguments, **changes})


def reason(message: pb.Signed, **changes: Any) -> str:
    with pytest.raises(HocketError) as caught:
        opened(message, **changes)
    assert caught.value.code is Code.SIGNATURE_INVALID
    return caught.value.detail


def test_a_message_comes_back_with_everything_that_it_binds() -> None:
    header, payload = opened(signed())
    assert pb.LeaseRequest.FromString(payload) == PAYLOAD
    assert (header.method, header.run_id, header.round, header.base_cid, header.stage) == ("lease", "run", 3, "bafk", 1)
    assert header.public_key == SENDER.public
    assert header.time_ms == NOW_MS
    assert len(header.nonce) == NONCE_BYTES
    assert opened(signed(payload=b"raw bytes"))[1] == b"raw bytes"


def test_what_was_signed_for_another_place_is_refused_with_the_reason() -> None:
    assert "signed for 'lease', received as 'watch'" in reason(signed(), method="watch")
    assert "signed for run 'run'" in reason(signed(), run_id="other")
    assert "another receiver" in reason(signed(), receiver=SENDER.member_id)
    assert "check both clocks" in reason(signed(), now_ms=NOW_MS + 60_001)
    assert "check both clocks" in reason(signed(), now_ms=NOW_MS - 60_001)
    opened(signed(), now_ms=NOW_MS + 60_000)
    opened(signed(), now_ms=NOW_MS - 60_000)


def test_another_payload_is_refused() -> None:
    message = signed()
    message.payload = pb.LeaseRequest(round=4, generation=2).SerializeToString()
    assert "payload" in reason(message)


@settings(max_examples=300)
@given(data=st.data())
def test_a_bent_header_or_signature_is_refused(data: st.DataObject) -> None:
    message = signed(nonce=b"n" * NONCE_BYTES)
    field = data.draw(st.sampled_from(["header", "signature"]))
    value = bytearray(getattr(message, field))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    setattr(message, field, bytes(value))
    reason(message)


@given(header=st.binary(max_size=300), signature=st.binary(min_size=64, max_size=64))
def test_garbage_is_refused(header: bytes, signature: bytes) -> None:
    reason(pb.Signed(header=header, payload=b"", signature=signature))


def test_the_signature_is_useless_in_another_domain_and_an_empty_message_is_refused() -> None:
    message = signed()
    message.signature = SENDER.sign(message.header)
    assert "not made by member" in reason(message)
    reason(pb.Signed())
    long = signed()
    long.header += b"\0" * 5000
    assert "too long" in reason(long)


def test_a_nonce_of_another_length_is_refused_though_the_signature_fits() -> None:
    header = pb.SignedHeader.FromString(signed().header)
    header.nonce = b"short"
    data = header.SerializeToString(deterministic=True)
    message = pb.Signed(header=data, payload=signed().payload, signature=SENDER.sign(SIGNED_PREFIX + data))
    assert "nonce of 5 bytes" in reason(message)
    with pytest.raises(ValueError, match="16 bytes"):
        signed(nonce=b"short")


def test_a_replay_is_refused_and_a_refused_message_is_not_remembered() -> None:
    nonces = NonceWindow()
    message = signed()
    reason(message, nonces=nonces, receiver=SENDER.member_id)
    assert len(nonces) == 0
    opened(message, nonces=nonces)
    assert "received before" in reason(message, nonces=nonces)
    opened(signed(), nonces=nonces)
    assert len(nonces) == 2


def test_a_replay_is_refused_by_a_restarted_receiver() -> None:
    before = NonceWindow()
    message = signed()
    opened(message, nonces=before)
    after = NonceWindow.from_rows(before.to_rows())
    assert "received before" in reason(message, nonces=after)
    assert after.to_rows() == before.to_rows()


def test_old_nonces_are_forgotten_after_three_windows() -> None:
    nonces = NonceWindow(100)
    for time_ms in range(0, 10_000, 10):
        nonces.check(SENDER.public, time_ms.to_bytes(16), time_ms, time_ms)
        nonces.check(RECEIVER.public, time_ms.to_bytes(16), time_ms, time_ms)
        assert len(nonces) <= 2 * 32
    nonces.check(SENDER.public, b"z" * 16, 50_000, 50_000)
    assert len(nonces) == 1


KEYS = [MemberKey.from_seed(bytes([number]) * 32).public for number in range(5)]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.integers(0, 30),  # nonce
        st.integers(-60, 60),  # clock difference
        st.integers(0, 40),  # time that passes
        st.booleans(),  # restart
    ),
    max_size=80,
)


@settings(max_examples=300)
@given(events=EVENTS, max_per_key=st.integers(1, 4), max_keys=st.integers(1, 3), max_total=st.integers(1, 6))
def test_no_overload_and_no_restart_lets_a_replay_through(
    events: list[tuple[bytes, int, int, int, bool]], max_per_key: int, max_keys: int, max_total: int
) -> None:
    bounds: dict[str, int] = {"max_per_key": max_per_key, "max_keys": max_keys, "max_total": max_total}
    window = NonceWindow(50, **bounds)
    accepted: set[tuple[bytes, bytes, int]] = set()
    sent: dict[tuple[bytes, int], int] = {}
    now_ms = 1000
    for key, number, difference, passes, restart in events:
        now_ms += passes
        nonce = number.to_bytes(16)
        # The same nonce always has the time that it was first signed with: a replay repeats the whole header.
        time_ms = sent.setdefault((key, number), now_ms + difference)
        if restart:
            window = NonceWindow.from_rows(window.to_rows(), 50, **bounds)
        try:
            window.check(key, nonce, time_ms, now_ms)
        except HocketError as error:
            assert error.code is Code.SIGNATURE_INVALID
        else:
            assert (key, nonce, time_ms) not in accepted
            assert abs(time_ms - now_ms) <= 50
            accepted.add((key, nonce, time_ms))
        assert len(window) <= max_total
        assert len(window.to_rows()) <= 1 + max_keys + max_total


def test_a_flood_of_one_key_does_not_shut_out_another() -> None:
    window = NonceWindow(60_000, max_total=100)
    for number in range(1000):
        now_ms = NOW_MS + number
        window.check(KEYS[0], number.to_bytes(16), now_ms, now_ms)
        if number % 50 == 0:
            window.check(KEYS[1], number.to_bytes(16), now_ms, now_ms)
    assert len(window) == 100
    for key, why in ((KEYS[0], "may have been received"), (KEYS[1], "was received before")):
        with pytest.raises(HocketError, match=why):
            window.check(key, (0).to_bytes(16), NOW_MS, NOW_MS)
    window.check(KEYS[2], (0).to_bytes(16), NOW_MS, NOW_MS)


def test_a_key_that_made_room_and_comes_back_does_not_bring_its_old_messages_back() -> None:
    window = NonceWindow(60_000, max_keys=1)
    window.check(KEYS[0], b"a" * 16, NOW_MS, NOW_MS)
    window.check(KEYS[1], b"b" * 16, NOW_MS + 5, NOW_MS + 5)
    window.check(KEYS[0], b"c" * 16, NOW_MS + 10, NOW_MS + 10)
    for held in (window, NonceWindow.from_rows(window.to_rows(), max_keys=1)):
        with pytest.raises(HocketError, match="may have been received"):
            held.check(KEYS[0], b"a" * 16, NOW_MS, NOW_MS + 10)


def test_bounds_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        NonceWindow(max_total=0)
