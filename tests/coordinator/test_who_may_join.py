"""Open, invited and listed runs; bans; and who may say so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from door_in_process import House, join_request, within
from forked_core import KEY

from common.errors import Code, HocketError
from coordinator.admission import invitation_name
from coordinator.member_list import MemberList, parse_members
from protocol.generated import hocket_pb2 as pb
from protocol.identity import FIELD_PRIME, SMALL_ORDER_Y, MemberKey, PeerKey

KEYS = [MemberKey.from_seed(bytes([number]) * 32) for number in range(1, 7)]
DAY_S = 86_400.0


async def manage(house: House, **what: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((await house.ask(KEY, "manage", pb.ManageRequest(**what))).json)
    return told


async def join(house: House, number: int, peers: list[PeerKey], invitation: str = "", **more: Any) -> pb.JoinReply:
    reply: pb.JoinReply = await house.ask(
        KEYS[number], "join", join_request(KEYS[number], peers[number], invitation=invitation, **more)
    )
    return reply


def test_an_invitation_is_counted_expires_and_belongs_to_who_used_it(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    async def body(house: House) -> None:
        assert (await house.refused(join(house, 0, peer_keys))).code is Code.INVITATION_REFUSED
        assert (await house.refused(join(house, 0, peer_keys, "made up"))).code is Code.INVITATION_REFUSED
        assert house.state.members == {}
        told = await manage(house, invite=pb.Invite(uses=2, expires_s=DAY_S, operator="Ann"))
        token = told["invitation"]
        assert token not in (tmp_path / "state" / "journal.sqlite-wal").read_bytes().decode("latin-1")
        await join(house, 0, peer_keys, token, operator="somebody else")
        await join(house, 1, peer_keys, token)
        assert {house.state.members[KEYS[number].member_id].operator for number in (0, 1)} == {"Ann"}
        used_up = await house.refused(join(house, 2, peer_keys, token))
        assert used_up.code is Code.INVITATION_REFUSED and "used up" in used_up.detail
        # Those who came by it come again: anew, without it, when it has expired, and after a restart.
        house.clock.now += 2 * DAY_S
        house = await house.restarted()
        await join(house, 0, peer_keys, token)
        await join(house, 1, peer_keys)
        told = await manage(house, invite=pb.Invite(uses=5, expires_s=60.0))
        house.clock.now += 61.0
        assert "expired" in (await house.refused(join(house, 2, peer_keys, told["invitation"]))).detail
        told = await manage(house, invite=pb.Invite(uses=5, expires_s=60.0))
        await join(house, 3, peer_keys, told["invitation"])
        await manage(house, revoke=pb.RevokeInvitation(name=told["name"]))
        assert "revoked" in (await house.refused(join(house, 2, peer_keys, told["invitation"]))).detail
        await join(house, 3, peer_keys)
        assert house.state.members[KEYS[3].member_id].operator == f"invitation {invitation_name(told['invitation'])[:12]}"
        listed = await manage(house, list=pb.ListMembers())
        assert [len(one["members"]) for one in listed["invitations"]] == [2, 0, 1]
        house.pieces.journal.close()

    within(tmp_path, body, membership='mode = "invited"')


def test_a_ban_puts_a_member_out_until_it_is_lifted(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    async def body(house: House) -> None:
        await join(house, 0, peer_keys)
        await join(house, 1, peer_keys)
        await house.pieces.driver.step()
        name = KEYS[0].member_id
        assert house.state.members[name].stage is not None
        assert (await manage(house, ban=pb.BanMember(member_id=name[:8], reason="it\nlies")))["member"] == name
        await house.pieces.driver.step()
        member = house.state.members[name]
        assert (member.live, member.stage) == (False, None)
        for method, payload in (("watch", pb.WatchRequest()), ("lease", pb.LeaseRequest())):
            assert (await house.refused(house.ask(KEYS[0], method, payload))).code is Code.BANNED
        house = await house.restarted()
        refused = await house.refused(join(house, 0, peer_keys))
        assert refused.code is Code.BANNED and "it lies" in refused.detail and "pardon" in refused.remedy
        assert not house.state.members[name].live
        # One that never came can be banned too, by its whole id.
        never = KEYS[5].member_id
        await manage(house, ban=pb.BanMember(member_id=never))
        assert (await house.refused(join(house, 5, peer_keys))).code is Code.BANNED
        await house.ask(KEYS[1], "watch", pb.WatchRequest())
        await house.pieces.driver.step()
        told = await manage(house, list=pb.ListMembers())
        assert {one["member"]: one["state"] for one in told["members"]} == {
            name: "banned", KEYS[1].member_id: "live", never: "banned"
        }  # fmt: skip
        await manage(house, pardon=pb.PardonMember(member_id=name))
        await join(house, 0, peer_keys)
        await house.pieces.driver.step()
        assert house.state.members[name].stage is not None
        house.pieces.journal.close()

    within(tmp_path, body)


@pytest.mark.parametrize("one_hand", ["range", "operator"])
def test_one_hand_with_many_keys_gets_one_place_at_each_stage(one_hand: str, tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    """A20 at the door: the address is the one that the call comes from, the operator the one that is named."""

    async def body(house: House) -> None:
        for number in range(5):
            address = f"ipv4:8.8.8.{number}:4000" if one_hand == "range" else f"ipv4:{45 + number}.0.0.1:4000"
            operator = f"hand {number}" if one_hand == "range" else ("Mallory", " mallory")[number % 2]
            request = join_request(KEYS[number], peer_keys[number], operator=operator)
            await house.ask(KEYS[number], "join", request, address)
            await house.pieces.driver.step()
        stages = [house.state.members[KEYS[number].member_id].stage for number in range(5)]
        assert sorted(str(stage) for stage in stages) == ["0", "1", "None", "None", "None"]
        await house.ask(KEYS[5], "join", join_request(KEYS[5], peer_keys[5], operator="another"), "ipv4:99.0.0.1:4000")
        await house.pieces.driver.step()
        assert house.state.members[KEYS[5].member_id].stage is not None

    within(tmp_path, body)


def test_a_quarantined_member_is_kept_out_with_the_evidence_until_it_is_pardoned(
    tmp_path: Path, peer_keys: list[PeerKey]
) -> None:
    async def body(house: House) -> None:
        name = KEYS[0].member_id
        await join(house, 0, peer_keys)
        record = {
            "operator": "", "stage": 0, "kind": "PASS", "round": 1, "evidence_cid": "bafk-evidence", "reason": "made up",
            "base_cid": house.state.base_cid,
        }  # fmt: skip
        house.pieces.core.quarantine(name, record)
        house = await house.restarted()
        for calling in (join(house, 0, peer_keys), house.ask(KEYS[0], "watch", pb.WatchRequest())):
            refused = await house.refused(calling)
            assert refused.code is Code.QUARANTINED and "bafk-evidence" in refused.detail and "pardon" in refused.remedy
        (told,) = (await manage(house, list=pb.ListMembers()))["members"]
        assert told["state"] == "quarantined" and "made up" in told["reason"]
        await manage(house, pardon=pb.PardonMember(member_id=name))
        await join(house, 0, peer_keys)
        assert house.state.members[name].live
        house.pieces.journal.close()

    within(tmp_path, body)


def test_requests_that_do_not_fit_are_named(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    async def body(house: House) -> None:
        await join(house, 0, peer_keys)
        for request in (
            pb.ManageRequest(ban=pb.BanMember(member_id="abcdefgh")),
            pb.ManageRequest(ban=pb.BanMember(member_id=KEYS[0].member_id[:5])),
            pb.ManageRequest(pardon=pb.PardonMember(member_id=KEYS[0].member_id)),
            pb.ManageRequest(revoke=pb.RevokeInvitation(name="0123456789")),
            pb.ManageRequest(invite=pb.Invite(uses=0, expires_s=1.0)),
            pb.ManageRequest(invite=pb.Invite(uses=10**6, expires_s=1.0)),
            pb.ManageRequest(invite=pb.Invite(uses=1, expires_s=float("nan"))),
            pb.ManageRequest(invite=pb.Invite(uses=1, expires_s=1e12)),
        ):
            assert (await house.refused(house.ask(KEY, "manage", request))).code is Code.OPTION_INVALID
        assert (await house.refused(house.ask(KEY, "manage", pb.ManageRequest()))).code is Code.SIGNATURE_INVALID
        # Nobody else may: not a member, and not twice with the organiser's own message.
        ask = pb.ManageRequest(invite=pb.Invite(uses=1, expires_s=60.0))
        assert (await house.refused(house.ask(KEYS[0], "manage", ask))).code is Code.SIGNATURE_INVALID
        signed = house.signed(KEY, "manage", ask)
        await house.send("manage", signed)
        house = await house.restarted()
        assert "received before" in (await house.refused(house.send("manage", signed))).detail
        assert len(house.state.admission.invitations) == 1
        house.pieces.journal.close()

    within(tmp_path, body)


def test_a_listed_run_takes_who_is_on_the_list_and_says_whose_they_are(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    path = tmp_path / "members.txt"
    path.write_text(f"# ours\n{KEYS[0].member_id}  Ann and Bob  # two machines\n\n")
    listed = MemberList(path)

    async def body(house: House) -> None:
        await join(house, 0, peer_keys, operator="someone")
        assert house.state.members[KEYS[0].member_id].operator == "Ann and Bob"
        refused = await house.refused(join(house, 1, peer_keys))
        assert refused.code is Code.JOIN_REFUSED and KEYS[1].member_id in refused.detail
        path.write_text(f"{KEYS[1].member_id}\n")
        os.utime(path, (1, 1))
        await join(house, 1, peer_keys)
        assert (await house.refused(join(house, 0, peer_keys))).code is Code.JOIN_REFUSED
        # A slip in the list lets nobody in by chance.
        path.write_text("not a member id\n")
        assert (await house.refused(join(house, 1, peer_keys))).code is Code.RUN_FILE_INVALID

    within(tmp_path, body, membership='mode = "listed"\nlist = "members.txt"', listed=listed)


def test_a_member_that_computes_in_another_dtype_is_not_taken(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    """Wider limits belong to a coarser dtype: whoever could choose its dtype could choose how far it may be off."""

    async def body(house: House) -> None:
        for text in ("cpu-x86_64-bfloat16", "cuda-sm90-tf32", "abacus"):
            refused = await house.refused(join(house, 0, peer_keys, device_class=text))
            assert refused.code is Code.JOIN_REFUSED and text.split("-")[-1] in refused.detail
        assert not house.state.members
        await join(house, 0, peer_keys, device_class="cpu-x86_64-float32")
        assert house.state.members[KEYS[0].member_id].info["device_class"] == "cpu-x86_64-float32"

    within(tmp_path, body)


def test_slips_in_a_list_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(HocketError, match="line 3 of here"):
        parse_members(f"\n{KEYS[0].member_id}\n{KEYS[0].member_id.upper()}\n", "here")
    with pytest.raises(HocketError) as caught:
        MemberList(tmp_path / "none")
    assert caught.value.code is Code.RUN_FILE_UNREADABLE


def test_the_weak_encodings_of_a_key_are_refused_at_enrolment(tmp_path: Path, peer_keys: list[PeerKey]) -> None:
    """With the identity point as key, R = key and S = 0 pass for a signature of every message, were the key not refused."""
    small = [(y | sign << 255).to_bytes(32, "little") for y in SMALL_ORDER_Y for sign in (0, 1)]
    other = [(FIELD_PRIME + y).to_bytes(32, "little") for y in range(19)]
    assert len(small) == 10  # eight points; two of the encodings, with y = 1 and y = -1, set the sign of x = 0

    async def body(house: House) -> None:
        peer = peer_keys[0]
        for public in (*small, *other):
            proof = peer.prove(public)
            request = pb.JoinRequest(peer_id=peer.peer_id, peer_public_key=peer.public_key_bytes, peer_signature=proof)
            signed = house.signed(KEYS[0], "join", request)
            header = pb.SignedHeader.FromString(signed.header)
            header.public_key = public
            forged = pb.Signed(header=header.SerializeToString(deterministic=True), payload=signed.payload,
                               signature=public + bytes(32))  # fmt: skip
            refused = await house.refused(house.send("join", forged))
            assert refused.code is Code.SIGNATURE_INVALID and ("small order" in refused.detail or "canonical" in refused.detail)
        assert house.state.members == {}

    within(tmp_path, body)
