"""Nobody chooses a stage, and nobody gets more of one than the aggregation stands."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.assignment import Assignment, Candidate, Role, Wanted, assign
from coordinator.placement import address_range, lot, same_hand
from coordinator.rebalancing import rebalance

SECRET = b"of the coordinator"


def newcomer(name: str, *, operator: str = "", address: str = "", secret: bytes = SECRET) -> Candidate:
    return Candidate(name, None, lot=lot(secret, name), operator=same_hand(operator), range=address_range(address))


def settle(candidates: list[Candidate], wanted: Wanted) -> list[Candidate]:
    """Assign until nothing changes."""
    for _ in range(20):
        given_out: list[Assignment] = assign(candidates, wanted)
        if not given_out:
            return candidates
        new = {one.member: one for one in given_out}
        candidates = [
            replace(one, stage=at.stage, last_stage=at.stage, role=at.role) if (at := new.get(one.member)) else one
            for one in candidates
        ]
    raise AssertionError("it does not come to rest")


def test_a_sybil_gets_no_more_than_f_of_a_stage_however_many_keys_it_brings() -> None:
    """A20: two hundred members from one host, among nine from elsewhere."""
    wanted = Wanted(stages=3, replicas=3, standbys=2, per_operator=1, per_range=1)
    honest = [newcomer(f"h{n}", address=f"45.{n}.0.1") for n in range(9)]
    sybil = [newcomer(f"s{n}", address="8.8.8.8") for n in range(200)]
    for arrival in (honest + sybil, sybil + honest):
        members: list[Candidate] = []
        for one in arrival:  # one by one, as they would come
            members = settle([*members, one], wanted)
        for stage in range(3):
            there = [one for one in members if one.stage == stage]
            assert sum(one.range == "8.8.8.0/24" for one in there) <= 1
            assert sum(one.member.startswith("h") and one.role is Role.REPLICA for one in there) >= 2
        assert all(one.stage is not None for one in members if one.member.startswith("h"))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2),
       st.lists(st.tuples(st.sampled_from(["", "ann", "bob", "cy"]), st.sampled_from(["", "1.2.3", "5.6.7"])), max_size=14))
@settings(max_examples=80)  # fmt: skip
def test_the_caps_hold_while_members_come_one_by_one_and_go(
    stages: int, replicas: int, standbys: int, per_operator: int, per_range: int, comers: list[tuple[str, str]]
) -> None:
    wanted = Wanted(stages, replicas, standbys, per_operator=per_operator, per_range=per_range)
    members: list[Candidate] = []

    def check() -> None:
        for stage in range(stages):
            there = [one for one in members if one.stage == stage]
            assert all(n <= per_operator for hand, n in Counter(one.operator for one in there).items() if hand)
            assert all(n <= per_range for hand, n in Counter(one.range for one in there).items() if hand)

    for number, (operator, network) in enumerate(comers):
        one = newcomer(f"m{number:02}", operator=operator, address=f"{network}.{number}" if network else "")
        members = settle([*members, one], wanted)
        check()
    measured = [replace(one, frames_per_s=1.0 + number % 3, ready=True) for number, one in enumerate(members)]
    move = rebalance(measured, wanted, 0.0)
    if move is not None:
        members = [replace(one, stage=move.stage) if one.member == move.member else one for one in members]
        check()
    for gone in list(members)[::2]:
        members = settle([one for one in members if one.member != gone.member], wanted)
        check()


def test_where_a_newcomer_goes_is_drawn_and_cannot_be_foreseen() -> None:
    wanted = Wanted(stages=4, replicas=1)

    def place(name: str, secret: bytes) -> int:
        (given_out,) = assign([newcomer(name, secret=secret)], wanted)
        return given_out.stage

    counts = Counter(place(f"m{n}", SECRET) for n in range(400))
    assert set(counts) == {0, 1, 2, 3} and min(counts.values()) > 60
    # The same key under another secret goes elsewhere as often as chance has it: the key alone says nothing.
    same = sum(place(f"m{n}", SECRET) == place(f"m{n}", b"another run's") for n in range(400))
    assert 60 < same < 140
    assert all(place(f"m{n}", SECRET) == place(f"m{n}", SECRET) for n in range(20))


def test_a_member_without_a_place_leaves_the_others_where_they_are() -> None:
    wanted = Wanted(stages=1, replicas=2, per_operator=1)
    members = settle([newcomer("a", operator="Ann"), newcomer("b", operator=" ann "), newcomer("c")], wanted)
    assert {one.member for one in members if one.stage == 0} in ({"a", "c"}, {"b", "c"})
    assert assign(members, wanted) == []


@pytest.mark.parametrize("address", [
    "127.0.0.1", "::1", "10.1.2.3", "192.168.0.7", "172.18.0.2", "100.64.1.1", "fd00::1", "fe80::1", "169.254.0.1", "", "unix:",
    "no address", "::ffff:10.0.0.1",
])  # fmt: skip
def test_addresses_that_say_nothing_are_no_range(address: str) -> None:
    assert address_range(address) == ""


@given(st.ip_addresses(v=4), st.integers(0, 255))
def test_neighbours_share_a_range(address: ipaddress.IPv4Address, last: int) -> None:
    neighbour = ipaddress.ip_address((int(address) & ~0xFF) | last)
    if address.is_global and neighbour.is_global:
        assert address_range(str(address)) == address_range(str(neighbour)) == address_range(f"::ffff:{address}") != ""


def test_ranges_of_ipv6_are_those_that_one_customer_gets() -> None:
    assert address_range("2a01:4f8:1:2::3") == address_range("2a01:4f8:1:ffff::9") == "2a01:4f8:1::/48"
    assert address_range("2a01:4f8:2::1") != address_range("2a01:4f8:1::1")
