"""Calls are refused by the cheapest check that they fail, and no dearer one is reached."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from door_in_process import HOME, Aborted, Context, House, join_request, stream, within
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from coordinator import door, entrance
from coordinator.door import first_of
from coordinator.entrance import MOST_BYTES, PUSHBACK_KEY, address_of
from coordinator.nonce_file import NonceFile
from coordinator.rate_limits import Buckets, Limits, Rate
from protocol import messages
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, PeerKey
from protocol.messages import WINDOW_MS

ANN, BOB, STRANGER = (MemberKey.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
ELSEWHERE = "ipv4:45.1.2.3:1"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often the dear steps were taken: a signature verified, a payload hashed, a peer's RSA proof verified."""
    counts: Counter[str] = Counter()

    def counting(name: str, real: Any) -> Any:
        def called(*arguments: Any) -> Any:
            counts[name] += 1
            return real(*arguments)

        return called

    monkeypatch.setattr(messages, "verify", counting("signature", messages.verify))
    monkeypatch.setattr(door, "verify_peer_proof", counting("proof", door.verify_peer_proof))
    yield counts


def test_each_refusal_is_the_cheapest_one(tmp_path: Path, peer_keys: list[PeerKey], work: Counter[str]) -> None:
    async def body(house: House) -> None:
        await house.ask(ANN, "join", join_request(ANN, peer_keys[0]))
        assert work == {"signature": 2, "proof": 1}  # the answer's, too
        work.clear()
        watch = pb.WatchRequest()

        async def refused(method: str, signed: pb.Signed, code: Code, words: str) -> None:
            error = await house.refused(house.send(method, signed))
            assert error.code is code and words in error.line(), error.line()

        # Size, before it is asked who sends it.
        large = house.signed(STRANGER, "watch", bytes(MOST_BYTES["watch"] + 1))
        await refused("watch", large, Code.MESSAGE_TOO_LARGE, "at most")
        # Who may not call is not listened to, whatever it signs.
        await refused("watch", house.signed(STRANGER, "watch", watch), Code.PEER_REFUSED, "join first")
        # What the header is for.
        for fields, words in (
            ({"run_id": "another"}, "for run"), ({"receiver": BOB.member_id}, "another receiver"), ({"now_ms": 1}, "clocks"),
        ):  # fmt: skip
            await refused("watch", house.signed(ANN, "watch", watch, **fields), Code.SIGNATURE_INVALID, words)
        await refused("watch", house.signed(ANN, "lease", watch), Code.SIGNATURE_INVALID, "signed for 'lease'")
        assert work == {}, "nothing was verified so far"
        # The signature, before the payload is looked at; the payload before the nonce.
        forged = house.signed(ANN, "watch", watch)
        forged.signature = bytes(64)
        forged.payload = b"another"
        await refused("watch", forged, Code.SIGNATURE_INVALID, "not made by")
        changed = house.signed(ANN, "watch", watch)
        changed.payload = b"another"
        await refused("watch", changed, Code.SIGNATURE_INVALID, "not the one that was signed")
        good = house.signed(ANN, "watch", watch)
        await house.send("watch", good)
        await refused("watch", good, Code.SIGNATURE_INVALID, "received before")
        assert work == {"signature": 4}
        # A join with a wrong proof takes no nonce, and no member's place.
        work.clear()
        request = join_request(BOB, peer_keys[1])
        request.peer_signature = peer_keys[1].prove(ANN.public)
        await refused("join", house.signed(BOB, "join", request), Code.SIGNATURE_INVALID, "peer key")
        forged = house.signed(BOB, "join", request)
        forged.signature = bytes(64)
        await refused("join", forged, Code.SIGNATURE_INVALID, "not made by")
        assert work == {"signature": 2, "proof": 1}, "no RSA for who cannot sign"

    within(tmp_path, body)


def test_a_join_without_the_right_invitation_costs_no_signature(
    tmp_path: Path, peer_keys: list[PeerKey], work: Counter[str]
) -> None:
    async def body(house: House) -> None:
        request = join_request(BOB, peer_keys[0], invitation="a guess")
        for _ in range(20):
            assert (await house.refused(house.ask(BOB, "join", request))).code is Code.INVITATION_REFUSED
        assert work == {}

    within(tmp_path, body, membership='mode = "invited"')


def test_an_updates_head_is_checked_before_its_bytes_are_taken(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    async def body(house: House) -> None:
        await house.ask(ANN, "join", join_request(ANN, peer_keys[0]))
        await house.pieces.driver.step()
        pulled = 0

        async def chunks(head: pb.UpdateHead, key: MemberKey, **fields: Any) -> Any:
            nonlocal pulled
            yield pb.UpdateChunk(head=house.signed(key, "submit_update", head, **fields))
            while True:
                pulled += 1
                yield pb.UpdateChunk(data=bytes(1 << 20))

        head = pb.UpdateHead(round=9, base_cid="x", stage=0, size_bytes=1 << 50, sha256=bytes(32))
        fits = {"round": 9, "base_cid": "x", "stage": 0}
        for key, fields, code in ((STRANGER, fits, Code.PEER_REFUSED), (ANN, {"round": 8}, Code.SIGNATURE_INVALID)):
            error = await house.refused(house.door.SubmitUpdate(chunks(head, key, **fields), Context()))
            assert error.code is code
        # The manifest and the round say no: a receipt, and not a byte of the file was asked for.
        answer = await house.door.SubmitUpdate(chunks(head, ANN, **fits), Context())
        receipt = pb.UpdateReceipt.FromString(answer.payload)
        assert not receipt.accepted and receipt.reason and pulled == 0

    within(tmp_path, body)


def test_no_message_is_taken_twice_over_a_restart(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    """A watch too, of which the journal keeps nothing, and within the whole window of its time."""

    async def body(house: House) -> None:
        await house.ask(ANN, "join", join_request(ANN, peer_keys[0]))
        sent = [house.signed(ANN, "watch", pb.WatchRequest(), now_ms=int(house.clock.now * 1000) + 50_000) for _ in range(20)]
        for one in sent:
            await house.send("watch", one)
        for _ in range(3):
            house.clock.now += 30.0
            house = await house.restarted()
            for one in sent:
                assert "received before" in (await house.refused(house.send("watch", one))).detail
            await house.ask(ANN, "watch", pb.WatchRequest())
        house.pieces.journal.close()

    within(tmp_path, body)


@given(st.lists(st.tuples(st.integers(0, 90_000), st.booleans()), max_size=40))
@settings(max_examples=60)
def test_the_nonces_of_three_windows_are_kept_and_the_files_stay_small(steps: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, now_ms = Path(name), 10**12
        file, kept = NonceFile(folder, now_ms), []
        for number, (pause_ms, restart) in enumerate(steps):
            now_ms += pause_ms
            if restart:
                file.close()
                file = NonceFile(folder, now_ms)
            kept.append((ANN.public, number.to_bytes(16, "little"), now_ms))
            file.add(kept[-1], now_ms)
        rows = list(file.rows())
        file.close()
        assert {row for row in kept if row[2] > now_ms - 3 * WINDOW_MS} <= set(rows) <= set(kept)


def test_a_row_of_nonces_that_was_cut_spoils_none_that_follow(tmp_path: Path) -> None:
    file = NonceFile(tmp_path, 0)
    file.add((ANN.public, bytes(16), 5), 5)
    file.close()
    (path,) = [one for one in tmp_path.iterdir() if one.stat().st_size]
    with path.open("ab") as stream:
        stream.write(b"half a row")
    file = NonceFile(tmp_path, 6)
    file.add((BOB.public, bytes(16), 7), 7)
    assert list(file.rows()) == [(ANN.public, bytes(16), 5), (BOB.public, bytes(16), 7)]
    file.close()


def test_a_stream_that_says_nothing_is_ended(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        never = asyncio.Event()

        async def silent() -> Any:
            await never.wait()
            yield pb.UpdateChunk()

        error = await house.refused(_as_refusal(first_of(aiter(silent()), 0.05)))
        assert error.code is Code.STREAM_BROKEN and "nothing came" in error.detail
        for parts in ((), (pb.UpdateChunk(data=b"x"),)):
            error = await house.refused(house.door.SubmitUpdate(stream(*parts), Context()))
            assert error.code is Code.STREAM_BROKEN

    within(tmp_path, body)


async def _as_refusal(waiting: Any) -> Any:
    try:
        return await waiting
    except HocketError as error:
        raise Aborted(grpc.StatusCode.ABORTED, error.line(), {}) from error


def test_a_flood_waits_as_long_as_it_is_told_and_members_at_the_same_address_do_not(
    tmp_path: Path, peer_keys: list[PeerKey], work: Counter[str]
) -> None:
    async def body(house: House) -> None:
        await house.ask(ANN, "join", join_request(ANN, peer_keys[0]), ELSEWHERE)
        work.clear()
        met: Counter[Code] = Counter()
        pushback_ms = 0
        for _ in range(400):
            try:
                await house.send("watch", pb.Signed(header=b"\xff", signature=bytes(64)), ELSEWHERE)
            except Aborted as aborted:
                met[aborted.error.code] += 1
                pushback_ms = int(aborted.metadata.get(PUSHBACK_KEY, "0"))
        # 2000 calls at once, and eleven for one that is refused.
        assert met == {Code.SIGNATURE_INVALID: 182, Code.RATE_LIMITED: 218} and work == {}
        await house.ask(ANN, "watch", pb.WatchRequest(), ELSEWHERE)
        # A stranger who says to be Ann, from her address, uses up what is hers there, and nothing of what is hers elsewhere.
        for _ in range(100):
            forged = house.signed(ANN, "watch", pb.WatchRequest())
            forged.signature = bytes(64)
            await house.refused(house.send("watch", forged, ELSEWHERE))
        assert (await house.refused(house.ask(ANN, "watch", pb.WatchRequest(), ELSEWHERE))).code is Code.RATE_LIMITED
        await house.ask(ANN, "watch", pb.WatchRequest(), HOME)
        assert 0 < pushback_ms <= 1000
        house.clock.now += 1.0
        error = await house.refused(house.send("watch", pb.Signed(header=b"\xff", signature=bytes(64)), ELSEWHERE))
        assert error.code is Code.SIGNATURE_INVALID, "looked at again, after the time that was named"

    within(tmp_path, body)


def test_joins_and_looks_at_the_status_are_counted_besides(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    limits = Limits(joins=Buckets(Rate(0.1, 3)), status=Buckets(Rate(0.1, 2)), member_joins=Buckets(Rate(0.1, 1)))

    async def body(house: House) -> None:
        await house.ask(ANN, "join", join_request(ANN, peer_keys[0]))
        assert "of this member" in (await house.refused(house.ask(ANN, "join", join_request(ANN, peer_keys[0])))).detail
        await house.ask(BOB, "join", join_request(BOB, peer_keys[1]))
        stranger = join_request(STRANGER, peer_keys[2])
        assert "of this address" in (await house.refused(house.ask(STRANGER, "join", stranger))).detail
        await house.ask(STRANGER, "join", stranger, ELSEWHERE)
        for _ in range(2):
            await house.door.Status(pb.StatusRequest(), Context())  # type: ignore[arg-type]
        assert (await house.refused(house.door.Status(pb.StatusRequest(), Context()))).code is Code.RATE_LIMITED
        assert house.state.members[STRANGER.member_id].address == "45.1.2.3"

    within(tmp_path, body, limits=limits)


@pytest.mark.parametrize(("peer", "address"), [
    ("ipv4:9.8.7.6:1234", "9.8.7.6"), ("ipv6:%5B2a01:4f8::1%5D:1234", "2a01:4f8::1"), ("ipv6:[::1]:5", "::1"), ("unix:", "unix:"),
])  # fmt: skip
def test_the_address_is_read_from_what_grpc_says(peer: str, address: str) -> None:
    assert address_of(Context(peer)) == address  # type: ignore[arg-type]


def test_every_signed_method_has_a_limit_of_size() -> None:
    assert set(MOST_BYTES) == {"join", "watch", "lease", "leave", "submit_update", "commit", "submit_opening", "manage"}
    assert entrance.MOST_BYTES["submit_update"] <= door.MAX_MESSAGE_BYTES
