"""Slots at relays: asked for, kept, lost, and what they add to our addresses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.wire import put_varint
from swarm.carrier import Message, PeerAddress
from swarm.daemon import LibP2POptions
from swarm.libp2p import LibP2PCarrier
from swarm.relaying import ENOUGH_BYTES, MAX_ANSWER_BYTES, Grant, Slots, _size, circuit_addresses, relays_of

RELAYS = [PeerAddress(f"R{number}", (f"/ip4/10.0.0.{number}/tcp/1/p2p/R{number}",)) for number in range(4)]


def test_an_address_for_each_slot_that_is_held() -> None:
    refuse: set[str] = {"R1"}

    async def ask(relay: PeerAddress) -> Grant:
        if relay.peer_id in refuse:
            raise HocketError(Code.PEER_REFUSED, "full")
        return Grant(1)

    async def work() -> None:
        slots = Slots(RELAYS[:2], "ME", ask)
        assert slots.wanted and slots.addresses == ()
        await slots.ask_all()
        assert slots.addresses == ("/ip4/10.0.0.0/tcp/1/p2p/R0/p2p-circuit/p2p/ME",)
        refuse.symmetric_difference_update({"R0", "R1"})
        await slots.ask_all()
        assert slots.addresses == ("/ip4/10.0.0.1/tcp/1/p2p/R1/p2p-circuit/p2p/ME",)

    asyncio.run(work())


def test_a_grant_tells_whether_activations_go_through() -> None:
    assert Grant(1).enough and str(Grant(1)) == "any size a connection"
    assert Grant(1, ENOUGH_BYTES, 1800).enough
    narrow = Grant(1, 1 << 17, 120)  # libp2p's own limits
    assert not narrow.enough and str(narrow) == "0.125 MiB a connection, for 120 s"


def test_no_relay_of_a_relay_and_none_where_none_is_wanted() -> None:
    through = PeerAddress("R0", ("/ip4/10.0.0.9/tcp/1/p2p/R9/p2p-circuit/p2p/R0",))
    assert circuit_addresses(through, "ME") == []
    wide = LibP2POptions(relay=True)
    assert relays_of(RELAYS, wide) == RELAYS[:3]
    assert relays_of(RELAYS, replace(wide, reachable=True)) == []
    assert relays_of(RELAYS, LibP2POptions()) == []


@given(st.integers(0, 1 << 20))
def test_the_length_of_a_relays_answer_is_bounded(size: int) -> None:
    async def work() -> int:
        reader = asyncio.StreamReader()
        reader.feed_data(put_varint(size))
        reader.feed_eof()
        return await _size(reader)

    if size <= MAX_ANSWER_BYTES:
        assert asyncio.run(work()) == size
        return
    with pytest.raises(HocketError) as caught:
        asyncio.run(work())
    assert caught.value.code is Code.STREAM_BROKEN


@pytest.mark.system
def test_a_call_over_the_address_through_the_relay(tmp_path: Path) -> None:
    async def answer(peer_id: str, request: Message) -> Message:
        return Message(b"yes", [request.body_bytes])

    async def work() -> None:
        wide = LibP2POptions(relay=True)
        carriers = []
        try:
            for name, options in (("relay", replace(wide, reachable=True)), ("one", wide), ("other", wide)):
                bootstrap = carriers[0].multiaddrs if carriers else ()
                state = tmp_path / name
                carriers.append(
                    await LibP2PCarrier.create(state / "peer.key", bootstrap=bootstrap, state_dir=state, options=options)
                )
            relay, one, other = carriers
            assert not any("p2p-circuit" in address for address in relay.multiaddrs)
            relayed = tuple(address for address in one.multiaddrs if "p2p-circuit" in address)
            assert relayed == tuple(circuit_addresses(relay.address, one.peer_id))
            await one.serve("here", answer, max_request_bytes=2 << 20)
            body = bytes(range(256)) * 4096  # more than libp2p's own limit for a relayed connection
            for _ in range(3):
                there = PeerAddress(one.peer_id, relayed)
                told = await other.call(there, "here", Message(b"", [body]), silence_s=10, deadline_s=20)
                assert told.head == b"yes" and told.body_bytes == body
        finally:
            for carrier in reversed(carriers):
                await carrier.close()

    asyncio.run(work())
