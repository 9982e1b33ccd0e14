"""Tickets: copied whole they work, copied badly they are refused with the remedy."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.ticket import PREFIX, Ticket, split_address

KEY = MemberKey.from_seed(b"\1" * 32)
TICKET = Ticket(
    run_id="winter",
    coordinator_addresses=("198.51.100.7:7000", "[2001:db8::7]:7000", "run.example.org:443"),
    coordinator_key=KEY.public,
    tls_sha256=b"\5" * 32,
    bootstrap_multiaddrs=("/ip4/198.51.100.7/tcp/7001/p2p/QmPeer",),
    invitation="come in",
)


def refused(line: str) -> str:
    with pytest.raises(HocketError) as caught:
        Ticket.decode(line)
    assert caught.value.code is Code.TICKET_INVALID
    assert "hocket1:" in caught.value.line()
    return caught.value.detail


def pack(data: bytes) -> str:
    checksum = hashlib.sha256(PREFIX.encode() + data).digest()[:4]
    return PREFIX + base64.b32encode(data + checksum).decode().rstrip("=").lower()


names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
tickets = st.builds(
    Ticket,
    run_id=names,
    coordinator_addresses=st.lists(st.builds("{}:{}".format, names, st.integers(1, 65535)), min_size=1, max_size=4).map(tuple),
    coordinator_key=st.binary(min_size=32, max_size=32).map(lambda seed: MemberKey.from_seed(seed).public),
    tls_sha256=st.binary(min_size=32, max_size=32),
    bootstrap_multiaddrs=st.lists(st.builds("/dns/{}/tcp/1/p2p/{}".format, names, names), max_size=4).map(tuple),
    invitation=st.text(max_size=20),
)


@given(ticket=tickets, width=st.integers(10, 80), indent=st.sampled_from(["", "  ", "\t"]), end=st.sampled_from(["\n", "\r\n"]))
def test_a_ticket_survives_mail(ticket: Ticket, width: int, indent: str, end: str) -> None:
    line = ticket.encode()
    assert Ticket.decode(line) == ticket
    wrapped = end.join(indent + line[start : start + width] for start in range(0, len(line), width))
    assert Ticket.decode(f"\n  {wrapped} \n\n") == ticket


@given(ticket=tickets, data=st.data())
def test_one_wrong_or_lost_character_is_noticed(ticket: Ticket, data: st.DataObject) -> None:
    line = ticket.encode()
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567").filter(lambda c: c != line[place]))
    refused(line[:place] + other + line[place + 1 :])
    refused(line[:place] + line[place + 1 :])


@given(line=st.text(max_size=200))
def test_any_other_text_is_refused(line: str) -> None:
    refused(line)
    refused(PREFIX + line)


def test_the_line_is_lower_case_and_only_that_is_read() -> None:
    line = TICKET.encode()
    assert line.startswith("hocket1:") and line == line.lower() and "=" not in line
    refused(line.upper())
    refused(line + "====")
    refused(line[:30] + " " + line[30:])
    refused("a" * 100_000)


def test_content_beyond_the_format_is_refused_though_the_checksum_fits() -> None:
    data = pb.Ticket(
        run_id="winter", coordinator_addresses=["127.0.0.1:1"], coordinator_key=KEY.public, bootstrap_multiaddrs=[]
    ).SerializeToString()
    assert Ticket.decode(pack(data)).run_id == "winter"
    assert "canonical" in refused(pack(data + b"\x38\x01"))
    assert "cannot be read" in refused(pack(b"\xff\xff"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_id", ""),
        ("run_id", "a\nb"),
        ("coordinator_addresses", ()),
        ("coordinator_addresses", ("host",)),
        ("coordinator_addresses", ("host:0",)),
        ("coordinator_addresses", ("host:65536",)),
        ("coordinator_addresses", (":7000",)),
        ("coordinator_addresses", ("2001:db8::7:7000",)),
        ("coordinator_addresses", ("ho st:1",)),
        ("coordinator_key", b"\1" + b"\0" * 31),
        ("coordinator_key", b""),
        ("tls_sha256", b"\5" * 31),
        ("tls_sha256", b""),
        ("bootstrap_multiaddrs", ("198.51.100.7:7001",)),
        ("bootstrap_multiaddrs", ("/ip4/198.51.100.7/tcp/7001",)),
    ],
)
def test_values_that_do_not_fit_are_refused(field: str, value: object) -> None:
    with pytest.raises(HocketError) as caught:
        replace(TICKET, **{field: value})
    assert caught.value.code is Code.TICKET_INVALID


def test_plain_text_is_for_loopback_only() -> None:
    local = replace(TICKET, coordinator_addresses=("127.0.0.1:7000", "[::1]:7000", "localhost:1"), tls_sha256=b"")
    assert Ticket.decode(local.encode()) == local
    with pytest.raises(HocketError, match="loopback"):
        replace(local, coordinator_addresses=("127.0.0.1:7000", "198.51.100.7:7000"))


def test_addresses_are_split_into_host_and_port() -> None:
    assert split_address("run.example.org:443") == ("run.example.org", 443)
    assert split_address("[2001:db8::7]:1") == ("2001:db8::7", 1)


def test_a_ticket_too_long_for_one_line_is_refused_when_made() -> None:
    with pytest.raises(HocketError, match="at most"):
        replace(TICKET, invitation="x" * 10_000).encode()
